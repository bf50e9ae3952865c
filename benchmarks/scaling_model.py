"""Predict env steps per second and update time for several numbers of hosts, from measured parts.

    python -m benchmarks.scaling_model CONFIG [--hosts 1 2 4] [--plan 256] [--check-local 1 2 4]

Any other flag is the config's. This machine is measured as one host: the cost of the parts of its
ring, the bytes of a gradient, the spread of its updates. The model is described in
`benchmarks.scaling_model_prediction`. Latency and bandwidth between hosts are assumptions, set by
flags; between processes of this machine they are measured.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from benchmarks import harness
from benchmarks.scaling_model_network import measure_loopback
from benchmarks.scaling_model_plan import describe_plan
from benchmarks.scaling_model_prediction import BEND, Host, Network, Point, bend, scale
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.config.run_spec import queue_slots_per_actor
from sebulba.devices.memory_plan import num_bytes
from sebulba.devices.split import plan_devices
from sebulba.run.assembly import Ring, assemble
from sebulba.storage.metrics.files import write_json
from sebulba.tools.plan.measuring import for_measuring, learner_cycle, measure_parts


def measure_host(config: Config, *, seconds: float) -> Host:
    """Measure this machine as one host of the config."""
    parts = measure_parts(config, seconds=seconds)
    ring = assemble(for_measuring(config), write_row=lambda row: None)
    try:
        cycle_s = _durations(ring, config, seconds)
        middle = config.run.total_env_steps // (2 * parts.env_steps * parts.trajectories_per_cycle)
        updates = statistics.mean(
            ring.agent.num_updates_per_cycle(middle + offset) for offset in range(100)
        )
        state = ring.learner.state_of_host
        trajectory = (
            ring.actors[0].run_cycle(ring.learner.networks_on(ring.actor_devices[0]), 0).trajectory
        )
    finally:
        ring.close_environments()
    actor_devices = plan_devices(config.devices, jax.local_devices()).actor
    num_actors = config.actor.threads_per_device * len(actor_devices)
    return Host(
        parts=parts,
        num_actors=num_actors,
        num_cores=len(os.sched_getaffinity(0)),
        gradient_bytes=num_bytes(state.networks),
        num_envs=config.actor.num_envs,
        queue_slots=num_actors * queue_slots_per_actor(config.learner, num_actors),
        trajectory_bytes=num_bytes(trajectory),
        state_bytes=num_bytes((state.networks, state.opt_state, state.experience)),
        updates_per_cycle=updates,
        update_deviation_s=statistics.stdev(cycle_s) / max(1.0, updates) ** 0.5,
        is_lock_step=config.learner.policy_lag == 0,
    )


def measured_locally(config_path: str, flags: Sequence[str], num_hosts: int) -> float:
    """Measure env steps per second of a run of `num_hosts` local processes."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = pathlib.Path(directory) / "run"
        command = ["-m", "sebulba.launch", "--local", str(num_hosts), "--virtual-devices", "1"]
        subprocess.run(
            [sys.executable, *command, config_path, *flags, "--run-dir", str(run_dir)],
            check=True,
            capture_output=True,
        )
        return json.loads((run_dir / "summary.json").read_text())["steps_per_second"]


def describe(points: Sequence[Point], measured: Mapping[int, float]) -> str:
    """Format predictions as a table, with the measured rates and their ratio to the prediction."""
    lines = [" hosts   update ms   all-reduce ms     env steps/s   of linear  bottleneck  measured"]
    for each in points:
        rate = measured.get(each.num_hosts)
        ratio = "" if rate is None else f"{rate:,.0f} ({rate / each.env_steps_per_s:.2f})"
        lines.append(
            f"{each.num_hosts:6}  {1e3 * each.update_s:10.2f}  {1e3 * each.all_reduce_s:14.3f}"
            f"  {each.env_steps_per_s:14,.0f}  {each.efficiency:10.2f}  {each.bound:10}  {ratio}"
        )
    where = bend(points)
    share = f"{BEND:.0%} of linear scaling"
    lines.append(f"below {share} from {where} hosts on" if where else f"never below {share}")
    return "\n".join(lines)


def _durations(ring: Ring, config: Config, seconds: float) -> list[float]:
    """Measure the seconds of each of at least 10 learner cycles."""
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
    add = parser.add_argument
    add("--latency-us", type=float, default=20.0, help="between two hosts; default 20")
    add("--bandwidth-gbit", type=float, default=100.0, help="of each host; default 100")
    add("--plan", type=int, metavar="N", help="print the plan of a run on N hosts")
    add("--check-local", type=int, nargs="*", default=[], help="also run as N local processes")
    add("--seconds", type=float, default=2.0, help="time to measure each part; default 2")
    add("--json", type=pathlib.Path, help="also write the result to this file")
    return parser


def _show(
    name: str, network: Network, points: Sequence[Point], measured: Mapping[int, float]
) -> dict[str, object]:
    """Print a table, and return it as written to JSON."""
    latency_us, gbit = 1e6 * network.latency_s, 8e-9 * network.bytes_per_s
    print(f"\n{name}: {latency_us:.0f} µs, {gbit:.1f} Gbit/s\n{describe(points, measured)}")
    return {
        "network": dataclasses.asdict(network),
        "points": [dataclasses.asdict(each) for each in points],
        "measured": measured,
    }


def main() -> None:
    """Run the benchmark."""
    arguments, flags = _parser().parse_known_args()
    config = load_config(arguments.config, flags)
    host = measure_host(config, seconds=arguments.seconds)
    document: dict[str, Any] = {"stamp": harness.stamp(), "host": dataclasses.asdict(host)}
    between = Network(
        latency_s=1e-6 * arguments.latency_us, bytes_per_s=arguments.bandwidth_gbit * 1e9 / 8
    )
    points = scale(host, between, arguments.hosts, is_local=False)
    document["hosts"] = _show("hosts", between, points, {})
    if arguments.check_local:
        loopback = measure_loopback(host.gradient_bytes)
        points = scale(host, loopback, arguments.check_local, is_local=True)
        measured = {
            count: measured_locally(arguments.config, flags, count)
            for count in arguments.check_local
        }
        document["local processes"] = _show("local processes", loopback, points, measured)
    if arguments.plan is not None:
        plan = describe_plan(
            host, between, config, num_hosts=arguments.plan, all_hosts=arguments.hosts
        )
        document["plan"] = plan
        print(f"\n{plan}")
    if arguments.json is not None:
        write_json(arguments.json, document)


if __name__ == "__main__":
    main()
