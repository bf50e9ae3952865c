"""Measure what checksums cost: whole runs with and without them, in turns.

    python -m benchmarks.checksums CONFIG … [--env-steps 500000] [--repeats 5]

Each repeat is a new run of each kind, measured without start-up and compilation. With the default
number of env steps, the ten rows of the first learner cycles count as little as in a real run.
"""

import dataclasses
import functools
import pathlib
import tempfile

from benchmarks import harness, rings
from benchmarks.harness import Result, Timed
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.run import training
from sebulba.storage.checksums import checksums_of
from sebulba.storage.metrics.console import LogDisplay


def train(config: Config, *, checksums: bool) -> Timed:
    """Train in a new directory, and return the env steps and their time after the start-up."""
    with tempfile.TemporaryDirectory(prefix="sebulba-benchmark-") as directory:
        path = pathlib.Path(directory) / "run"
        run = dataclasses.replace(config.run, checksums=checksums)
        config = dataclasses.replace(config, run=run, run_dir=str(path))
        finished = training.train(config, display=LogDisplay())
        if finished.end.failure is not None:
            raise finished.end.failure
        assert bool(checksums_of(path)) == checksums
        rate = finished.summary["steps_per_second"]
    return Timed(amount=rate, seconds=1.0)


def measure(config: Config, *, repeats: int) -> Result:
    """Measure env steps per second with and without checksums."""
    kinds = {"with checksums": True, "without": False}
    work = {
        name: functools.partial(train, config, checksums=checksums)
        for name, checksums in kinds.items()
    }
    rates = harness.interleave(work, repeats)
    return Result(
        name=f"checksums, {config.agent.name} on {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios={"with checksums / without": rates["with checksums"].over(rates["without"])},
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
