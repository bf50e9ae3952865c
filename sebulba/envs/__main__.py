"""List environment suites, or search their ids: `python -m sebulba.envs [WORD]`."""

import argparse

from sebulba.envs.listing import SuiteListing, list_suites, matching_ids
from sebulba.process import program, run_command

_MAX_SHOWN = 20


def main() -> None:
    """Print a table of the suites, or each suite's ids that match the given word."""
    parser = argparse.ArgumentParser(
        prog=program("envs"),
        description="List the environment suites with installed version and number of ids.",
    )
    parser.add_argument(
        "word", nargs="?", help="list ids that contain this word, or else the most similar ids"
    )
    word = parser.parse_args().word
    suites = list(list_suites())
    print("\n".join(_table(suites) if word is None else _matches(suites, word)))


def _table(suites: list[SuiteListing]) -> list[str]:
    rows = [("env.suite", "package", "version", "ids", "")]
    for suite in suites:
        num_ids = "?" if suite.ids is None else f"{len(suite.ids):,}"
        version = suite.version or "not installed"
        rows.append((suite.name, suite.package, version, num_ids, suite.problem or ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _matches(suites: list[SuiteListing], word: str) -> list[str]:
    lines = []
    for suite in suites:
        ids = matching_ids(suite.ids or (), word)
        if not ids:
            lines.append(f"{suite.name}: {suite.problem or 'no match'}")
            continue
        is_match = word.lower() in ids[0].lower()
        lines.append(f"{suite.name}: {len(ids)} ids" if is_match else f"{suite.name}: most similar")
        lines += [f"  {each}" for each in ids[:_MAX_SHOWN]]
        if len(ids) > _MAX_SHOWN:
            lines.append(f"  and {len(ids) - _MAX_SHOWN} more")
    return lines


if __name__ == "__main__":
    run_command(main)
