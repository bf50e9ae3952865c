"""Compile configs for devices that are not here, and write the table in `docs/accelerators.md`.

    python -m benchmarks.compiled --for v5e:2x2 --keep DIRECTORY [CONFIG ...] [--key=VALUE]

Each config is compiled by `sebulba compile` in a process of its own, whose JSON stays in DIRECTORY;
configs that have a file there are not compiled again. `all` stands for every shipped config.
Without a CONFIG, the table is written from the files alone.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from sebulba.aot.chips import CHIPS
from sebulba.config.shipped import shipped_configs
from sebulba.devices.memory import format_bytes

_PAGE = pathlib.Path(__file__).parent.parent / "docs" / "accelerators.md"
_HEADER = (
    "| config | compiles in | actor device | learner device | collectives of a learner cycle |"
    " kernels of a learner cycle, an env step and an update | synchronisations of a learner cycle |"
    " env steps/s of a host at best | not asked for |"
)


def main() -> None:
    """Compile the configs, and write their table into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--for", dest="topology", required=True)
    parser.add_argument("--keep", type=pathlib.Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    options, flags = parser.parse_known_args()
    # A flag with a space in it, such as --devices.actor=[0, 1], is a positional one for argparse.
    flags += [each for each in options.configs if each.startswith("-")]
    configs = [each for each in options.configs if not each.startswith("-")]
    options.keep.mkdir(parents=True, exist_ok=True)
    suffix = f"@{options.topology.replace(':', '_')}.json"
    for config in shipped_configs() if configs == ["all"] else configs:
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
    """Return the JSON of `sebulba compile` for a config and flags, or of its `error`."""
    command = [sys.executable, "-m", "sebulba.compile", config, "--for", topology, "--json", *flags]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return json.dumps({"error": f"not within {timeout_s:.0f} s"})
    if done.stdout:
        return done.stdout
    return json.dumps({"error": done.stderr.strip().splitlines()[-1].removeprefix("sebulba: ")})


def table(reports: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table of reports by the name of their config."""
    rows = ["| " + " | ".join(_cells(config, report)) + " |" for config, report in reports.items()]
    return "\n".join([_HEADER, "|" + "---|" * (_HEADER.count("|") - 1), *rows])


def _cells(config: str, report: dict[str, Any]) -> Iterator[str]:
    yield f"`{config}`"
    programs = report.get("programs", [])
    problems = [report["error"]] if "error" in report else []
    problems += [f"{each['name']}: {each['problem']}" for each in programs if each["problem"]]
    if problems:
        yield problems[0].replace("|", "\\|")
        yield from [""] * 7
        return
    yield f"{sum(each['compile_s'] for each in programs):.0f} s"
    needs = {each["name"]: format_bytes(each["needs"]) for each in report["places"]}
    yield needs.get("actor device", "")
    yield needs["learner device"]
    yield "<br>".join(
        f"{message['count']} {message['kind']}{' in a loop' * message['is_in_loop']},"
        f" {format_bytes(message['bytes'])}"
        for each in programs
        for message in each["collectives"]
    )
    launches = report.get("launches")  # None: of a version that did not count them
    yield ("{learner_cycle:,}; {env_step:.3g}; {update:.3g}".format(**launches) if launches else "")
    is_gpu = CHIPS[report["topology"].partition(":")[0]].platform == "cuda"
    yield f"{launches['synchronisations']:,}" if launches and is_gpu else ""
    rates = (report["at_best"] or {}).get("env_steps_per_second", {})
    yield ", ".join(f"{what} {rate:.2g}" for what, rate in rates.items())
    yield "<br>".join(f"{each['name']}: {text}" for each in programs for text in each["unasked"])


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
