"""Predicts env steps a second and update time against the number of hosts, from measured parts.

    python -m benchmarks.scaling_model CONFIG [--hosts 1 2 4] [--check-local 1 2 4] [--json FILE]

Any other flag is the config's. Every host runs the whole config: its own actors, its own share of
the batch. What crosses hosts is the gradient, once an update. So with `N` hosts an update takes

    t_u(N) = t_u + U · (all_reduce(N) + σ · √(2 ln N))

where `U` is the number of optimisation steps in a learner cycle, and `σ` the measured standard
deviation of one: the slowest of `N` is later than the mean by about `σ · √(2 ln N)`. Of the two
common algorithms the faster counts, with `g` the bytes of a gradient:

    ring   2 (N − 1) · latency + 2 (N − 1) / N · g / bandwidth
    tree   2 ⌈log₂ N⌉ · latency + 2 g / bandwidth

What each host then gives is `sebulba.planning.model`. Latency and bandwidth are assumptions about
the network, which the flags set; on this machine they are measured. Local processes share the
cores: with `N` of them each has `1 / N` of them.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import jax

from benchmarks import harness
from sebulba.assembly import assemble
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.devices import plan_devices
from sebulba.metrics.files import write_json
from sebulba.planning.measuring import for_measuring, learner_cycle, measure_parts
from sebulba.planning.model import Cost, Parts, Prediction, predict

BEND = 0.9
"""Of linear scaling: where the prediction falls below, the curve bends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """What connects the hosts."""

    latency_s: float  # of one message between two hosts
    bytes_per_s: float  # of one host, in each direction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One host, measured."""

    parts: Parts
    num_actors: int
    num_cores: float
    gradient_bytes: int
    updates_per_cycle: float
    update_deviation_s: float  # standard deviation of one optimisation step
    is_lock_step: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """The prediction for a number of hosts."""

    num_hosts: int
    update_s: float  # of a learner cycle
    all_reduce_s: float  # of one optimisation step
    env_steps_per_s: float  # of all hosts
    efficiency: float  # of linear scaling
    bound: str


def all_reduce_s(num_hosts: int, num_bytes: int, network: Network) -> float:
    """Returns the seconds of an all-reduce over the hosts."""
    if num_hosts == 1:
        return 0.0
    hops = num_hosts - 1
    transfer_s = num_bytes / network.bytes_per_s
    ring = 2 * hops * network.latency_s + 2 * hops / num_hosts * transfer_s
    tree = 2 * math.ceil(math.log2(num_hosts)) * network.latency_s + 2 * transfer_s
    return min(ring, tree)


def scale(host: Host, network: Network, hosts: Sequence[int], *, is_local: bool) -> list[Point]:
    """Returns the prediction for each number of hosts.

    Args:
        host: measured alone.
        network: between the hosts.
        hosts: how many.
        is_local: they are processes of one machine and share its cores.
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
    """Returns the least number of hosts at which scaling is worse than `BEND` of linear."""
    return next((each.num_hosts for each in points if each.efficiency < BEND), None)


def _predict(host: Host, waiting_s: float, num_cores: float) -> Prediction:
    update = Cost(wall_s=host.parts.update.wall_s + waiting_s, core_s=host.parts.update.core_s)
    return predict(
        dataclasses.replace(host.parts, update=update),
        num_actors=host.num_actors,
        num_cores=num_cores,
        is_lock_step=host.is_lock_step,
    )


def measure_host(config: Config, *, seconds: float) -> Host:
    """Returns this machine as one host of the config."""
    parts = measure_parts(config, seconds=seconds)
    ring = assemble(for_measuring(config), write_row=lambda row: None)
    try:
        cycle_s = _durations(ring, config, seconds)
        middle = config.run.total_env_steps // (2 * parts.env_steps * parts.trajectories_per_cycle)
        updates = statistics.mean(
            ring.agent.num_updates_per_cycle(middle + offset) for offset in range(100)
        )
        networks = jax.tree.leaves(ring.learner.state.networks)
    finally:
        ring.close_environments()
    actor_devices = plan_devices(config.devices, jax.local_devices()).actor
    return Host(
        parts=parts,
        num_actors=config.actor.threads_per_device * len(actor_devices),
        num_cores=len(os.sched_getaffinity(0)),
        gradient_bytes=sum(leaf.nbytes for leaf in networks),
        updates_per_cycle=updates,
        update_deviation_s=statistics.stdev(cycle_s) / max(1.0, updates) ** 0.5,
        is_lock_step=config.learner.max_policy_lag == 0,
    )


def measured_locally(config_path: str, flags: Sequence[str], num_hosts: int) -> float:
    """Returns env steps a second of a run of that many local processes."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = pathlib.Path(directory) / "run"
        command = ["-m", "sebulba.launch", "--local", str(num_hosts), "--devices", "1"]
        subprocess.run(
            [sys.executable, *command, config_path, *flags, "--run-dir", str(run_dir)],
            check=True,
            capture_output=True,
        )
        return json.loads((run_dir / "summary.json").read_text())["steps_per_second"]


