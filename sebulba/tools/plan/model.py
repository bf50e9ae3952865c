"""The throughput of a ring, from the times of its parts.

With trajectories as the unit of work, `X` a second, a ring of `n` actors that learns from `K`
trajectories a cycle is bound by whichever is least of

    actors   X ≤ n / t_a                        each acts one trajectory in `t_a` seconds
    learner  X ≤ K / t_u                        and a learner cycle takes `t_u` seconds
    cores    X ≤ c / (w_a + w_u / K)            the host's `c` cores have this much work to do

where `w` is the work of the same in core-seconds: of all threads, those of the environments and of
XLA on a CPU included. On accelerators `w` is small and the first two bind; on a CPU the third says
that acting and learning share the cores. In lock-step nothing overlaps but the actors:
`K / X = ⌈K / n⌉ · t_a + t_u`, within the bound of the cores. Queues that are too short,
interference and stragglers are not in the model, so a measured run is somewhat slower.
"""

import dataclasses
import math
from typing import Literal

Bound = Literal["actors", "learner", "cores", "lock-step"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one piece of work takes."""

    wall_s: float  # from its start to its end, nothing else running
    core_s: float  # of all of the process's threads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The measured parts of a ring."""

    act: Cost  # one act cycle of one actor, its trajectory placed on the learner devices
    environment: Cost  # of that, the environment
    transfer: Cost  # of that, the trajectory's way to the learner devices
    update: Cost  # one learner cycle, the new networks staged
    env_steps: int  # of one trajectory
    trajectories_per_cycle: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """How fast a ring runs, and why not faster."""

    env_steps_per_s: float
    bound: Bound
    limits: dict[Bound, float]  # env steps a second that each bound allows


def predict(
    parts: Parts, *, num_actors: int, num_cores: float, is_lock_step: bool = False
) -> Prediction:
    """Returns the throughput of `num_actors` actors and one learner on a host."""
    per_cycle = parts.trajectories_per_cycle
    work = parts.act.core_s + parts.update.core_s / per_cycle
    trajectories: dict[Bound, float] = {"cores": num_cores / work if work else math.inf}
    if is_lock_step:
        rounds = math.ceil(per_cycle / num_actors)
        cycle_s = rounds * parts.act.wall_s + parts.update.wall_s
        trajectories["lock-step"] = per_cycle / cycle_s
    else:
        trajectories["actors"] = num_actors / parts.act.wall_s
        trajectories["learner"] = per_cycle / parts.update.wall_s
    limits = {bound: rate * parts.env_steps for bound, rate in trajectories.items()}
    bound = min(limits, key=lambda bound: limits[bound])
    return Prediction(env_steps_per_s=limits[bound], bound=bound, limits=limits)


def scaled_update(one_device: Cost, all_devices: Cost, *, num_all: int, num_devices: int) -> Cost:
    """Returns a learner cycle's cost on some number of devices, from its cost on one and on all.

    A part that does not depend on the number, and a part that is divided by it: `a + b / devices`.
    """
    if num_all == 1:
        return one_device

    def between(one: float, many: float) -> float:
        divided = (one - many) / (1 - 1 / num_all)
        return max(0.0, one - divided + divided / num_devices)

    return Cost(
        wall_s=between(one_device.wall_s, all_devices.wall_s),
        core_s=between(one_device.core_s, all_devices.core_s),
    )
