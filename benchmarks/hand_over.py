"""Measure what one program hands to Python after its learner cycles, and how long counting takes.

    python -m benchmarks.hand_over [CONFIG …] [--num-envs 16 2048 16384] [--cycles 20]
    python -m benchmarks.hand_over --remote CONFIG … [--cycles 200]

For each config and number of environments, from the first episodes on: the bytes of a cycle, the
milliseconds of a cycle for which Python counts, those for which it waits for the device, and the
cycles per second of a program that takes no time, since it returns the results of another.

With `--remote`: the bytes and CPU milliseconds of a trajectory of a local actor and of a remote one
on this machine, in its process, here and in the other processes of Ray, with new networks for each.
Nothing learns. Needs the extra `ray`.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import jax

from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.devices.memory import num_bytes
from sebulba.devices.xla_workarounds import keep_freed_memory
from sebulba.processes.ray_cluster import ADDRESS_VARIABLE
from sebulba.remote.collector import RemoteCollector
from sebulba.remote.make import RemoteCollectors
from sebulba.remote.ray_processes import ray_processes
from sebulba.ring.anakin import Anakin
from sebulba.ring.clocks import METRICS, UPDATE
from sebulba.ring.make import made_ring
from sebulba.ring.one_program import ProgramOfCycles
from sebulba.ring.records import DueTimes
from sebulba.ring.ring import Ring

_FOLDER = pathlib.Path(__file__).parent
_CONFIGS = (_FOLDER / "peers/gymnax_cartpole.yaml", _FOLDER.parent / "configs/impala_catch.yaml")


def with_envs(config: Config, num_envs: int, *, cycles: int) -> Config:
    """Return a config of one program with `num_envs` environments, which no goal ends."""
    actor = dataclasses.replace(config.actor, threads_per_device=1, num_envs=num_envs)
    rows = num_envs * actor.trajectory_length * config.learner.trajectories_per_cycle
    run = dataclasses.replace(
        config.run,
        mode="anakin",
        stop_at_return=None,
        total_env_steps=2_000_000_000,
        log_interval_env_steps=cycles * rows,
    )
    return dataclasses.replace(config, actor=actor, run=run)


def measure(config: Config, *, cycles: int) -> dict[str, float]:
    """Run learner cycles of one program; return the figures of a cycle."""
    with made_ring(config) as ring:
        ring.publish()
        anakin = Anakin(ring, DueTimes(every_env_steps=(config.run.log_interval_env_steps,)))
        clock, learner = ring.learner.clock, ring.learner
        before: dict[str, float] = {}
        first = 0
        for call in itertools.count():
            anakin.run_call(())
            if call == 0:  # It was compiled.
                before, first = dict(clock.seconds), learner.num_cycles
            elif learner.num_cycles - first >= cycles:
                break
        num_cycles = learner.num_cycles - first
        spent = {name: clock.seconds[name] - before.get(name, 0.0) for name in (METRICS, UPDATE)}
        program = next(iter(learner.programs.of_cycles.values()))[1]
        figures = {
            "bytes a cycle": num_bytes(program.shapes),
            "counting ms": 1e3 * spent[METRICS] / num_cycles,
            "waiting ms": 1e3 * spent[UPDATE] / num_cycles,
            "episodes": ring.progress.window.num_episodes / learner.num_cycles,
        }
        figures["cycles/s at no time"] = _cycles_per_second(anakin, program)
    return figures


def _cycles_per_second(anakin: Anakin, program: ProgramOfCycles, *, seconds: float = 2.0) -> float:
    """Return the cycles per second of a program that returns the results of an earlier call."""
    anakin._calls.drop_ahead()
    learner = anakin.ring.learner
    results = jax.block_until_ready(program.call(*anakin.begin(), program.capacity))
    made = learner.programs.of_cycles
    for num_updates, (act_cycles, each) in list(made.items()):
        made[num_updates] = (act_cycles, dataclasses.replace(each, call=lambda *_: results))
    begin, first = time.perf_counter(), learner.num_cycles
    while time.perf_counter() - begin < seconds:
        anakin.run_call(())
    return (learner.num_cycles - first) / (time.perf_counter() - begin)


class Acting:
    """The act cycles of a ring's only actor, with networks that are new in each."""

    def __init__(self, ring: Ring):
        self._actor = ring.actors[0]
        self._networks = ring.learner.networks_on(self._actor.device)
        self._point = self._actor.point

    def __call__(self, num_cycles: int) -> dict[str, float]:
        """Act; return the milliseconds and bytes of a trajectory."""
        collector = self._actor.collector
        before, begin = _spent(collector), time.perf_counter()
        for _ in range(num_cycles):
            networks = jax.tree.map(lambda leaf: leaf, self._networks)  # new for the collector
            collected = jax.block_until_ready(collector.collect(networks, self._point))
            self._point = dataclasses.replace(
                self._point, cycle=self._point.cycle + 1, carry=collected.carry
            )
        seconds = time.perf_counter() - begin
        spent = {name: value - before[name] for name, value in _spent(collector).items()}
        return {name: value / num_cycles for name, value in {"ms": 1e3 * seconds, **spent}.items()}


