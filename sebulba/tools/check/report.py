"""The table of results, and its JSON."""

import json
import pathlib
from typing import TextIO

import rich.box
import rich.console
import rich.table
import rich.text

from sebulba.tools.check.result import Status
from sebulba.tools.check.suite import Report

_MARKS: dict[Status, rich.text.Text] = {
    "pass": rich.text.Text("✓", style="green"),
    "fail": rich.text.Text("✗", style="bold red"),
    "skip": rich.text.Text("–", style="dim"),
}
_PLAIN_WIDTH = 160


def print_report(report: Report, title: str, stream: TextIO) -> None:
    """Prints a row for each check, and what a run will hold in memory."""
    width = None if stream.isatty() else _PLAIN_WIDTH
    console = rich.console.Console(file=stream, width=width)
    table = rich.table.Table(title=title, box=rich.box.SIMPLE, title_justify="left")
    table.add_column("")
    table.add_column("check")
    table.add_column("what was seen", overflow="fold")
    for result in report.results:
        table.add_row(_MARKS[result.status], result.name, rich.text.Text(result.detail))
    console.print(table)
    if report.memory_plan is not None:
        console.print(f"memory plan: {report.memory_plan}", markup=False, highlight=False)


def write_report(report: Report, path: pathlib.Path) -> None:
    """Writes the results as JSON: `{"ok": …, "memory_plan": …, "checks": [{"name": …}]}`."""
    content = {
        "ok": not report.has_failures,
        "memory_plan": report.memory_plan,
        "checks": [
            {"name": result.name, "status": result.status, "detail": result.detail}
            for result in report.results
        ],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
