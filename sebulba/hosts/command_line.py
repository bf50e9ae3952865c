"""Flags that a command takes for itself out of the command line of its runs. Imports no jax."""

from collections.abc import Sequence

from sebulba.errors import ConfigError


def take_flag(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Takes a flag and its value out of a command line.

    Returns:
        The value, empty if there is none, or None where the flag is not there; and the rest.

    Raises:
        ConfigError: it is there twice.
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


def take_count(argv: Sequence[str], flag: str) -> tuple[int | None, list[str]]:
    """Takes a flag and its count, a number from 1, out of a command line; see `take_flag`."""
    text, rest = take_flag(argv, flag)
    if text is None:
        return None, rest
    if not (text.isdecimal() and int(text)):
        raise ConfigError(f"{flag}: expected a number from 1, got {text!r}")
    return int(text), rest