def describe(points: Sequence[Point], measured: dict[int, float]) -> str:
    """Returns the prediction as a table, what was measured beside it."""
    lines = [" hosts   update ms   all-reduce ms     env steps/s   of linear   bound by   measured"]
    for each in points:
        rate = measured.get(each.num_hosts)
        beside = "" if rate is None else f"{rate:,.0f} ({rate / each.env_steps_per_s:.2f})"
        lines.append(
            f"{each.num_hosts:6}  {1e3 * each.update_s:10.2f}  {1e3 * each.all_reduce_s:14.3f}"
            f"  {each.env_steps_per_s:14,.0f}  {each.efficiency:10.2f}   {each.bound:8}   {beside}"
        )
    where = bend(points)
    lines.append(
        f"below {BEND:.0%} of linear from {where} hosts on" if where else "no bend within these"
    )
    return "\n".join(lines)


def _durations(ring, config: Config, seconds: float) -> list[float]:
    """Returns the seconds of each of many learner cycles."""
    learn = learner_cycle(ring, config)
    for _ in range(3):
        learn()
    durations: list[float] = []
    while len(durations) < 10 or sum(durations) < seconds:
        begin = time.perf_counter()
        learn()
        durations.append(time.perf_counter() - begin)
    return durations


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="YAML file")
    parser.add_argument(
        "--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    )
    parser.add_argument("--latency-us", type=float, default=20.0, help="between two hosts")
    parser.add_argument("--bandwidth-gbit", type=float, default=100.0, help="of one host")
    parser.add_argument("--check-local", type=int, nargs="*", default=[], help="as processes here")
    parser.add_argument("--local-latency-us", type=float, default=200.0, help="of the loopback")
    parser.add_argument("--local-bandwidth-gbit", type=float, default=8.0, help="of the loopback")
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure each part")
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    return parser


def main() -> None:
    """Runs the benchmark."""
    arguments, flags = _parser().parse_known_args()
    config = load_config(arguments.config, flags)
    host = measure_host(config, seconds=arguments.seconds)
    document = {"stamp": harness.stamp(), "host": dataclasses.asdict(host)}
    between = {
        "hosts": (arguments.latency_us, arguments.bandwidth_gbit, arguments.hosts),
        "local processes": (
            arguments.local_latency_us,
            arguments.local_bandwidth_gbit,
            arguments.check_local,
        ),
    }
    for name, (latency_us, gbit, counts) in between.items():
        if not counts:
            continue
        is_local = name == "local processes"
        network = Network(latency_s=1e-6 * latency_us, bytes_per_s=gbit * 1e9 / 8)
        points = scale(host, network, counts, is_local=is_local)
        measured = (
            {count: measured_locally(arguments.config, flags, count) for count in counts}
            if is_local
            else {}
        )
        print(f"\n{name}: {latency_us:g} µs, {gbit:g} Gbit/s")
        print(describe(points, measured))
        document[name] = {"points": [dataclasses.asdict(each) for each in points]} | {
            "measured": measured
        }
    if arguments.json is not None:
        write_json(arguments.json, document)


if __name__ == "__main__":
    main()
