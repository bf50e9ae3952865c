"""Predict env steps per second for several numbers of hosts, from measured parts.

    python -m benchmarks.scaling_model CONFIG [--hosts 1 2 4] [--plan 256]
        [--cores 1 --check-local 1 2 4]

Any other flag is the config's. This machine, or `--cores` of it, is measured as one host: acting,
the learner cycle, the CPU time of the complete ring, the bytes of a gradient, the spread of the
learner cycles. The model is described in `benchmarks.scaling_model_prediction`. Latency and
bandwidth between hosts are assumptions, set by flags. With `--check-local`, learner cycles of so
many processes of this machine are measured too, and then the complete runs of so many processes,
which are compared with the predictions.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from benchmarks import harness
from benchmarks.scaling_model_learning import Learning, measure_learning
from benchmarks.scaling_model_plan import describe_plan
from benchmarks.scaling_model_prediction import (
    BEND,
    Host,
    Network,
    Point,
    bend,
    scale,
    scale_locally,
)
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.config.run_spec import queue_slots_per_actor
from sebulba.devices.memory_plan import num_bytes
from sebulba.hosts.cores import on_cores_of_process
from sebulba.run.assembly import Ring, assemble
from sebulba.run.modes import run
from sebulba.storage.metrics.files import write_json
from sebulba.tools.plan.model import Cost, Parts

_NOTHING = Cost(wall_s=0.0, core_s=0.0)
_ENDLESS = ["--run.total-env-steps", str(10**12), "--run.stop-at-return", "null"]


def measure_host(config: Config, learning: Learning, *, exchange_core_s: float) -> Host:
    """Measure this machine as one host of the config.

    Args:
        config: of the run.
        learning: the learner cycle of one host.
        exchange_core_s: CPU time of a learner cycle, for exchanging with other hosts.
    """
    ring = assemble(config, write_row=lambda row: None)
    try:
        act_s = _acting_s(ring)
        trajectory = num_bytes(_act(ring, 0))
    finally:
        ring.close_environments()
    per_cycle = config.learner.trajectories_per_cycle
    acting_core_s = max(0.0, ring_core_s(config) - learning.core_s) / per_cycle
    env_steps = config.actor.num_envs * config.actor.trajectory_length
    middle = config.run.total_env_steps // (2 * env_steps * per_cycle)
    updates = statistics.mean(
        ring.agent.num_updates_per_cycle(middle + offset) for offset in range(100)
    )
    num_actors, state = len(ring.actors), ring.learner.state_of_host
    return Host(
        parts=Parts(
            act=Cost(wall_s=act_s, core_s=acting_core_s),
            environment=_NOTHING,
            transfer=_NOTHING,
            update=Cost(wall_s=learning.wall_s, core_s=learning.core_s),
            env_steps=env_steps,
            trajectories_per_cycle=per_cycle,
        ),
        num_actors=num_actors,
        num_cores=len(os.sched_getaffinity(0)),
        gradient_bytes=num_bytes(state.networks),
        updates_per_cycle=updates,
        update_deviation_s=learning.deviation_s / max(1.0, updates) ** 0.5,
        exchange_core_s=exchange_core_s,
        num_envs=config.actor.num_envs,
        queue_slots=num_actors * queue_slots_per_actor(config.learner, num_actors),
        trajectory_bytes=trajectory,
        state_bytes=num_bytes((state.networks, state.opt_state, state.experience)),
        is_lock_step=config.learner.policy_lag == 0,
    )


def ring_core_s(config: Config, *, seconds: float = 5.0) -> float:
    """Measure the CPU time of a learner cycle in a run: acting, learning and all between them."""
    ring = assemble(config, write_row=lambda row: None)
    marks: list[tuple[int, float, float]] = []

    def mark() -> None:
        if ring.progress.startup_s is None:
            return
        marks.append((ring.learner.num_cycles, time.process_time(), time.monotonic()))
        if marks[-1][2] - marks[0][2] >= seconds:
            ring.run_end.goal = True

    try:
        run(ring, mode=config.run.mode, on_poll=mark)
    finally:
        ring.close_environments()
    (first, cores, _), *_, (last, cores_at_end, _) = marks
    return (cores_at_end - cores) / (last - first)


def _acting_s(ring: Ring, *, seconds: float = 2.0) -> float:
    """Measure the seconds of an act cycle while all actors of the ring act."""
    stop = threading.Event()

    def act(number: int) -> int:
        count = 0
        while not stop.is_set():
            _act(ring, number)
            count += 1
        return count

    for number in [*range(len(ring.actors))] * 2:  # compiles
        _act(ring, number)
    with concurrent.futures.ThreadPoolExecutor(len(ring.actors)) as threads:
        begin = time.perf_counter()
        counts = [threads.submit(act, number) for number in range(len(ring.actors))]
        time.sleep(seconds)
        stop.set()
        total = sum(count.result() for count in counts)
        return (time.perf_counter() - begin) * len(ring.actors) / total


def _act(ring: Ring, number: int) -> Any:
    networks = ring.learner.networks_on(ring.actor_devices[number])
    return jax.block_until_ready(ring.actors[number].run_cycle(networks, 0).trajectory)


def measured_locally(
    arguments: Sequence[str], num_hosts: int, *, env_steps: int, num_cores: int | None
) -> float:
    """Measure env steps per second of a run of `num_hosts` local processes."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = pathlib.Path(directory) / "run"
        command = ["-m", "sebulba.launch", "--local", str(num_hosts), "--virtual-devices", "1"]
        if num_cores is not None:
            command += ["--cores", str(num_cores)]
        flags = [*_ENDLESS, "--run.total-env-steps", str(env_steps), "--run-dir", str(run_dir)]
        subprocess.run(
            [sys.executable, *command, *arguments, *flags], check=True, capture_output=True
        )
        return json.loads((run_dir / "summary.json").read_text())["steps_per_second"]


