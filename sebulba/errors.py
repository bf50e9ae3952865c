"""The error of a wrong configuration, and the nearest valid names to offer with it."""

import difflib
from collections.abc import Iterable

MOST_LISTED = 40


class ConfigError(ValueError):
    """What the user asked for cannot be run: one line that says where, expected and got."""


def describe_nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns what to offer instead of an unknown name.

    Args:
        name: what was asked for.
        candidates: the valid names; all are listed unless there are more than `MOST_LISTED`.

    Returns:
        `"did you mean num_envs? (known: num_envs, cycle)"`, or without the question where nothing
        is near.
    """
    candidates = list(candidates)
    by_lower_case = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.lower(), by_lower_case)
    known = ", ".join(candidates) if len(candidates) <= MOST_LISTED else f"{len(candidates)} names"
    question = f"did you mean {' or '.join(by_lower_case[match] for match in near)}? "
    return f"{question if near else ''}(known: {known or 'none'})"


def escaped(text: str) -> str:
    """Return text without control characters but for newlines: they could drive a terminal."""
    return "".join(
        each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text
    )
