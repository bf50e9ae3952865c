"""What to set differently, and how much faster that should be."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from sebulba.tools.plan.model import Parts, Prediction, predict

MOST_THREADS = 16
_GOOD_ENOUGH = 0.98
"""Of the best prediction: what is simpler and comes this near is preferred."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The keys that decide how fast a ring runs."""

    threads_per_device: int
    num_envs: int
    queue_slots_per_actor: int
    actor_devices: tuple[int, ...]
    learner_devices: tuple[int, ...]

    @property
    def num_actors(self) -> int:
        """Actor threads."""
        return self.threads_per_device * len(self.actor_devices)

    @property
    def flags(self) -> str:
        """The flags that set it."""
        return (
            f"--actor.threads-per-device {self.threads_per_device} --actor.num-envs {self.num_envs}"
            f" --learner.queue-slots-per-actor {self.queue_slots_per_actor}"
            f" --devices.actor '{list(self.actor_devices)}'"
            f" --devices.learner '{list(self.learner_devices)}'"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A setting and what it is predicted to give."""

    setting: Setting
    prediction: Prediction


def splits(num_devices: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields actor and learner devices: all in both roles, then 1 : n−1 … n−1 : 1."""
    everything = tuple(range(num_devices))
    yield everything, everything
    for num_actor in range(1, num_devices):
        yield everything[:num_actor], everything[num_actor:]


def candidates(
    parts_of: Mapping[int, Parts],
    parts_on: Callable[[Parts, int], Parts],
    *,
    num_devices: int,
    num_cores: float,
    max_policy_lag: int | None,
) -> list[Candidate]:
    """Returns every setting worth a thought, the fastest first.

    Args:
        parts_of: the measured parts by `actor.num_envs`.
        parts_on: the parts with another number of learner devices.
        num_devices: that there are.
        num_cores: of the host.
        max_policy_lag: of the config.
    """
    found = []
    for num_envs, measured in parts_of.items():
        for actor_devices, learner_devices in splits(num_devices):
            if num_envs % len(learner_devices):
                continue
            parts = parts_on(measured, len(learner_devices))
            for exponent in range(int(math.log2(MOST_THREADS)) + 1):
                setting = Setting(
                    threads_per_device=2**exponent,
                    num_envs=num_envs,
                    queue_slots_per_actor=_slots(parts, 2**exponent * len(actor_devices)),
                    actor_devices=actor_devices,
                    learner_devices=learner_devices,
                )
                prediction = predict(
                    parts,
                    num_actors=setting.num_actors,
                    num_cores=num_cores,
                    is_lock_step=max_policy_lag == 0,
                )
                found.append(Candidate(setting=setting, prediction=prediction))
    return sorted(found, key=lambda each: -each.prediction.env_steps_per_s)


def propose(found: list[Candidate], num_envs: int) -> Candidate:
    """Returns the setting with the fewest threads among those that are about as fast as the best.

    Args:
        found: as `candidates` gives them.
        num_envs: only settings with this `actor.num_envs`, which the agent's batch follows from.
    """
    found = [each for each in found if each.setting.num_envs == num_envs]
    best = found[0].prediction.env_steps_per_s
    near = [each for each in found if each.prediction.env_steps_per_s >= _GOOD_ENOUGH * best]
    return min(near, key=lambda each: (each.setting.num_actors, -each.prediction.env_steps_per_s))


def _slots(parts: Parts, num_actors: int) -> int:
    """Returns slots enough for a whole learner cycle to wait while another is learned from."""
    return max(1, math.ceil(parts.trajectories_per_cycle / num_actors))
