"""The first rows of two runs that differ: of checksums, and of metrics."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from sebulba.storage.checksums import (
    NETWORKS,
    OPTIMIZER,
    TRAJECTORIES,
    ChecksumRow,
)

_TIMES = (
    "wall_time_s",
    "steps_per_second",
    "queue_depth",
    "time/",
    "all_reduce/",
    "remote_actor/",  # rates and restarts of processes, which do not change what they return
)
_EVALUATION = "evaluation/"
_PARTS = (NETWORKS, OPTIMIZER, TRAJECTORIES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafDifference:
    """A leaf whose checksums differ."""

    name: str
    # The norm of the difference over the larger norm of the two leaves, estimated. None: integers,
    # numbers that are not finite, or a leaf that only one run has.
    size: float | None

    def __str__(self) -> str:
        if self.size == 0:
            return (
                f"{self.name}, whose norm and projections are equal, as with 0.0 and -0.0, or with"
                " zeros of another shape"
            )
        return self.name if self.size is None else f"{self.name}, by {self.size:.1g} of its norm"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowDifference:
    """What differs after a learner cycle; nothing does if there are no leaves."""

    num_cycles: int
    leaves: tuple[LeafDifference, ...]  # that differ, the largest difference first
    num_leaves: int  # compared
    has_trajectories: bool  # among them
    # Whether networks or optimizer state of the first run are others than in its row before.
    has_learned: bool
    # As `LeafDifference.size`: the larger of that of all floats of the trajectories and that of the
    # part of the networks that differs most, such as parameters or moments of observations.
    # 0: equal.
    size: float
    has_other_integers: bool  # or numbers that are not finite, or leaves that one run lacks

    def of(self, *parts: str) -> list[LeafDifference]:
        """Return the leaves of some parts."""
        return [leaf for leaf in self.leaves if leaf.name.startswith(tuple(f"{p}." for p in parts))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChecksumComparison:
    """The rows of checksums that two runs have in common."""

    rows: tuple[RowDifference, ...]

    @property
    def parting(self) -> RowDifference | None:
        """The first row that differs; None: none does."""
        return next((row for row in self.rows if row.leaves), None)

    @property
    def last_equal(self) -> int | None:
        """The last learner cycle before the parting at which all is equal; None: none is."""
        equal = None
        for row in self.rows:
            if row.leaves:
                break
            equal = row.num_cycles
        return equal

    @property
    def damaged(self) -> tuple[RowDifference, ...]:
        """The rows that differ although the runs had the same bits: their lines are damaged.

        Networks that have parted do not meet again, so if the last row has the same networks, those
        before had them, too. Trajectories may meet again: those of an agent that has not learned
        yet, or of an environment that draws numbers of its own at times. So where they alone
        differ, a row is damaged only if it is the only one, if something was learned since the row
        before it, and if later trajectories are equal.
        """
        compared = [row for row in self.rows if row.num_leaves]
        if not compared or compared[-1].of(NETWORKS, OPTIMIZER):
            return ()
        alone = [row for row in compared if row.leaves and not row.of(NETWORKS, OPTIMIZER)]
        last = [row for row in compared if row.has_trajectories][-1:]
        if len(alone) > 1 or alone == last or not all(row.has_learned for row in alone):
            alone = []
        return tuple(row for row in compared if row.of(NETWORKS, OPTIMIZER) or row in alone)

    def without_damaged(self) -> "ChecksumComparison":
        """Return the comparison of the rows that are not damaged."""
        damaged = self.damaged
        return ChecksumComparison(rows=tuple(row for row in self.rows if row not in damaged))

    @property
    def parted_first(self) -> Literal["start", "trajectories", "updates", "unknown"]:
        """What differs first: networks before all cycles, trajectories, or what updates make.

        It is unknown without checksums of trajectories, and if trajectories and networks both
        differ in a row that is more than one learner cycle after the last equal one.
        """
        row = self.parting
        if row is None or not (row.num_cycles == 0 or row.has_trajectories):
            return "unknown"
        if row.num_cycles == 0:
            return "start"
        if not row.of(TRAJECTORIES):
            return "updates"
        if not row.of(NETWORKS, OPTIMIZER) or self.last_equal == row.num_cycles - 1:
            return "trajectories"
        return "unknown"


def compare_checksums(
    first: Sequence[ChecksumRow], second: Sequence[ChecksumRow]
) -> ChecksumComparison:
    """Compare the rows of the learner cycles that both runs have."""
    others = {row.num_cycles: row for row in second}
    pairs = [(row, others[row.num_cycles]) for row in first if row.num_cycles in others]
    before = [None, *(row for row, _ in pairs)]
    compared = (_compare(*pair, earlier) for pair, earlier in zip(pairs, before, strict=False))
    return ChecksumComparison(rows=tuple(compared))


def _compare(first: ChecksumRow, second: ChecksumRow, earlier: ChecksumRow | None) -> RowDifference:
    parts = [
        {name.partition(".")[0] for name in row.leaves} & set(_PARTS) for row in (first, second)
    ]
    # The last row of an interrupted run has no trajectories.
    common = (parts[0] | parts[1]) - {TRAJECTORIES} | (parts[0] & parts[1])
    networks = [  # and optimizer state, after this row and the one before it
        {n: leaf.crc32 for n, leaf in row.leaves.items() if not n.startswith(f"{TRAJECTORIES}.")}
        for row in (first, earlier)
        if row is not None
    ]
    names = [name for name in {**first.leaves, **second.leaves} if name.partition(".")[0] in common]
    leaves, has_other_integers = [], False
    # By group: squares of the differences, of the norms, and of those of several elements.
    squares: dict[str, list[float]] = {}
    for name in names:
        ours, theirs = first.leaves.get(name), second.leaves.get(name)
        distance = None if ours is None or theirs is None else ours.distance(theirs)
        norm = max((leaf.norm or 0.0 for leaf in (ours, theirs) if leaf is not None), default=0.0)
        is_equal = ours is not None and theirs is not None and ours.crc32 == theirs.crc32
        if distance is not None:
            sums = squares.setdefault(_group_of(name), [0.0, 0.0, 0.0])
            sums[0] += 0.0 if is_equal else distance**2
            sums[1] += norm**2
            # The count of observations, 1e5 beside parameters of 10, would hide what they do.
            is_one_number = all(each is None or each.is_one_number for each in (ours, theirs))
            sums[2] += 0.0 if is_one_number else norm**2
        if not is_equal:
            has_other_integers |= distance is None
            size = None if distance is None else distance / norm if norm else 0.0
            leaves.append(LeafDifference(name=name, size=size))
    return RowDifference(
        num_cycles=first.num_cycles,
        # Another integer is the largest difference.
        leaves=tuple(
            sorted(leaves, key=lambda leaf: -(math.inf if leaf.size is None else leaf.size))
        ),
        num_leaves=len(names),
        has_trajectories=TRAJECTORIES in common,
        has_learned=len(networks) == 2 and networks[0] != networks[1],
        size=max(
            (
                math.sqrt(apart / (several or whole)) if whole else 0.0
                for group, (apart, whole, several) in squares.items()
                if not group.startswith(OPTIMIZER)
            ),
            default=0.0,
        ),
        has_other_integers=has_other_integers,
    )


def _group_of(name: str) -> str:
    """Return the part of a leaf's name that it shares with those of a similar size."""
    part, _, rest = name.partition(".")
    return f"{part}.{rest.partition('.')[0]}" if part == NETWORKS else part


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricDifference:
    """The first row of metrics with the same number of env steps and another value."""

    env_steps: int
    column: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.column} at {self.env_steps:,} env steps: {self.first} and {self.second}"


def compare_metrics(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> tuple[int, MetricDifference | None]:
    """Compare the rows of metrics of two runs, without columns of times.

    A row is of the time since the row before it. So after a resume, or with another
    `run.log_interval_env_steps`, rows with the same env steps may be of other times, and are not
    compared.

    Returns:
        The number of rows before the first that differs, and that; None: none differs.
    """
    # A row of an evaluation may have the env steps of a row of training.
    ours, theirs = (
        {
            int(row["env_steps"]): row
            for row in rows
            if "env_steps" in row and not any(column.startswith(_EVALUATION) for column in row)
        }
        for rows in (first, second)
    )
    # The env steps of the row before each.
    before = [dict(zip(rows, [None, *rows], strict=False)) for rows in (ours, theirs)]
    num_equal = 0
    for env_steps, row in ours.items():
        if env_steps not in theirs or before[0][env_steps] != before[1][env_steps]:
            continue
        other = theirs[env_steps]
        for column, value in row.items():
            if column in other and not column.startswith(_TIMES) and value != other[column]:
                return num_equal, MetricDifference(
                    env_steps=env_steps, column=column, first=value, second=other[column]
                )
        num_equal += 1
    return num_equal, None
