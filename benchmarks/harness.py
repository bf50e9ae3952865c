"""The harness of all benchmarks: interleaved repeats, ratios within a repeat, table, JSON.

Other work shares most machines, so a rate alone is not reliable. Everything is measured in turn, in
several repeats, in one process. Ratios are taken within a repeat and shown with median and range.
"""

import argparse
import atexit
import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
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
    """One measurement per repeat."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the repeats."""
        return statistics.median(self.values)

    def over(self, other: "Series") -> "Series":
        """Return the ratios to another series, one per repeat."""
        return combine(lambda a, b: a / b, self, other)

    def document(self) -> dict[str, Any]:
        """Return the series as written to JSON."""
        return {
            "median": self.median,
            "low": min(self.values),
            "high": max(self.values),
            "values": list(self.values),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """The amount of work done, and its own measurement of the time, such as without start-up."""

    amount: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The measurements of a benchmark."""

    name: str
    unit: str  # unit of the rates, such as "env steps/s"
    rates: Mapping[str, Series]
    ratios: Mapping[str, Series]
    settings: Mapping[str, Any]
    microseconds: Mapping[str, Series] = dataclasses.field(default_factory=dict)


def combine(function: Callable[..., float], *series: Series) -> Series:
    """Apply a function to several series, repeat by repeat."""
    columns = (each.values for each in series)
    return Series(values=tuple(function(*row) for row in zip(*columns, strict=True)))


def serial_limit(*rates: Series) -> Series:
    """Return the rate of doing all parts one after the other, each at its own rate."""
    return combine(lambda *row: 1 / sum(1 / rate for rate in row), *rates)


def interleave(work: Mapping[str, Callable[[], float | Timed]], repeats: int) -> dict[str, Series]:
    """Run all work once untimed, which compiles it, and then `repeats` times in turn.

    Args:
        work: functions by name; each blocks until its work is done, and returns the amount.
        repeats: timed rounds; every second one runs in reverse order.

    Returns:
        Amounts per second.
    """
    rates: dict[str, list[float]] = {name: [] for name in work}
    for run in work.values():
        run()
    for repeat in range(repeats):
        for name in sorted(work, key=list(work).index, reverse=bool(repeat % 2)):
            rates[name].append(rate_of(work[name]))
    return {name: Series(values=tuple(values)) for name, values in rates.items()}


def rate_of(work: Callable[[], float | Timed]) -> float:
    """Do the work once, and return its amount per second."""
    begin = time.perf_counter()
    done = work()
    if not isinstance(done, Timed):
        done = Timed(amount=done, seconds=time.perf_counter() - begin)
    return done.amount / done.seconds


def compile_once() -> None:
    """Cache compiled programs until this process ends, for work that rebuilds its ring."""
    cache = tempfile.mkdtemp(prefix="sebulba-benchmark-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of all benchmarks."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    parser.add_argument(
        "--repeats", type=_repeats, default=MIN_REPEATS, help="interleaved repeats (default 5)"
    )
    return parser


def parse_with_config(
    parser: argparse.ArgumentParser, default: pathlib.Path
) -> tuple[argparse.Namespace, str, list[str]]:
    """Parse a command line that begins with a config, or has none, and may have flags of it.

    Returns:
        The benchmark's own flags, the config's file, and the config's flags.
    """
    argv = sys.argv[1:]
    # No argument of the parser: it would take the value of a config's flag for it.
    config = argv.pop(0) if argv and not argv[0].startswith("-") else str(default)
    arguments, flags = parser.parse_known_args(argv)
    return arguments, config, flags


def report(results: Sequence[Result], path: pathlib.Path | None) -> None:
    """Print the results, and write them to `path`, unless it is None."""
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
    """Format a result as a table: median and range over the repeats."""
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
    """Return a result as written to JSON."""
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
    """Describe what the measurements depend on: versions, devices, machine, load, commit."""
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


def replace_between(page: pathlib.Path, begin: str, end: str, text: str) -> None:
    """Replace what a page has between two marks; they are added at its end if it has none."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def _repeats(text: str) -> int:
    repeats = int(text)
    if repeats < MIN_REPEATS:
        raise argparse.ArgumentTypeError(f"expected at least {MIN_REPEATS}, got {repeats}")
    return repeats
