"""Say where two runs part: `python -m sebulba.diff RUN_A RUN_B`. Imports no jax."""

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from sebulba.errors import ConfigError, escaped, one_line, refuse
from sebulba.process import EXIT_CONFIG, EXIT_DONE, EXIT_OTHER_RESULT, program, run_command

if TYPE_CHECKING:
    from sebulba.comparison.rows import ChecksumComparison, MetricDifference
    from sebulba.comparison.starts import Difference

_DESCRIPTION = f"""\
Says where two runs part: their settings, code, versions, machine and flags, the first learner cycle
whose checksums differ, with the leaf, and the first row of metrics that differs.

Ends with 0 if all rows that both runs have are equal, with {EXIT_OTHER_RESULT} if not, and with
{EXIT_CONFIG} if they have no row in common, so that nothing was compared."""


def main() -> None:
    """Parse the command line, compare, and exit."""
    parser = argparse.ArgumentParser(
        prog=program("diff"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", type=pathlib.Path, metavar="RUN_A", help="run directory")
    parser.add_argument("second", type=pathlib.Path, metavar="RUN_B", help="run directory")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    options = parser.parse_args()
    sys.exit(diff(options.first, options.second, as_json=options.json))


def diff(first: pathlib.Path, second: pathlib.Path, *, as_json: bool = False) -> int:
    """Print where two runs part, and return the exit code.

    Args:
        first: a run directory.
        second: another one.
        as_json: whether to print one JSON object instead of text.
    """
    # Importing numpy takes time, so command line errors and --help come first.
    from sebulba.comparison.rows import compare_checksums, compare_metrics
    from sebulba.comparison.starts import (
        KINDS,
        describe_start,
        differences,
        read_start,
        resumes_of,
    )
    from sebulba.comparison.verdict import describe_parting
    from sebulba.storage.checksums import read_checksums
    from sebulba.storage.names import METRICS
    from sebulba.storage.run_files import changes_of, read_rows

    try:
        runs = [read_start(path) for path in (first, second)]
        metrics = [path / METRICS for path in (first, second)]
        rows_of_metrics = [read_rows(path) if path.is_file() else [] for path in metrics]
    except ConfigError as error:
        return refuse(error)
    found = differences(*runs)
    rows, num_damaged = zip(*map(read_checksums, (first, second)), strict=True)
    compared = compare_checksums(*rows)
    num_equal, metric = compare_metrics(*rows_of_metrics)
    if as_json:
        print(json.dumps(_as_json(found, compared, num_equal, metric), allow_nan=False))
    else:
        for name, run in zip("AB", runs, strict=True):
            print(f"{name}: {run.path} ({describe_start(run)})")
            for resume in resumes_of(run.process):
                changes = ", ".join(f"{key} {new}" for key, new in changes_of(resume).items())
                text = f"resumed at learner cycle {resume['at']:,}"
                text += f" with {changes}" if changes else ""
                print(one_line(f"  {text}"))
        for kind in KINDS:
            of_kind = [each for each in found if each.kind == kind]
            text = "" if of_kind else "no difference"
            unknown = [name for name, run in zip("AB", runs, strict=True) if not run.process]
            if kind != "settings" and unknown:
                text = f"not recorded by {' and '.join(unknown)}"
            print(f"{kind}: {text}".rstrip())
            for each in of_kind:
                print(one_line(f"  {each}"))
        for name, of_run, damaged in zip("AB", rows, num_damaged, strict=True):
            if not of_run:
                print(f"checksums: {name} has none (run.checksums)")
            if damaged:
                print(f"checksums: damaged lines of {name}, which are left out: {damaged}")
        if compared.parting is not None:
            print(escaped(f"checksums: {describe_parting(compared)}"))
        elif compared.rows:
            last = compared.rows[-1].num_cycles
            print(f"checksums: {len(compared.rows)} equal rows, up to learner cycle {last:,}")
        elif all(rows):
            print("checksums: no learner cycle has a row in both")
        if metric is not None:
            print(escaped(f"metrics: {num_equal} equal rows, then {metric}"))
        else:
            print(f"metrics: {num_equal} equal rows")
    if not compared.rows and not num_equal and metric is None:
        print("sebulba: the runs have no row in common: nothing was compared", file=sys.stderr)
        return EXIT_CONFIG
    return EXIT_DONE if compared.parting is None and metric is None else EXIT_OTHER_RESULT


def _as_json(
    found: "list[Difference]",
    compared: "ChecksumComparison",
    num_equal: int,
    metric: "MetricDifference | None",
) -> dict[str, Any]:
    row = compared.parting
    parting = None
    if row is not None:
        parting = {
            "learner_cycle": row.num_cycles,
            "last_equal": compared.last_equal,
            "first": compared.parted_first,
            "leaves": [leaf.name for leaf in row.leaves],
        }
    return {
        "differences": [
            {key: str(value) for key, value in dataclasses.asdict(each).items()} for each in found
        ],
        "checksums": {
            "equal_rows": sum(
                1 for _ in itertools.takewhile(lambda each: not each.leaves, compared.rows)
            ),
            "parting": parting,
        },
        "metrics": {
            "equal_rows": num_equal,
            "parting": None
            if metric is None
            else {"env_steps": metric.env_steps, "column": metric.column},
        },
    }


if __name__ == "__main__":
    run_command(main)
