"""What a question of the check is: a record of what it changes, expects and says."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from sebulba.check.result import Answer


class Needs(enum.IntEnum):
    """What has to work before a question can be asked; each includes those above it."""

    SUBJECT = 0  # the agent and its environment
    RECORDING = 1  # recorded trajectories
    UPDATES = 2  # and an agent that takes updates
    GRADIENT = 3  # and recorded trajectories that give a gradient
    TRAINING = 4  # and hundreds of updates, for which the agent must not be too large


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A property of agents or environments, and how the check finds out whether this one has it.

    A change proves itself before its absence is a fault: `proof` says how. A bound says where it
    comes from, so that a reader can tell rounding from a choice.
    """

    name: str  # for `--only`
    ask: Callable[[Any], Answer]  # of the `Evidence`, or of the `OwnEnvironment`
    property: str
    needs: Needs = Needs.SUBJECT
    perturbs: str  # what it changes, or compares
    proof: str  # how it knows that this was a change, or when it does not ask
    expects: str  # what must change, and what must not
    bound: str  # of what counts as a change, and where it comes from
    likely_cause: str  # what it says on a failure that names no other one
    needs_jit: bool = False  # it is about compiled functions
