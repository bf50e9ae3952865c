"""What a rerun of a part of a run begins with: the run's kernels, and a console for tables."""

import sys
from collections.abc import Mapping
from typing import Any

import rich.console

from sebulba.comparison.starts import differences_of_starts
from sebulba.config import Config
from sebulba.config.objects import source_files
from sebulba.devices.repeatable import use_repeatable_kernels
from sebulba.devices.roles import check_platforms
from sebulba.errors import escaped
from sebulba.evaluation.opponents import opponent_files
from sebulba.storage.fingerprint import CodeReading
from sebulba.storage.names import MAPPED_SEEDS
from sebulba.storage.run_dir import describe_run

_PIPE_WIDTH = 120


def use_kernels_of(config: Config, start: Mapping[str, Any]) -> None:
    """Ask for the GPU's kernels that the run's config asks for, and start JAX.

    Prints a warning if this process differs from the run in what decides bits.

    Args:
        config: the run's settings.
        start: the contents of `run.json` about the start that is rerun.

    Raises:
        ConfigError: they cannot be had, or there is no device of JAX_PLATFORMS.
    """
    code = CodeReading({**source_files(config), **opponent_files(config)})
    kernel_warning = use_repeatable_kernels(config.run.repeatable, is_exact=config.has_fixed_order)
    check_platforms()
    if kernel_warning:
        print(kernel_warning, file=sys.stderr)
    now = {**describe_run(), "code": code.wait(), MAPPED_SEEDS: []}
    if found := differences_of_starts(start, now):
        names = ", ".join(f"{each.name} (there {each.first}, here {each.second})" for each in found)
        print(escaped(f"warning: the run may have had other bits: {names}"), file=sys.stderr)


def make_console() -> rich.console.Console:
    """Return a console that prints tables to standard output."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return rich.console.Console(width=width, highlight=False)
