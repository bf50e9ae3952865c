"""Measure what one program hands to Python after its learner cycles, and how long counting takes.

    python -m benchmarks.hand_over [CONFIG …] [--num-envs 16 2048 16384] [--cycles 20]

For each config and number of environments, from the first episodes on: the bytes of a cycle, the
milliseconds of a cycle for which Python counts, those for which it waits for the device, and the
cycles per second of a program that takes no time, since it returns the results of another.
"""

import argparse
import dataclasses
import itertools
import pathlib
import time
from typing import Any

import jax

from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.devices.memory import num_bytes
from sebulba.ring.anakin import Anakin
from sebulba.ring.clocks import METRICS, UPDATE
from sebulba.ring.make import made_ring
from sebulba.ring.records import DueTimes

_FOLDER = pathlib.Path(__file__).parent
_CONFIGS = (_FOLDER / "peers/gymnax_cartpole.yaml", _FOLDER.parent / "configs/impala_catch.yaml")


def with_envs(config: Config, num_envs: int, *, cycles: int) -> Config:
    """Return a config of one program with so many environments, which no goal ends."""
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


def _cycles_per_second(anakin: Anakin, program: Any, *, seconds: float = 2.0) -> float:
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


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="*", default=_CONFIGS, help="YAML files")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[16, 2_048, 16_384])
    parser.add_argument("--cycles", type=int, default=20, help="learner cycles that are measured")
    arguments = parser.parse_args()
    for path, num_envs in itertools.product(arguments.configs, arguments.num_envs):
        config = with_envs(load_config(str(path), []), num_envs, cycles=arguments.cycles)
        figures = measure(config, cycles=arguments.cycles)
        parts = "  ".join(f"{name} {value:,.3f}" for name, value in figures.items())
        print(f"{pathlib.Path(path).stem}, {num_envs} environments: {parts}", flush=True)


if __name__ == "__main__":
    main()
