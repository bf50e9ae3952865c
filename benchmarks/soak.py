"""Run many learner cycles, and watch memory, threads, open files and compilations.

    python -m benchmarks.soak [--cycles 10000] [--json FILE]

They are sampled several times per second while IMPALA's CartPole config runs, and should not grow
after the first tenth of the cycles. Linux only.
"""

import argparse
import dataclasses
import os
import pathlib
import re

import jax

from benchmarks import harness, rings
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.ring.make import made_ring
from sebulba.ring.ring import Observer
from sebulba.ring.running import run
from sebulba.storage.metrics.files import write_json

_COMPILED = "/jax/core/compile/backend_compile_duration"
CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "impala_cartpole.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The resources of the process at one moment."""

    cycle: int  # learner cycle
    resident_megabytes: float
    threads: int
    open_files: int
    compilations: int


def watch(config: Config, *, cycles: int) -> list[Sample]:
    """Run the config for about `cycles` learner cycles, and return the samples."""
    rows = config.actor.num_envs * config.actor.trajectory_length
    config = rings.of_length(config, cycles * rows * config.learner.trajectories_per_cycle)
    compilations = 0

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        nonlocal compilations
        compilations += event == _COMPILED

    jax.monitoring.register_event_duration_secs_listener(count)
    samples: list[Sample] = []

    class Sampling(Observer):
        def on_poll(self) -> None:
            samples.append(_sample(ring.learner.num_cycles, compilations))

    try:
        with made_ring(config) as ring:
            run(ring, mode="threads", observers=[Sampling()])
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    return samples


def growth(samples: list[Sample]) -> dict[str, float]:
    """Return the growth of each number after the first tenth of the cycles."""
    last = samples[-1]
    first = next(each for each in samples if each.cycle >= last.cycle / 10)
    return {
        field.name: getattr(last, field.name) - getattr(first, field.name)
        for field in dataclasses.fields(Sample)
        if field.name != "cycle"
    }


def _sample(cycle: int, compilations: int) -> Sample:
    status = pathlib.Path("/proc/self/status").read_text()
    (resident,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    (threads,) = re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE)
    return Sample(
        cycle=cycle,
        resident_megabytes=int(resident) / 1e3,
        threads=int(threads),
        open_files=len(os.listdir("/proc/self/fd")),
        compilations=compilations,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=10_000, help="learner cycles (default 10000)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    arguments = parser.parse_args()
    samples = watch(load_config(str(CONFIG)), cycles=arguments.cycles)
    for sample in samples[:: max(1, len(samples) // 20)]:
        print(sample)
    print("growth after the first tenth of the cycles:", growth(samples))
    if arguments.json:
        document = {
            "stamp": harness.stamp(),
            "growth": growth(samples),
            "samples": [dataclasses.asdict(sample) for sample in samples],
        }
        write_json(arguments.json, document)


if __name__ == "__main__":
    main()
