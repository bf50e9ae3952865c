"""Run all checks of a config and print them as a table."""

import collections
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Self, TextIO

import jax
import rich.box
import rich.console
import rich.table
import rich.text

from sebulba.check.result import Status
from sebulba.check.suite import AskedOf, Report, check
from sebulba.config import Config
from sebulba.devices.compilation_cache import use_compilation_cache
from sebulba.devices.roles import check_platforms
from sebulba.errors import ConfigError, refuse
from sebulba.process import EXIT_DONE, EXIT_FAILED

_MARKS: dict[Status, rich.text.Text] = {
    "pass": rich.text.Text("✓", style="green"),
    "fail": rich.text.Text("✗", style="bold red"),
    "unclear": rich.text.Text("?", style="yellow"),
    "skip": rich.text.Text("–", style="dim"),
}
_ASKED_OF: dict[AskedOf, str] = {
    "environment": "of the environment itself",
    "probe": "of the agent, on a probe in place of the environment",
}
_MIN_CACHED_COMPILATION_SECONDS = 0.02
_PLAIN_WIDTH_COLUMNS = 160  # of output to a file or a pipe, and of a terminal that is wide


def run_check(
    config: Config, json_path: pathlib.Path | None = None, only: Sequence[str] = ()
) -> int:
    """Check a config, print the table, and return the process's exit code.

    Args:
        config: the config of a run.
        json_path: a file that the results are written to as JSON.
        only: names of the questions to ask; empty: all.
    """
    if config.devices.actor is None and config.devices.learner is None:
        # Two devices, to compare updates on one and on two. JAX reads this when a backend starts.
        jax.config.update("jax_num_cpu_devices", 2)
    use_compilation_cache()
    # Most of the check's time is compilation, much of it of many small functions.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_CACHED_COMPILATION_SECONDS)
    try:
        check_platforms()
        # As agents compute, which see nothing of JAX_ENABLE_X64.
        with Progress(sys.stderr) as progress, jax.enable_x64(False):
            report = check(config, only=only, on_progress=progress.show)
    except ConfigError as error:
        return refuse(error)
    print_report(report, f"{config.agent.name} on {config.env.suite} {config.env.id}", sys.stdout)
    if json_path is not None:
        write_report(report, json_path)
    return EXIT_FAILED if report.has_failures else EXIT_DONE


class Progress:
    """Shows the name of the check in progress, on one line of a terminal or one line each."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def show(self, name: str) -> None:
        """Show a name in place of the last one."""
        text = f"\r\033[Kchecking: {name}" if self._stream.isatty() else f"checking: {name}\n"
        self._stream.write(text)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()


def print_report(report: Report, title: str, stream: TextIO) -> None:
    """Print a line for each question, the number of failures, and the memory plan of a run.

    A heading says what the questions below it were asked of.

    On a terminal that is not wide, results are below properties: names of leaves are long.
    """
    width = None if stream.isatty() else _PLAIN_WIDTH_COLUMNS
    console = rich.console.Console(file=stream, width=width, highlight=False)
    table = rich.table.Table(title=title, box=rich.box.SIMPLE, title_justify="left")
    table.add_column("")
    table.add_column("name", no_wrap=True)
    is_wide = console.width >= _PLAIN_WIDTH_COLUMNS
    for column in ("property", "result") if is_wide else ("property and result",):
        table.add_column(column, overflow="fold")
    asked_of = None
    for result in report.results:
        if result.of != asked_of:
            asked_of = result.of
            table.add_row("", "", rich.text.Text(_ASKED_OF[asked_of], style="bold"))
        parts = [result.property, result.detail]
        cells = map(rich.text.Text, parts if is_wide else ["\n".join(parts)])
        table.add_row(_MARKS[result.status], result.name, *cells)
    console.print(table)
    counts = collections.Counter(result.status for result in report.results)
    unclear = f", {counts['unclear']} unclear" if counts["unclear"] else ""
    console.print(
        f"{counts['pass']} passed, {counts['fail']} failed{unclear}, {counts['skip']} skipped"
    )
    if report.has_failures:
        console.print("A row is one time step of a trajectory, a leaf one array of a pytree.")
    if report.memory_plan is not None:
        console.print(f"memory plan: {report.memory_plan}", markup=False)


def write_report(report: Report, path: pathlib.Path) -> None:
    """Write the results as JSON: `{"ok": …, "memory_plan": …, "checks": [{"name": …}]}`."""
    content = {
        "ok": not report.has_failures,
        "memory_plan": report.memory_plan,
        "checks": [dataclasses.asdict(result) for result in report.results],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
