"""Compile configs for devices that are not here, and write the table in `docs/accelerators.md`.

    python -m benchmarks.compiled --for v5e:2x2 --keep DIRECTORY [CONFIG ...] [--key=VALUE]

Each config is compiled by `sebulba compile` in a process of its own, whose JSON stays in DIRECTORY;
configs that have a file there are not compiled again. Without a CONFIG, the table is written from
the files alone.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from sebulba.devices.chips import CHIPS
from sebulba.devices.memory import format_bytes

_PAGE = pathlib.Path(__file__).parent.parent / "docs" / "accelerators.md"
_HEADER = (
    "| config | program | compiles | arguments | temporaries | collectives | products |"
    " not asked for |"
)


def main() -> None:
    """Compile the configs, and write their table into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--for", dest="topology", required=True)
    parser.add_argument("--keep", type=pathlib.Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    options, flags = parser.parse_known_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    suffix = f"@{options.topology.replace(':', '_')}.json"
    for config in options.configs:
        path = options.keep / f"{config}{suffix}"
        if not path.exists():
            path.write_text(
                compile_config(config, options.topology, flags, timeout_s=options.timeout_s)
            )
    reports = {
        path.name.removesuffix(suffix): json.loads(path.read_text())
        for path in sorted(options.keep.glob(f"*{suffix}"))
    }
    page = _PAGE.read_text()
    _PAGE.write_text(with_table(page, options.topology, table(reports)))
    print(f"wrote {len(reports)} configs into {_PAGE}")


def compile_config(config: str, topology: str, flags: Sequence[str], *, timeout_s: float) -> str:
    """Return the JSON of `sebulba compile` for a config and flags.

    Raises:
        CalledProcessError: it printed none.
        TimeoutExpired: it took longer than `timeout_s`.
    """
    command = [sys.executable, "-m", "sebulba.compile", config, "--for", topology, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if not done.stdout:
        print(done.stderr, file=sys.stderr)
        done.check_returncode()
    return done.stdout


def table(reports: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table of reports by the name of their config."""
    lines = [_HEADER, "|" + "---|" * (_HEADER.count("|") - 1)]
    for config, report in reports.items():
        for program in report["programs"]:
            lines.append("| " + " | ".join(_cells(config, report, program)) + " |")
    return "\n".join(lines)


def _cells(config: str, report: dict[str, Any], program: dict[str, Any]) -> Iterator[str]:
    yield config
    yield program["name"] + (f" ({program['calls']} calls)" if program["calls"] > 1 else "")
    if program["problem"] is not None:
        yield program["problem"]
        yield from [""] * 5
        return
    yield f"{program['compile_s']:.0f} s"
    yield format_bytes(program["arguments"])
    yield format_bytes(program["temporaries"])
    yield "<br>".join(
        f"{each['count']} {each['kind']}{' in a loop' * each['is_in_loop']},"
        f" {format_bytes(each['bytes'])}"
        for each in program["collectives"]
    )
    yield f"{sum(program['flops'].values()) / 1e9:.3g} GFLOP"
    yield "<br>".join(program["unasked"])


def with_table(page: str, topology: str, text: str) -> str:
    """Return the page with the table of a topology between its markers."""
    begin, end = f"<!-- table of {topology} -->", f"<!-- end of the table of {topology} -->"
    if CHIPS.get(topology.partition(":")[0]) is None or begin not in page:
        raise SystemExit(f"expected the marker {begin} in {_PAGE}")
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}",
        lambda match: f"{begin}\n\n{text}\n\n{end}",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    main()
