"""`checksums.jsonl`: what the arrays of a run were after some of its learner cycles.

A row has a checksum of each leaf of the networks, the optimizer state and the trajectories that the
cycle learned from. Beside the checksum, which says whether bits are equal, a leaf of floats has a
sketch, which says by how much they differ (`sebulba.storage.sketches`). Imports no jax.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from sebulba.storage.metrics.files import read_lines
from sebulba.storage.names import CHECKSUMS

NETWORKS, OPTIMIZER, TRAJECTORIES = "networks", "opt_state", "trajectories"
"""The first words of the leaves' names."""

_FIRST = (1, 2, 5, 10, 20, 50, 100)  # learner cycles
_TOO_LARGE = 1e150  # for a sketch, since its square has to be a number, too
_INTERVAL = 200  # learner cycles, until there are 100 times as many of them


def next_row(num_cycles: int) -> int:
    """Return the next number of learner cycles, after this one, that has a row.

    1, 2, 5, 10, 20, 50, 100, then every 200th, from 20,000 on every 2,000th, and so on: so a
    row and a file stay cheap however short the cycles and however long the run.
    """
    for first in _FIRST:
        if num_cycles < first:
            return first
    interval = _INTERVAL
    while num_cycles >= 100 * interval:
        interval *= 10
    return (num_cycles // interval + 1) * interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafSum:
    """The checksum of a leaf, and its sketch if it holds floats."""

    crc32: str
    norm: float | None = None  # None: no floats, or one of them is not finite
    projections: tuple[float | None, ...] = ()

    def to_json(self) -> list[Any]:
        """Return a list of JSON values."""
        return [self.crc32] if not self.projections else [self.crc32, self.norm, *self.projections]

    @classmethod
    def from_json(cls, value: Any) -> "LeafSum":
        """Return the checksum of what `to_json` returned.

        Raises:
            ValueError: it is damaged, or so large that no array of float32 has it.
        """
        crc32, *sketch = value
        if not isinstance(crc32, str):
            raise ValueError(f"expected a checksum, got {crc32}")
        for number in sketch:
            if number is not None and not abs(number) < _TOO_LARGE:
                raise ValueError(f"expected a norm or a projection, got {number}")
        norm = sketch[0] if sketch else None
        return cls(crc32=crc32, norm=norm, projections=tuple(sketch[1:]))

    @property
    def is_one_number(self) -> bool:
        """Whether the leaf has one element, or one that is not 0: as large as its projections."""
        norm = self.norm
        return norm is not None and all(
            each is not None and math.isclose(abs(each), norm, rel_tol=1e-6)
            for each in self.projections
        )

    def distance(self, other: "LeafSum") -> float | None:
        """Return an estimate of the norm of the difference; None: a leaf has no finite sketch."""
        if not self.projections or len(self.projections) != len(other.projections):
            return None
        squares = []
        for ours, theirs in zip(self.projections, other.projections, strict=True):
            if ours is None or theirs is None:
                return None
            squares.append((ours - theirs) ** 2)
        return math.sqrt(sum(squares) / len(squares))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChecksumRow:
    """A row of the file."""

    num_cycles: int  # learner cycles of the run so far
    env_steps: int
    leaves: Mapping[str, LeafSum]  # by `networks.…`, `opt_state.…`, `trajectories.…`


def checksums_of(run_dir: pathlib.Path) -> list[ChecksumRow]:
    """Return the rows of a run in their order; damaged lines are left out. Empty: it has none."""
    return read_checksums(run_dir)[0]


def read_checksums(run_dir: pathlib.Path) -> tuple[list[ChecksumRow], int]:
    """Return the rows of a run in their order, and the number of damaged lines."""
    rows = []
    try:
        lines, num_damaged = read_lines(run_dir / CHECKSUMS)
    except OSError:
        return [], 0
    for line in lines:
        try:
            value = json.loads(line)
            row = ChecksumRow(
                num_cycles=int(value["learner_cycles"]),
                env_steps=int(value["env_steps"]),
                leaves={name: LeafSum.from_json(leaf) for name, leaf in value["leaves"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            num_damaged += 1
            continue
        rows.append(row)
    return rows, num_damaged
