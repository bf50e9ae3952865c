"""Enumerate settings with their predicted speed, and choose the best."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from sebulba.tools.plan.model import Parts, Prediction, predict

MAX_THREADS = 16
# A setting with fewer threads is preferred if it reaches this share of the best prediction.
_GOOD_ENOUGH = 0.98


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The config keys that determine the speed of a ring."""

    threads_per_device: int
    num_envs: int
    queue_slots_per_actor: int
    actor_devices: tuple[int, ...]
    learner_devices: tuple[int, ...]

    @property
    def num_actors(self) -> int:
        """Number of actor threads."""
        return self.threads_per_device * len(self.actor_devices)

    @property
    def flags(self) -> str:
        """The command line flags of this setting."""
        return (
            f"--actor.threads-per-device {self.threads_per_device} --actor.num-envs {self.num_envs}"
            f" --learner.queue-slots-per-actor {self.queue_slots_per_actor}"
            f" --devices.actor '{list(self.actor_devices)}'"
            f" --devices.learner '{list(self.learner_devices)}'"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A setting and its prediction."""

    setting: Setting
    prediction: Prediction


def splits(num_devices: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield actor and learner devices: all devices in both roles, then 1 : n−1 … n−1 : 1."""
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
    policy_lag: int | None,
) -> list[Candidate]:
    """Return every setting that the devices allow, the fastest first.

    Args:
        parts_of: measured parts by `actor.num_envs`.
        parts_on: maps measured parts to those with another number of learner devices.
        num_devices: number of devices of the host.
        num_cores: number of CPU cores of the host.
        policy_lag: `learner.policy_lag`.
    """
    found = []
    for num_envs, measured in parts_of.items():
        for actor_devices, learner_devices in splits(num_devices):
            if num_envs % len(learner_devices):
                continue
            parts = parts_on(measured, len(learner_devices))
            for exponent in range(int(math.log2(MAX_THREADS)) + 1):
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
                    is_lock_step=policy_lag == 0,
                )
                found.append(Candidate(setting=setting, prediction=prediction))
    return sorted(found, key=lambda each: -each.prediction.env_steps_per_s)


def propose(found: list[Candidate], num_envs: int) -> Candidate:
    """Return the setting with the fewest threads among those about as fast as the best.

    Args:
        found: all candidates, the fastest first.
        num_envs: consider only this `actor.num_envs`, because it determines the batch size.
    """
    found = [each for each in found if each.setting.num_envs == num_envs]
    best = found[0].prediction.env_steps_per_s
    near = [each for each in found if each.prediction.env_steps_per_s >= _GOOD_ENOUGH * best]
    return min(near, key=lambda each: (each.setting.num_actors, -each.prediction.env_steps_per_s))


def _slots(parts: Parts, num_actors: int) -> int:
    """Return the slots that hold the trajectories of one learner cycle during another."""
    return max(1, math.ceil(parts.trajectories_per_cycle / num_actors))
