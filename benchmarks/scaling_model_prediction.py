"""Predict the speed of a run on several hosts from measured parts.

Every host runs the complete config: its own actors and its share of the batch. Once per update,
gradients cross hosts, and once per learner cycle a few numbers. On `N` machines a learner cycle
takes

    t_L(N) = t_L(1) + U · (all_reduce(N) + σ · √(2 ln N)) + tree(N)

where `U` is its number of optimisation steps, and `σ` the measured standard deviation of one: the
slowest of `N` hosts is later than the mean by about `σ · √(2 ln N)`. An all-reduce uses the faster
of two algorithms, with `g` the bytes of a gradient:

    ring   2 (N − 1) · latency + 2 (N − 1) / N · g / bandwidth
    tree   2 ⌈log₂ N⌉ · latency + 2 g / bandwidth

`N` processes of one machine have cores of their own, or share them if there are too few. Their
`t_L(N)` is measured, with nobody acting, and so is the CPU time `w_L(N)` of each process in it,
which grows with the number of processes.

`sebulba.tools.plan.model` then predicts the speed of each host: of the actors, of the learner, and
of the cores, which have the CPU time `w_L(N)` and that of acting to spend in a learner cycle.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from sebulba.tools.plan.model import Cost, Parts, predict

BEND = 0.9
"""The speed curve bends where the prediction falls below this share of linear scaling."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """The network between hosts."""

    latency_s: float  # seconds of one message between two hosts
    bytes_per_s: float  # bandwidth of one host, in each direction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """The measurements and settings of one host."""

    parts: Parts
    num_actors: int
    num_cores: float
    gradient_bytes: int
    updates_per_cycle: float
    update_deviation_s: float  # standard deviation of one optimisation step
    exchange_core_s: float = 0.0  # CPU time in a learner cycle, for exchanging with other hosts
    num_envs: int = 0  # per actor
    queue_slots: int = 0  # summed over its actors
    trajectory_bytes: int = 0
    state_bytes: int = 0  # the learner's, its replay included
    is_lock_step: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """The prediction for a number of hosts."""

    num_hosts: int
    update_s: float  # seconds of a learner cycle
    all_reduce_s: float  # seconds per optimisation step
    gbit_per_s: float  # that a host sends, on average
    env_steps_per_s: float  # summed over all hosts
    efficiency: float  # share of linear scaling
    bound: str


def all_reduce_s(num_hosts: int, num_bytes: int, network: Network) -> float:
    """Predict the seconds of an all-reduce over the hosts."""
    if num_hosts == 1:
        return 0.0
    hops = num_hosts - 1
    transfer_s = num_bytes / network.bytes_per_s
    ring = 2 * hops * network.latency_s + 2 * hops / num_hosts * transfer_s
    tree = 2 * math.ceil(math.log2(num_hosts)) * network.latency_s + 2 * transfer_s
    return min(ring, tree)


def scale(host: Host, network: Network, hosts: Sequence[int]) -> list[Point]:
    """Predict the speed on each of some numbers of hosts, which are machines."""
    (alone,) = _points(host, {1: (host.parts.update, 0.0)}, num_cores=host.num_cores)
    cycles: dict[int, tuple[Cost, float]] = {}
    for num_hosts in hosts:
        reduce_s = all_reduce_s(num_hosts, host.gradient_bytes, network)
        late_s = host.update_deviation_s * math.sqrt(2 * math.log(num_hosts))
        waiting_s = host.updates_per_cycle * (reduce_s + late_s)
        waiting_s += math.ceil(math.log2(num_hosts)) * network.latency_s
        update = Cost(
            wall_s=host.parts.update.wall_s + waiting_s,
            core_s=host.parts.update.core_s + (host.exchange_core_s if num_hosts > 1 else 0.0),
        )
        cycles[num_hosts] = (update, reduce_s)
    points = _points(host, cycles, num_cores=host.num_cores)
    return [_relative(point, alone) for point in points]


def scale_locally(
    host: Host, learning: Mapping[int, Cost], *, num_machine_cores: int
) -> list[Point]:
    """Predict the speed of numbers of processes of one machine, from their learner cycles."""
    alone = learning[1]
    points = []
    for num_hosts, update in learning.items():
        reduce_s = (update.wall_s - alone.wall_s) / max(1.0, host.updates_per_cycle)
        num_cores = min(host.num_cores, num_machine_cores / num_hosts)
        points += _points(host, {num_hosts: (update, reduce_s)}, num_cores=num_cores)
    return [_relative(point, points[0]) for point in points]


def _points(
    host: Host, cycles: Mapping[int, tuple[Cost, float]], *, num_cores: float
) -> list[Point]:
    points = []
    for num_hosts, (update, reduce_s) in cycles.items():
        parts = dataclasses.replace(host.parts, update=update)
        prediction = predict(
            parts,
            num_actors=host.num_actors,
            num_cores=num_cores,
            is_lock_step=host.is_lock_step,
        )
        env_steps_of_cycle = parts.env_steps * parts.trajectories_per_cycle
        cycles_per_s = prediction.env_steps_per_s / env_steps_of_cycle
        sent = 2 * (num_hosts - 1) / num_hosts * host.gradient_bytes * host.updates_per_cycle
        points.append(
            Point(
                num_hosts=num_hosts,
                update_s=update.wall_s,
                all_reduce_s=reduce_s,
                gbit_per_s=8e-9 * sent * cycles_per_s,
                env_steps_per_s=num_hosts * prediction.env_steps_per_s,
                efficiency=1.0,
                bound=prediction.bound,
            )
        )
    return points


def _relative(point: Point, alone: Point) -> Point:
    linear = point.num_hosts * alone.env_steps_per_s
    return dataclasses.replace(point, efficiency=point.env_steps_per_s / linear)


def bend(points: Sequence[Point]) -> int | None:
    """Return the least number of hosts with less than `BEND` of linear scaling; None: none."""
    return next((each.num_hosts for each in points if each.efficiency < BEND), None)
