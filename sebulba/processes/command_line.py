"""Take a command's own flags out of the command line of its runs. Imports no jax."""

import re
from collections.abc import Sequence

from sebulba.errors import ConfigError

ENV_FLAG = "To use other arguments of the environment: --env.options.NAME VALUE"
"""Advice of commands that make the environment of a run again, which may fail."""
_MAX_SEEDS = 1000


def take_flag(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Take a flag and its value out of a command line.

    Returns:
        The value ("" if it is missing; None without the flag) and the other arguments.

    Raises:
        ConfigError: the command line has the flag twice.
    """
    rest: list[str] = []
    texts: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if name == flag:
            texts.append(text if equals else next(arguments, ""))
        else:
            rest.append(argument)
    if len(texts) > 1:
        raise ConfigError(f"{flag}: expected it once, got {' and '.join(texts)}")
    return (texts[0] if texts else None), rest


def take_switch(argv: Sequence[str], flag: str) -> tuple[bool, list[str]]:
    """Take a flag without a value out of a command line; return whether it was there."""
    return flag in argv, [argument for argument in argv if argument != flag]


def take_section(argv: Sequence[str], section: str) -> tuple[list[str], list[str]]:
    """Take the flags of a section of the config, `--env.options.rows 5`, out of a command line.

    Returns:
        The flags, as `--env.options.rows=5`, and the other arguments.

    Raises:
        ConfigError: a flag has no value.
    """
    flags: list[str] = []
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith(f"--{section}."):
            rest.append(argument)
            continue
        value = "" if "=" in argument else next(arguments, "--")
        if value.startswith("--"):
            raise ConfigError(f"{argument}: expected a value, got none")
        flags.append(argument if "=" in argument else f"{argument}={value}")
    return flags, rest


def take_count(argv: Sequence[str], flag: str) -> tuple[int | None, list[str]]:
    """Take a flag and its value, an integer of at least 1; otherwise like `take_flag`."""
    text, rest = take_flag(argv, flag)
    if text is None:
        return None, rest
    if not (text.isdecimal() and int(text)):
        raise ConfigError(f"{flag}: expected an integer of at least 1, got {text!r}")
    return int(text), rest


def take_seeds(argv: Sequence[str]) -> tuple[list[int] | None, list[str]]:
    """Take `--seeds` out of a command line.

    Returns:
        The seeds (None without the flag) and the other arguments.

    Raises:
        ConfigError: the value is no list of seeds, the flag comes twice, or together with `--seed`.
    """
    text, rest = take_flag(argv, "--seeds")
    if text is not None and any(argument.partition("=")[0] == "--seed" for argument in rest):
        raise ConfigError("--seeds: cannot be combined with --seed")
    return (None if text is None else parse_seeds(text)), rest


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of `0..4` (both ends included) or of `0,3,7`, in that order.

    Raises:
        ConfigError: the text is no list of seeds, or has one twice.
    """
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = map(int, span.groups())
        if last - first >= _MAX_SEEDS:
            raise ConfigError(f"--seeds: expected at most {_MAX_SEEDS} seeds, got {text}")
        seeds = list(range(first, last + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        seeds = [int(each) for each in text.split(",")]
    else:
        seeds = []
    if not seeds:
        raise ConfigError(
            f"--seeds: expected seeds as 0..4 (both ends included) or 0,3,7, got {text!r}"
        )
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: expected each seed once, got {text}")
    return seeds
