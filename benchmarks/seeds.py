"""Measure the seeds of one config as one program, beside the same seeds in turn.

    python -m benchmarks.seeds [CONFIG] [--seeds 1 8 32] [--pairs 3] [--seconds 5]

For each number of seeds: the env steps per second of all seeds together, mapped and in turn, in
pairs without compilation; and the kernels, or operations of a CPU, of a learner cycle of all seeds.
In turn, all seeds together are as fast as one.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sebulba.aot.launches import count_launches
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.ring.anakin import Anakin
from sebulba.ring.make import made_ring
from sebulba.ring.mapped_seeds import MappedSeeds
from sebulba.ring.programs import RingPrograms
from sebulba.ring.records import DueTimes
from sebulba.ring.ring import Observer, Ring

_CONFIG = pathlib.Path(__file__).parent / "peers/gymnax_cartpole.yaml"


def without_end(config: Config) -> Config:
    """Return a config of one program that no goal ends."""
    run = dataclasses.replace(
        config.run, mode="anakin", stop_at_return=None, total_env_steps=2_000_000_000
    )
    return dataclasses.replace(config, run=run)


def measure(config: Config, num_seeds: int, *, num_pairs: int, seconds: float) -> dict[str, float]:
    """Return the figures of a number of seeds: medians over pairs of measurements."""
    with contextlib.ExitStack() as stack:

        def ring_of(seed: int, programs: RingPrograms | None) -> Ring:
            with_seed = dataclasses.replace(config, seed=seed)
            return stack.enter_context(made_ring(with_seed, programs=programs))

        first = ring_of(0, None)
        rings = [first, *(ring_of(seed, first.programs) for seed in range(1, num_seeds))]
        due = DueTimes(every_env_steps=(config.run.log_interval_env_steps,))
        mapped = MappedSeeds(rings, due)
        alone = ring_of(num_seeds, first.programs)
        alone.publish()
        anakin = Anakin(alone, due)
        observers: list[tuple[Observer, ...]] = [()] * num_seeds
        rates: dict[str, list[float]] = {"mapped": [], "in turn": []}
        for pair in range(num_pairs + 1):  # The first compiles.
            least = 0.0 if pair == 0 else seconds
            of_pair = {
                "mapped": _rate(lambda: mapped.run_call(observers), rings, least),
                "in turn": _rate(lambda: anakin.run_call(()), [alone], least),
            }
            if pair > 0:
                for name, rate in of_pair.items():
                    rates[name].append(rate)
        num_updates = mapped.next_cycles(None, 1)[1]
        call: Any = mapped.program(num_updates).call
        text = call.lower(*mapped.begin(), np.int32(1)).compile().as_text()
        ratios = [a / b for a, b in zip(rates["mapped"], rates["in turn"], strict=True)]
    return {
        **{f"{name}, env steps/s": statistics.median(each) for name, each in rates.items()},
        "ratio": statistics.median(ratios),
        "least ratio": min(ratios),
        "greatest ratio": max(ratios),
        "launches a cycle": count_launches(text).kernels,
    }


def _rate(run_call: Callable[[], object], rings: Sequence[Ring], seconds: float) -> float:
    before = sum(ring.progress.env_steps for ring in rings)
    begin = now = time.perf_counter()
    while now == begin or now - begin < seconds:
        run_call()
        now = time.perf_counter()
    return (sum(ring.progress.env_steps for ring in rings) - before) / (now - begin)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?", default=str(_CONFIG), help="a YAML file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8, 32], help="numbers of seeds")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    arguments = parser.parse_args()
    config = without_end(load_config(arguments.config, []))
    for num_seeds in arguments.seeds:
        figures = measure(config, num_seeds, num_pairs=arguments.pairs, seconds=arguments.seconds)
        parts = "  ".join(f"{name} {value:,.2f}" for name, value in figures.items())
        print(f"{num_seeds} seeds: {parts}", flush=True)


if __name__ == "__main__":
    main()
