"""Measure the learner cycle of several hosts, as processes of this machine that do not act.

`benchmarks.scaling_model` starts it once for each host, as `python -m
benchmarks.scaling_model_learning COORDINATOR NUM_HOSTS NUMBER CYCLES CONFIG [FLAGS]`. Process 0
prints the measurement as JSON.
"""

import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import jax

from sebulba.config import Config, DistributedConfig
from sebulba.config.loading import load_config
from sebulba.hosts import connection as hosts
from sebulba.hosts.agreement import TrajectoryReport
from sebulba.hosts.cores import on_cores_of_process
from sebulba.run.assembly import Ring, assemble
from sebulba.tools.plan.measuring import for_measuring, learner_cycle

_WARM_UP_CYCLES = 5
_DEADLINE_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """A learner cycle of several hosts: updates, agreement of the hosts, and staging."""

    wall_s: float  # mean
    core_s: float  # CPU time of one host
    deviation_s: float  # standard deviation of the wall times


def measure_learning(
    arguments: Sequence[str], *, num_hosts: int, cycles: int, num_cores: int | None = None
) -> Learning:
    """Run the processes of a config.

    Args:
        arguments: its file and flags.
        num_hosts: number of processes.
        cycles: learner cycles that are measured.
        num_cores: of each process; None: an equal part of the machine's.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.scaling_model_learning", coordinator]
    processes = []
    for number in range(num_hosts):
        with on_cores_of_process(number, num_processes=num_hosts, cores_per_process=num_cores):
            processes.append(
                subprocess.Popen(
                    [*command, str(num_hosts), str(number), str(cycles), *arguments],
                    env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
    try:
        first, *_ = [process.communicate(timeout=_DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return Learning(**json.loads(first.splitlines()[-1]))


def whole_cycle(ring: Ring, config: Config) -> Callable[[], None]:
    """Return a function that runs a learner cycle, with what hosts tell each other after it."""
    learn = learner_cycle(ring, config)
    report = TrajectoryReport(env_steps=1, policy_lag=0, num_episodes=0, episodes=())
    reports = [report] * config.learner.trajectories_per_cycle

    def run() -> None:
        learn()
        ring.progress.agreement.decide(reports)

    return run


def _measure(config: Config, cycles: int) -> Learning:
    ring = assemble(for_measuring(config), write_row=lambda row: None)
    try:
        run = whole_cycle(ring, config)
        for _ in range(_WARM_UP_CYCLES):
            run()
        durations, cores = [], time.process_time()
        for _ in range(cycles):
            begin = time.perf_counter()
            run()
            durations.append(time.perf_counter() - begin)
        return Learning(
            wall_s=statistics.mean(durations),
            core_s=(time.process_time() - cores) / cycles,
            deviation_s=statistics.stdev(durations),
        )
    finally:
        ring.close_environments()


def main() -> None:
    """Run one of the processes."""
    coordinator, num_hosts, number, cycles, path, *flags = sys.argv[1:]
    if int(num_hosts) > 1:
        hosts.connect(
            DistributedConfig(
                mode="manual",
                coordinator=coordinator,
                num_processes=int(num_hosts),
                process_id=int(number),
            )
        )
    learning = _measure(load_config(path, flags), int(cycles))
    if jax.process_index() == 0:
        print(json.dumps(dataclasses.asdict(learning)), flush=True)
    if int(num_hosts) > 1:
        hosts.disconnect()


if __name__ == "__main__":
    main()
