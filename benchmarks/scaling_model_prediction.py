"""Predict the speed of a run on several hosts from the measured parts of one.

Every host runs the complete config: its own actors and its share of the batch. Only gradients cross
hosts, once per update. So with `N` hosts a learner cycle takes

    t_u(N) = t_u + U · (all_reduce(N) + σ · √(2 ln N))

where `U` is its number of optimisation steps, and `σ` the measured standard deviation of one: the
slowest of `N` hosts is later than the mean by about `σ · √(2 ln N)`. An all-reduce uses the faster
of two algorithms, with `g` the bytes of a gradient:

    ring   2 (N − 1) · latency + 2 (N − 1) / N · g / bandwidth
    tree   2 ⌈log₂ N⌉ · latency + 2 g / bandwidth

`sebulba.tools.plan.model` then predicts the speed of each host. `N` processes of one machine have
`1 / N` of its cores each.
"""

import dataclasses
import math
from collections.abc import Sequence

from sebulba.tools.plan.model import Cost, Parts, Prediction, predict

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


def scale(host: Host, network: Network, hosts: Sequence[int], *, is_local: bool) -> list[Point]:
    """Predict the speed for each number of hosts.

    Args:
        host: the measurements of one host.
        network: the network between the hosts.
        hosts: numbers of hosts.
        is_local: the hosts are processes of one machine, and share its cores.
    """
    alone = _predict(host, 0.0, host.num_cores).env_steps_per_s
    points = []
    for num_hosts in hosts:
        reduce_s = all_reduce_s(num_hosts, host.gradient_bytes, network)
        late_s = host.update_deviation_s * math.sqrt(2 * math.log(num_hosts))
        waiting_s = host.updates_per_cycle * (reduce_s + late_s)
        num_cores = host.num_cores / num_hosts if is_local else host.num_cores
        prediction = _predict(host, waiting_s, num_cores)
        points.append(
            Point(
                num_hosts=num_hosts,
                update_s=host.parts.update.wall_s + waiting_s,
                all_reduce_s=reduce_s,
                env_steps_per_s=num_hosts * prediction.env_steps_per_s,
                efficiency=prediction.env_steps_per_s / alone,
                bound=prediction.bound,
            )
        )
    return points


def bend(points: Sequence[Point]) -> int | None:
    """Return the least number of hosts with less than `BEND` of linear scaling; None: none."""
    return next((each.num_hosts for each in points if each.efficiency < BEND), None)


def _predict(host: Host, waiting_s: float, num_cores: float) -> Prediction:
    update = Cost(wall_s=host.parts.update.wall_s + waiting_s, core_s=host.parts.update.core_s)
    return predict(
        dataclasses.replace(host.parts, update=update),
        num_actors=host.num_actors,
        num_cores=num_cores,
        is_lock_step=host.is_lock_step,
    )
