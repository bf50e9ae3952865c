"""The error of a wrong configuration, and texts for error messages."""

import difflib
from collections.abc import Iterable

MAX_LISTED = 40


class ConfigError(ValueError):
    """The requested run is impossible; one line names the key, what was expected and what came."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return the suggestion to append to an error about an unknown name.

    Args:
        name: the unknown name.
        valid: the valid names. All are listed, unless there are more than `MAX_LISTED`.

    Returns:
        `"; did you mean num_envs? (known: num_envs, cycle)"`. The question is left out if no name
        is similar, and the list if it is empty or too long.
    """
    valid = list(valid)
    nearest = nearest_names(name, valid)
    question = f"did you mean {' or '.join(nearest)}?"
    known = f"known: {', '.join(valid)}"
    is_listed = 0 < len(valid) <= MAX_LISTED
    if nearest:
        return f"; {question} ({known})" if is_listed else f"; {question}"
    return f"; {known}" if is_listed else ""


def nearest_names(name: str, valid: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the valid names that are spelled most like `name`, in any case, the nearest first."""
    by_lower_case = {each.lower(): each for each in valid}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=most)
    return [by_lower_case[match] for match in matches]


def escaped(text: str) -> str:
    """Return text with control characters escaped, except newlines: they could drive a terminal."""
    return "".join(
        each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text
    )
