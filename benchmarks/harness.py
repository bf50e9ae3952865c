"""What every benchmark here does: interleaved repeats, ratios within a repeat, stamp, table, JSON.

Several people's work shares most machines, so a rate alone says little. Everything is measured in
turn, again and again, in one process; a ratio is taken within each repeat, and its median and range
are shown.
"""

import argparse
import atexit
import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from sebulba.storage.metrics.files import write_json
from sebulba.storage.run_dir import describe_run

MIN_REPEATS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """One number for each repeat."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the repeats."""
        return statistics.median(self.values)

    def over(self, other: "Series") -> "Series":
        """Returns the ratio to another series, repeat by repeat."""
        return combine(lambda a, b: a / b, self, other)

    def document(self) -> dict[str, Any]:
        """Returns what the JSON file holds."""
        return {
            "median": self.median,
            "low": min(self.values),
            "high": max(self.values),
            "values": list(self.values),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """Work that timed itself, to leave its own start-up out."""

    amount: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What a benchmark found out."""

    name: str
    unit: str  # of the rates
    rates: Mapping[str, Series]
    ratios: Mapping[str, Series]
    settings: Mapping[str, Any]
    microseconds: Mapping[str, Series] = dataclasses.field(default_factory=dict)


def combine(function: Callable[..., float], *series: Series) -> Series:
    """Returns `function` of several series, repeat by repeat."""
    columns = (each.values for each in series)
    return Series(values=tuple(function(*row) for row in zip(*columns, strict=True)))


def serial_limit(*rates: Series) -> Series:
    """Returns the rate of doing everything one after the other, each at the rate it has alone."""
    return combine(lambda *row: 1 / sum(1 / rate for rate in row), *rates)


def interleave(work: Mapping[str, Callable[[], float | Timed]], repeats: int) -> dict[str, Series]:
    """Runs all work once untimed, which compiles it, and then `repeats` times in turn.

    Args:
        work: by name; each returns how much of the unit it did, and only once it is really done.
        repeats: timed rounds; every other one goes backwards.

    Returns:
        Units a second.
    """
    rates: dict[str, list[float]] = {name: [] for name in work}
    for run in work.values():
        run()
    for repeat in range(repeats):
        for name in sorted(work, key=list(work).index, reverse=bool(repeat % 2)):
            rates[name].append(rate_of(work[name]))
    return {name: Series(values=tuple(values)) for name, values in rates.items()}


def rate_of(work: Callable[[], float | Timed]) -> float:
    """Does the work once; returns units a second."""
    begin = time.perf_counter()
    done = work()
    if not isinstance(done, Timed):
        done = Timed(amount=done, seconds=time.perf_counter() - begin)
    return done.amount / done.seconds


def compile_once() -> None:
    """Lets work that builds everything anew find its programs compiled, as long as this process."""
    cache = tempfile.mkdtemp(prefix="sebulba-benchmark-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the flags that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    parser.add_argument(
        "--repeats", type=_repeats, default=MIN_REPEATS, help="interleaved repeats (default 5)"
    )
    return parser


def report(results: Sequence[Result], path: pathlib.Path | None) -> None:
    """Prints the results, and writes them to `path` with the stamp if there is one."""
    described = stamp()
    print(
        f"{', '.join(described['devices'])}; {described['cpu_count']} CPU cores, load"
        f" {described['load_average']:.1f}; jax {described['versions']['jax']}; commit"
        f" {described['commit']}"
    )
    for result in results:
        print(describe(result))
    if path is not None:
        write_json(path, {"stamp": described, "results": [document(each) for each in results]})


def describe(result: Result) -> str:
    """Returns a result as a table: the median of the repeats, and their range."""
    lines = [f"\n{result.name} ({', '.join(f'{k} {v}' for k, v in result.settings.items())})"]
    width = max(map(len, (*result.rates, *result.ratios, *result.microseconds)))
    tables = (
        (result.unit, result.rates, 1),
        ("ratio", result.ratios, 3),
        ("µs", result.microseconds, 1),
    )
    for unit, table, digits in tables:
        for name, series in table.items():
            low, high = min(series.values), max(series.values)
            span = f"{low:,.{digits}f} – {high:,.{digits}f}"
            lines.append(f"  {name:{width}}  {series.median:>14,.{digits}f}  {span:>27}  {unit}")
    return "\n".join(lines)


def document(result: Result) -> dict[str, Any]:
    """Returns what the JSON file holds of a result."""
    return {
        "name": result.name,
        "unit": result.unit,
        "settings": dict(result.settings),
        **{
            kind: {name: series.document() for name, series in getattr(result, kind).items()}
            for kind in ("rates", "ratios", "microseconds")
        },
    }


def stamp() -> dict[str, Any]:
    """Returns what the figures depend on: the run's description, the machine, the commit."""
    return describe_run() | {
        "cpu_count": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "commit": _commit(),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        run = subprocess.run(
            command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def _repeats(text: str) -> int:
    repeats = int(text)
    if repeats < MIN_REPEATS:
        raise argparse.ArgumentTypeError(f"expected at least {MIN_REPEATS}, got {repeats}")
    return repeats
