"""Runs a config with several seeds, one after another. Imports no jax.

Each run is a separate process, so that a crash ends one seed only. The runs share the compilation
cache on disk.
"""

import re
import sys
from collections.abc import Sequence

from sebulba.errors import ConfigError
from sebulba.process import EXIT_SIGNAL_BASE
from sebulba.processes.children import Children, exit_code_of
from sebulba.processes.command_line import take_flag

FLAG = "--seeds"
EXPECTED = "expected seeds as 0..4 (both ends included) or 0,3,7"

_MAX_SEEDS = 1000


def take_seeds(argv: Sequence[str]) -> tuple[list[int] | None, list[str]]:
    """Take `--seeds` out of a command line.

    Returns:
        The seeds (None without the flag) and the other arguments.

    Raises:
        ConfigError: the value is no list of seeds, the flag comes twice, or together with `--seed`.
    """
    text, rest = take_flag(argv, FLAG)
    if text is not None and any(argument.partition("=")[0] == "--seed" for argument in rest):
        raise ConfigError(f"{FLAG}: cannot be combined with --seed")
    return (None if text is None else parse_seeds(text)), rest


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of `0..4` (both ends included) or of `0,3,7`, in that order.

    Raises:
        ConfigError: the text is no list of seeds, or has one twice.
    """
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = map(int, span.groups())
        if last - first >= _MAX_SEEDS:
            raise ConfigError(f"{FLAG}: expected at most {_MAX_SEEDS} seeds, got {text}")
        seeds = list(range(first, last + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        seeds = [int(each) for each in text.split(",")]
    else:
        seeds = []
    if not seeds:
        raise ConfigError(f"{FLAG}: {EXPECTED}, got {text!r}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{FLAG}: expected each seed once, got {text}")
    return seeds


def train_seeds(argv: Sequence[str], seeds: Sequence[int], *, run_dir: str) -> int:
    """Train with each seed in `run_dir/seed-N`.

    The next run starts even if one fails. A signal ends the current run, which saves, and no other
    run starts.

    Returns:
        0 if all ended with 0, else the first other exit code; 128 + the number of a signal that
        prevented runs although none failed.
    """
    codes: dict[int, int] = {}
    with Children().forwarding_signals() as children:
        for seed in seeds:
            if children.signal_number is not None:
                break
            directory = f"{run_dir}/seed-{seed}"
            print(f"seed {seed}: {directory}", file=sys.stderr)
            # The last of equal flags wins.
            own = ["--seed", str(seed), "--run-dir", directory]
            codes[seed] = exit_code_of(children.start([*argv, *own]).wait())
    _report(codes, seeds)
    failures = [code for code in codes.values() if code]
    if not failures and children.signal_number is not None and len(codes) < len(seeds):
        return EXIT_SIGNAL_BASE + children.signal_number
    return failures[0] if failures else 0


def _report(codes: dict[int, int], seeds: Sequence[int]) -> None:
    parts = [
        f"seed {seed} {'done' if codes[seed] == 0 else f'ended with {codes[seed]}'}"
        if seed in codes
        else f"seed {seed} not started"
        for seed in seeds
    ]
    print("; ".join(parts), file=sys.stderr)
