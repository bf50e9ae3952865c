"""Measure what checksums cost: whole runs with and without them, in turns.

    python -m benchmarks.checksums CONFIG … [--env-steps 500000] [--repeats 5]

Each repeat is a new run of each kind, measured without start-up and compilation. Runs in turns
differ by more than checksums cost, so clocks around the rows also give their share of the time: CPU
time, and time of the learner's thread, which may wait there for a core that other threads use. With
the default number of env steps, the ten rows of the first learner cycles count as little as in a
real run.
"""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from unittest import mock

import sebulba
from benchmarks import harness, rings
from benchmarks.harness import Result, Series, Timed
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.ring.records import CycleReport
from sebulba.run.checksums import ChecksumRows
from sebulba.storage.checksums import checksums_of


@dataclasses.dataclass
class Spent:
    """Seconds that the learner's thread spends on rows of checksums."""

    cpu: float = 0.0
    time: float = 0.0  # also while other threads have its core


def train(config: Config, *, checksums: bool) -> tuple[Timed, Spent]:
    """Train in a new directory.

    Returns:
        The env steps and their seconds after the start-up, and those of them on checksums.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sebulba-benchmark-") as directory,
        seconds_of_rows() as spent,
    ):
        run = dataclasses.replace(config.run, checksums=checksums)
        config = dataclasses.replace(config, run=run, run_dir=f"{directory}/run")
        result = sebulba.train(config, verbose=False)
        assert bool(checksums_of(result.run_dir)) == checksums
        rate = result.summary["steps_per_second"]
    return Timed(amount=result.env_steps, seconds=result.env_steps / rate), spent


@contextlib.contextmanager
def seconds_of_rows() -> Iterator[Spent]:
    """Sum up what learner cycles spend on rows of checksums during the block."""
    spent = Spent()
    on_cycle = ChecksumRows.on_cycle

    def timed(rows: ChecksumRows, report: CycleReport) -> None:
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        on_cycle(rows, report)
        spent.time += time.perf_counter() - begin
        spent.cpu += time.thread_time() - begin_cpu

    with mock.patch.object(ChecksumRows, "on_cycle", timed):
        yield spent


def measure(config: Config, *, repeats: int) -> Result:
    """Measure env steps per second with and without checksums, and the time of their rows."""
    shares: list[tuple[float, float]] = []

    def with_checksums() -> Timed:
        done, spent = train(config, checksums=True)
        shares.append((spent.cpu / done.seconds, spent.time / done.seconds))
        return done

    rates = harness.interleave(
        {
            "with checksums": with_checksums,
            "without": lambda: train(config, checksums=False)[0],
        },
        repeats,
    )
    cpu, time_of_thread = zip(*shares[-repeats:], strict=True)  # the first run compiles
    return Result(
        name=f"checksums, {config.agent.name} on {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios={
            "with checksums / without": rates["with checksums"].over(rates["without"]),
            "CPU time of rows / time": Series(values=cpu),
            "rows / time": Series(values=time_of_thread),
        },
        settings={"env steps": config.run.total_env_steps, "mode": config.run.mode},
    )


def main() -> None:
    """Run the benchmark."""
    parser = harness.parser(__doc__)
    parser.add_argument("configs", nargs="+", metavar="CONFIG", help="file, or name of a config")
    parser.add_argument("--env-steps", type=int, default=500_000, help="env steps of each run")
    parser.add_argument("--mode", help="run.mode; default: the config's")
    arguments = parser.parse_args()
    harness.compile_once()
    flags = [] if arguments.mode is None else ["--run.mode", arguments.mode]
    configs = [
        rings.of_length(load_config(name, flags), arguments.env_steps) for name in arguments.configs
    ]
    results = [measure(config, repeats=arguments.repeats) for config in configs]
    harness.report(results, arguments.json)


if __name__ == "__main__":
    main()
