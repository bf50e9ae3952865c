"""What the comparison of a run with its repetition means: a cause, and a size."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from sebulba.comparison.rows import ChecksumComparison, RowDifference
from sebulba.comparison.starts import Difference

ROUNDING = 1e-3
"""The largest `RowDifference.size` that rounding is taken to make."""

_WHAT = {
    "start": "the networks before the first update",
    "trajectories": "trajectories parted first",
    "updates": "updates parted first: the trajectories of that cycle are equal",
    "unknown": "it is not known whether trajectories or updates parted first",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run gave the same numbers again."""

    kind: Literal["same", "rounding", "other"]
    lines: tuple[str, ...]


def verdict_of(comparison: ChecksumComparison, found: Sequence[Difference]) -> Verdict:
    """Return the verdict on a repetition.

    The same CPU, threads, versions, flags and code compute the same bits, so without a difference
    among those, other bits are another result, however small the difference. With one, numbers
    that differ little are consistent with rounding, which is never a proof of it: a loss that was
    changed by a millionth differs as little.

    Args:
        comparison: of the run and its repetition; with at least one row.
        found: what differs between their starts, besides settings.
    """
    damaged, num, last = comparison.damaged, len(comparison.rows), comparison.rows[-1].num_cycles
    comparison = comparison.without_damaged()
    row = comparison.parting
    if row is None:
        has_trajectories = any(each.has_trajectories for each in comparison.rows)
        what = "networks and optimizer state"
        if has_trajectories:
            what = "networks, optimizer state and trajectories"
        rows = f"{num - len(damaged)} of {num} rows" if damaged else f"all {num} rows"
        return Verdict(
            kind="same",
            lines=(
                f"the same bits up to learner cycle {last:,}: {what} are equal in {rows} of"
                " checksums",
                *map(_describe_damage, damaged),
            ),
        )
    causes = [each for each in found if each.kind in ("machine", "flags", "versions")]
    until = _rounding_until(comparison)
    if not causes or until is None:
        lines = [f"another result from learner cycle {row.num_cycles:,} on"]
        if not found:
            lines.append("all that is recorded of CPU, threads, versions, flags and code is equal")
        return Verdict(
            kind="other",
            lines=(*lines, describe_parting(comparison), *map(_describe_damage, damaged)),
        )
    names = ", ".join(dict.fromkeys(each.name for each in causes))
    largest = max(each.size for each in comparison.rows if each.num_cycles <= until.num_cycles)
    lines = [
        f"consistent with rounding up to learner cycle {until.num_cycles:,}: other {names}, and"
        f" differences of about {largest:.1g} of the norm of the networks",
        describe_parting(comparison),
    ]
    if any(each.kind == "code" for each in found):
        lines.append("the code differs, too, and may be the cause")
    later = next((each for each in comparison.rows if each.num_cycles > until.num_cycles), None)
    if later is not None:
        lines.append(f"{_describe_growth(later)}, which rounding may lead to")
    return Verdict(kind="rounding", lines=tuple(lines))


def describe_parting(comparison: ChecksumComparison) -> str:
    """Return where two runs part: the cycle, how many leaves, the largest, and what was first."""
    row, equal = comparison.parting, comparison.last_equal
    assert row is not None
    since = "" if equal is None else f" (the row before, of cycle {equal:,}, is equal)"
    return (
        f"first other bits after learner cycle {row.num_cycles:,}{since}:"
        f" {len(row.leaves)} of {row.num_leaves} leaves,"
        f" most of all {row.leaves[0]}; {_WHAT[comparison.parted_first]}"
    )


def _describe_damage(row: RowDifference) -> str:
    return (
        f"the row of learner cycle {row.num_cycles:,} is damaged: {row.leaves[0].name} has another"
        " checksum there, although later rows are equal"
    )


def _rounding_until(comparison: ChecksumComparison) -> RowDifference | None:
    """Return the last row up to which all differences are small; None: the first is not."""
    until = None
    for row in comparison.rows:
        if row.has_other_integers or row.size > ROUNDING:
            break
        if row.leaves or until is not None:
            until = row
    return until


def _describe_growth(row: RowDifference) -> str:
    what = f"differences of {row.size:.1g} of the norm"
    if row.has_other_integers:
        name = next(leaf.name for leaf in row.leaves if leaf.size is None)
        what = f"other integers, such as in {name}"
    return f"after learner cycle {row.num_cycles:,} there are {what}"
