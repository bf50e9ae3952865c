"""The commands `sebulba.plot` and `sebulba.report`: from run directories to a file."""

import importlib.util
import pathlib
import sys
from collections.abc import Callable, Sequence

from sebulba.errors import ConfigError
from sebulba.process import EXIT_CONFIG, EXIT_DONE
from sebulba.tools.report.groups import Group, group_runs
from sebulba.tools.report.runs import read_runs

FORMATS = (".png", ".svg", ".pdf")


def plot(run_dirs: Sequence[str], output: str) -> int:
    """Plot runs to a file, print its name, and return the exit code."""

    def write(groups: list[Group]) -> None:
        if pathlib.Path(output).suffix not in FORMATS:
            raise ConfigError(f"-o: expected a file ending in {', '.join(FORMATS)}, got {output}")
        # Importing matplotlib takes half a second, so wrong arguments are reported first.
        from sebulba.tools.report.figure import draw, save

        save(draw(groups), output)

    return _write("sebulba.plot", run_dirs, output, write)


def report(run_dirs: Sequence[str], output: str) -> int:
    """Write a page about runs to a file, print its name, and return the exit code."""

    def write(groups: list[Group]) -> None:
        from sebulba.tools.report.page import page

        pathlib.Path(output).write_text(page(groups), encoding="utf-8")

    return _write("sebulba.report", run_dirs, output, write)


def _write(
    name: str, run_dirs: Sequence[str], output: str, write: Callable[[list[Group]], None]
) -> int:
    try:
        if importlib.util.find_spec("matplotlib") is None:
            raise ConfigError("matplotlib is not installed: pip install 'sebulba[plot]'")
        write(group_runs(read_runs(run_dirs)))
    except (ConfigError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_CONFIG
    print(f"wrote {output}")
    return EXIT_DONE