def _spent(collector: Any) -> dict[str, float]:
    """Return the CPU milliseconds of all processes, and the bytes that crossed, so far."""
    spent = {"CPU ms here": 1e3 * time.process_time()}
    if isinstance(collector, RemoteCollector):
        counts = collector.counter.counts
        spent |= {
            "CPU ms there": 1e3 * counts.process_cpu_s,
            "CPU ms of Ray": 1e3 * _cpu_s_of_ray(),
            "bytes sent": counts.bytes_sent,
            "bytes received": counts.bytes_received,
        }
    return spent


def _cpu_s_of_ray() -> float:
    """Return the CPU seconds of the processes of the Ray that was started here, without actors."""
    seconds, parents = 0.0, {os.getpid()}
    # A parent has a smaller number than what it has started, unless the numbers started again.
    for pid in sorted(int(each) for each in os.listdir("/proc") if each.isdecimal()):
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            if int(stat[1]) in parents and "ActingProcess" not in line:
                parents.add(pid)
                seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def measure_remote(config: Config, *, cycles: int, repeats: int = 5) -> dict[str, dict[str, float]]:
    """Have trajectories acted by a local and a remote actor in turn; return medians of each."""
    if config.run.keep_memory:
        keep_freed_memory()
    with contextlib.ExitStack() as stack:
        acting = {}
        for name, remote in (("local", 0), ("remote", 1)):
            actor = dataclasses.replace(config.actor, threads_per_device=1 - remote, remote=remote)
            own, make_collector = dataclasses.replace(config, actor=actor), None
            if remote:
                processes = stack.enter_context(ray_processes(actor, on_message=print))
                make_collector = RemoteCollectors(processes, own)
            ring = stack.enter_context(made_ring(own, make_collector=make_collector))
            acting[name] = Acting(ring)
            acting[name](3)  # It compiles.
        turns = [{name: each(cycles) for name, each in acting.items()} for _ in range(repeats)]
        return {
            name: {
                figure: statistics.median(turn[name][figure] for turn in turns)
                for figure in turns[0][name]
            }
            for name in acting
        }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="*", default=_CONFIGS, help="YAML files")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[16, 2_048, 16_384])
    parser.add_argument("--cycles", type=int, default=20, help="cycles that are measured")
    parser.add_argument("--remote", action="store_true", help="measure a remote actor instead")
    arguments = parser.parse_args()
    if arguments.remote:
        if os.environ.get(ADDRESS_VARIABLE):
            sys.exit(f"expected no {ADDRESS_VARIABLE}: Ray's other processes have to be here")
        for path in arguments.configs:
            measured = measure_remote(load_config(str(path), []), cycles=arguments.cycles)
            for name, figures in measured.items():
                parts = "  ".join(f"{figure} {value:,.2f}" for figure, value in figures.items())
                print(f"{pathlib.Path(path).stem}, {name} actor: {parts}", flush=True)
        return
    for path, num_envs in itertools.product(arguments.configs, arguments.num_envs):
        config = with_envs(load_config(str(path), []), num_envs, cycles=arguments.cycles)
        figures = measure(config, cycles=arguments.cycles)
        parts = "  ".join(f"{name} {value:,.3f}" for name, value in figures.items())
        print(f"{pathlib.Path(path).stem}, {num_envs} environments: {parts}", flush=True)


if __name__ == "__main__":
    main()
