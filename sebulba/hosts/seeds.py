"""One config with several seeds: a training run for each, one after another. Imports no jax.

Each run is a process of its own, so that none can take the others down; they share the compilation
cache on disk.
"""

import re
import sys
from collections.abc import Sequence

from sebulba.errors import ConfigError
from sebulba.exit_codes import EXIT_SIGNAL_BASE
from sebulba.hosts.children import Children, exit_code_of
from sebulba.hosts.command_line import take_flag

FLAG = "--seeds"
EXPECTED = "expected seeds as 0..4 (the first to the last) or 0,3,7"

_MOST_SEEDS = 1000


def take_seeds(argv: Sequence[str]) -> tuple[list[int] | None, list[str]]:
    """Takes `--seeds` out of a command line.

    Returns:
        The seeds, or None if the command line names none, and the rest of the command line.

    Raises:
        ConfigError: the flag has no value or one that does not say seeds, is there twice, or
            beside `--seed`.
    """
    text, rest = take_flag(argv, FLAG)
    if text is not None and any(argument.partition("=")[0] == "--seed" for argument in rest):
        raise ConfigError(f"{FLAG}: expected no --seed beside it")
    return (None if text is None else parse_seeds(text)), rest


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of `0..4`, both ends included, or of `0,3,7`, in that order.

    Raises:
        ConfigError: the text says no seeds, or one twice.
    """
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = map(int, span.groups())
        if last - first >= _MOST_SEEDS:
            raise ConfigError(f"{FLAG}: expected at most {_MOST_SEEDS} seeds, got {text}")
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
    """Trains with each seed in `run_dir/seed-N`, and returns the exit code of them all.

    A run that fails does not keep the next from starting; a signal ends the run under way, which
    saves itself, and starts no other.

    Args:
        argv: the command line of one run; of equal flags the last wins, so its `--run-dir` gives
            way to the seed's.
        seeds: in the order of the runs.
        run_dir: the directory above those of the runs.

    Returns:
        0 if all ended with 0, else the first other exit code; 128 + its number after a signal that
        kept a run from starting.
    """
    codes: dict[int, int] = {}
    with Children().told_of_signals() as children:
        for seed in seeds:
            if children.signal_number is not None:
                break
            directory = f"{run_dir}/seed-{seed}"
            print(f"seed {seed}: {directory}", file=sys.stderr)
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
