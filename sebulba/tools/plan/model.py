"""Predict the throughput of a ring from the times of its parts.

The throughput `X`, in trajectories per second, of a ring of `n` actors whose learner takes `K`
trajectories per cycle is the least of three limits:

    actors   X ≤ n / t_a                 `t_a`: seconds of an act cycle, which gives one trajectory
    learner  X ≤ K / t_u                 `t_u`: seconds of a learner cycle
    cores    X ≤ c / (w_a + w_u / K)     `c`: CPU cores of the host

`w_a` and `w_u` are the CPU time of an act cycle and of a learner cycle in core-seconds, summed over
all threads, including those of environments and of XLA on a CPU. With accelerators they are small,
and actors or learner are the bottleneck. On a CPU, acting and learning share the cores. In
lock-step, only actors overlap: `K / X = ⌈K / n⌉ · t_a + t_u`, within the limit of the cores. The
model has no short queues, interference or stragglers, so a measured run is somewhat slower.
"""

import dataclasses
import math
from typing import Literal

Bound = Literal["actors", "learner", "cores", "lock-step"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Time and CPU time of a piece of work."""

    wall_s: float  # elapsed, with nothing else running
    core_s: float  # CPU time of all threads of the process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """Measured costs of the parts of a ring."""

    act: Cost  # one act cycle of one actor, including the transfer
    environment: Cost  # part of act: stepping the environment
    transfer: Cost  # part of act: moving the trajectory to the learner devices
    update: Cost  # one learner cycle, including the staging of networks
    env_steps: int  # per trajectory
    trajectories_per_cycle: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted speed of a ring and its bottleneck."""

    env_steps_per_s: float
    bound: Bound
    limits: dict[Bound, float]  # env steps per second that each bottleneck allows


def predict(
    parts: Parts, *, num_actors: int, num_cores: float, is_lock_step: bool = False
) -> Prediction:
    """Predict the throughput of `num_actors` actors and one learner on a host."""
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
    """Interpolate a learner cycle's cost on `num_devices` devices from its cost on one and on all.

    The cost is modelled as `a + b / num_devices`.
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
