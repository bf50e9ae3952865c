"""Lists the environment suites, or the ids that a word finds: `python -m sebulba.envs [WORD]`."""

import argparse

from sebulba.envs.listing import SuiteListing, list_suites, matching_ids

_MOST_SHOWN = 20


def main() -> None:
    """Prints a table of the suites, or for each suite the ids that match."""
    parser = argparse.ArgumentParser(
        prog="python -m sebulba.envs",
        description="Lists the environment suites, which are installed, and their number of ids.",
    )
    parser.add_argument(
        "word", nargs="?", help="list the ids that contain it, or else are nearest to it"
    )
    word = parser.parse_args().word
    suites = list(list_suites())
    print("\n".join(_table(suites) if word is None else _matches(suites, word)))


def _table(suites: list[SuiteListing]) -> list[str]:
    rows = [("env.suite", "package", "version", "ids", "")]
    for suite in suites:
        num_ids = "?" if suite.ids is None else f"{len(suite.ids):,}"
        version = suite.version or "not installed"
        rows.append((suite.name, suite.package, version, num_ids, suite.trouble or ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _matches(suites: list[SuiteListing], word: str) -> list[str]:
    lines = []
    for suite in suites:
        ids = matching_ids(suite.ids or (), word)
        if not ids:
            lines.append(f"{suite.name}: {suite.trouble or 'nothing like it'}")
            continue
        is_inside = word.lower() in ids[0].lower()
        lines.append(f"{suite.name}: {len(ids)} ids" if is_inside else f"{suite.name}: nearest")
        lines += [f"  {each}" for each in ids[:_MOST_SHOWN]]
        if len(ids) > _MOST_SHOWN:
            lines.append(f"  and {len(ids) - _MOST_SHOWN} more")
    return lines


if __name__ == "__main__":
    main()