def describe(points: Sequence[Point], measured: Mapping[int, float]) -> str:
    """Format predictions as a table, with measured rates and the predictions' ratio to them."""
    lines = [
        " hosts    cycle ms   all-reduce ms   Gbit/s     env steps/s   of linear  bottleneck"
        + ("    measured (predicted / measured)" if measured else "")
    ]
    for each in points:
        rate = measured.get(each.num_hosts)
        ratio = "" if rate is None else f"{rate:12,.0f} ({each.env_steps_per_s / rate:.2f})"
        lines.append(
            f"{each.num_hosts:6}  {1e3 * each.update_s:10.2f}  {1e3 * each.all_reduce_s:14.3f}"
            f"  {each.gbit_per_s:7.3f}  {each.env_steps_per_s:14,.0f}  {each.efficiency:10.2f}"
            f"  {each.bound:10}{ratio}"
        )
    where = bend(points)
    share = f"{BEND:.0%} of linear scaling"
    lines.append(f"below {share} from {where} hosts on" if where else f"never below {share}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="YAML file")
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    add("--latency-us", type=float, default=20.0, help="between two hosts; default 20")
    add("--bandwidth-gbit", type=float, default=100.0, help="of each host; default 100")
    add("--plan", type=int, metavar="N", help="print the plan of a run on N hosts")
    add("--check-local", type=int, nargs="*", default=[], help="also run as N local processes")
    add(
        "--cores",
        type=int,
        help="CPU cores of a host; default: all of this machine, and of local\
 processes an equal part",
    )
    add("--seconds", type=float, default=5.0, help="time of each measurement; default 5")
    add("--json", type=pathlib.Path, help="also write the result to this file")
    return parser


def main() -> None:
    """Run the benchmark."""
    arguments, flags = _parser().parse_known_args()
    harness.compile_once()
    config = load_config(arguments.config, [*flags, *_ENDLESS])
    numbers = sorted({1, 2, *arguments.check_local})
    learning = measure_learning_of(
        numbers, [arguments.config, *flags], arguments.seconds, arguments.cores
    )
    exchange_core_s = max(0.0, learning[2].core_s - learning[1].core_s)
    with on_cores_of_process(0, num_processes=1, cores_per_process=arguments.cores):
        host = measure_host(config, learning[1], exchange_core_s=exchange_core_s)
    document: dict[str, Any] = {
        "stamp": harness.stamp(),
        "host": dataclasses.asdict(host),
        "learning": {str(each): dataclasses.asdict(cost) for each, cost in learning.items()},
    }
    print(
        f"one host with CPU cores: {host.num_cores}; act cycle"
        f" {1e3 * host.parts.act.wall_s:.2f} ms, with {1e3 * host.parts.act.core_s:.2f} ms of CPU;"
        f" learner cycle {1e3 * learning[1].wall_s:.2f} ms, with {1e3 * learning[1].core_s:.2f} ms"
        f" of CPU, and {1e3 * exchange_core_s:.2f} ms for the exchange with another host"
    )
    between = Network(
        latency_s=1e-6 * arguments.latency_us, bytes_per_s=arguments.bandwidth_gbit * 1e9 / 8
    )
    points = scale(host, between, arguments.hosts)
    document["hosts"] = [dataclasses.asdict(each) for each in points]
    print(
        f"\nhosts: {arguments.latency_us:g} µs, {arguments.bandwidth_gbit:g} Gbit/s\n"
        f"{describe(points, {})}"
    )
    if arguments.check_local:
        costs = {
            each: Cost(wall_s=learning[each].wall_s, core_s=learning[each].core_s)
            for each in numbers
        }
        num_machine_cores = len(os.sched_getaffinity(0))
        points = scale_locally(host, costs, num_machine_cores=num_machine_cores)
        measured = {
            point.num_hosts: measured_locally(
                [arguments.config, *flags],
                point.num_hosts,
                env_steps=int(2 * arguments.seconds * point.env_steps_per_s),
                num_cores=arguments.cores,
            )
            for point in points
            if point.num_hosts in arguments.check_local
        }
        document["local processes"] = [dataclasses.asdict(each) for each in points]
        document["measured"] = measured
        print(f"\nlocal processes\n{describe(points, measured)}")
    if arguments.plan is not None:
        # Run lengths and goals are the config's own.
        plan = describe_plan(
            host,
            between,
            load_config(arguments.config, flags),
            num_hosts=arguments.plan,
            all_hosts=arguments.hosts,
        )
        document["plan"] = plan
        print(f"\n{plan}")
    if arguments.json is not None:
        write_json(arguments.json, document)


def measure_learning_of(
    numbers: Sequence[int], arguments: Sequence[str], seconds: float, num_cores: int | None
) -> dict[int, Learning]:
    """Measure the learner cycles of several numbers of processes."""
    learning: dict[int, Learning] = {}
    for num_hosts in numbers:
        # Several times as long as with fewer hosts, and at least as many as a deviation needs.
        slowest = max([each.wall_s for each in learning.values()], default=0.05)
        cycles = max(10, min(2000, int(seconds / (2 * slowest))))
        learning[num_hosts] = measure_learning(
            arguments, num_hosts=num_hosts, cycles=cycles, num_cores=num_cores
        )
    return learning


if __name__ == "__main__":
    main()
