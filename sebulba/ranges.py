"""Ranges of settings, as types: `discount: Fraction = 0.99`. Imports no jax.

`--help` and the configuration reference show the range of a setting, and a value outside of it is
an error before anything starts. Annotate the settings of your own agent in the same way, with a
type of this module or with `Annotated[float, Range(0, below=1)]`.
"""

import dataclasses
from typing import Annotated


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two bounds; None: no bound."""

    least: float | None = None
    most: float | None = None
    above: float | None = dataclasses.field(default=None, kw_only=True)
    below: float | None = dataclasses.field(default=None, kw_only=True)

    def __contains__(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """Return the range as `≥ 1`, `> 0`, `in [0, 1)`; empty without bounds."""
        low = f"[{self.least}" if self.least is not None else f"({self.above}"
        high = f"{self.most}]" if self.most is not None else f"{self.below})"
        if "None" not in low + high:
            return f"in {low}, {high}"
        bounds = {"≥": self.least, ">": self.above, "≤": self.most, "<": self.below}
        return "".join(f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None)


Count = Annotated[int, Range(1)]
"""1, 2, 3 …"""
Natural = Annotated[int, Range(0)]
"""0, 1, 2 …"""
Positive = Annotated[float, Range(above=0)]
"""More than 0."""
NonNegative = Annotated[float, Range(0)]
"""At least 0."""
Fraction = Annotated[float, Range(0, 1)]
"""0, 1 or between."""
Real = Annotated[float, Range()]
"""Any finite number."""
