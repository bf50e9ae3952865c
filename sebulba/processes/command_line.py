"""Takes a launcher's own flags out of the command line of its runs. Imports no jax."""

from collections.abc import Sequence

from sebulba.errors import ConfigError


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


def take_count(argv: Sequence[str], flag: str) -> tuple[int | None, list[str]]:
    """Take a flag and its value, an integer of at least 1; otherwise like `take_flag`."""
    text, rest = take_flag(argv, flag)
    if text is None:
        return None, rest
    if not (text.isdecimal() and int(text)):
        raise ConfigError(f"{flag}: expected an integer of at least 1, got {text!r}")
    return int(text), rest
