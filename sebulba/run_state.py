"""What a checkpoint of a run holds, and how a new ring goes on from one.

Nothing pauses for a checkpoint: the cut is what has been learned. It is taken between two learner
cycles, of the learner's state and of where each actor stood after its last trajectory that was
learned from. What was acted beyond that is acted again; in lock-step to the same bits, since
networks, actor state and environment state are the same. No stream gets a gap, and the deque need
not be stored.
"""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Literal

import jax

from sebulba.act_cycle import ActCarry
from sebulba.actor import Actor
from sebulba.assembly import Ring
from sebulba.checkpoints.checkpointer import Snapshot, snapshot
from sebulba.checkpoints.restore import Which, restore
from sebulba.types import PyTree, TrajectoryItem

Level = Literal["exact", "restart"]
"""exact: environments as they were; restart: they start anew, everything else as it was."""


class LearnedPoints:
    """Where each actor stood after its last trajectory that was learned from."""

    def __init__(self, actors: Iterable[Actor]):
        """Starts where the actors stand now."""
        self._points = [(actor.resume_point, actor.num_cycles) for actor in actors]

    def advance(self, items: Iterable[TrajectoryItem]) -> None:
        """Takes the trajectories of a learner cycle that is over."""
        for item in items:
            self._points[item.actor_id] = (item.resume_point, item.sequence_number + 1)

    @property
    def carries(self) -> list[ActCarry]:
        """What each actor's next cycle begins with."""
        return [carry for carry, _ in self._points]

    @property
    def num_cycles(self) -> list[int]:
        """Each actor's cycles so far, which is its next trajectory's number."""
        return [num_cycles for _, num_cycles in self._points]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunState:
    """A run between two learner cycles, in host memory."""

    num_cycles: int  # of the learner
    arrays: Snapshot
    meta: dict[str, Any]
    return_mean: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumed:
    """From where a run goes on."""

    num_cycles: int  # of the learner
    env_steps: int
    level: Level

    def __str__(self) -> str:
        how = {"exact": "environments as they were", "restart": "environments start anew"}
        return f"resumes at cycle {self.num_cycles} ({self.level}: {how[self.level]})"


def capture(ring: Ring, points: LearnedPoints) -> RunState:
    """Copies the run as it is now, between two learner cycles, to the host."""
    learner, progress = ring.learner, ring.progress
    return RunState(
        num_cycles=learner.num_cycles,
        arrays=snapshot(_stored(learner.state, points.carries)),
        meta={
            "learner": {"num_cycles": learner.num_cycles, "num_updates": learner.num_updates},
            "actors": {"num_cycles": points.num_cycles},
            "ledger": {"learned": [account["learned"] for account in ring.ledger.balance()]},
            "progress": progress.state(),
        },
        return_mean=progress.window.return_mean,
    )


def resume(ring: Ring, directory: str | os.PathLike[str], which: Which) -> Resumed:
    """Brings a new ring to where a checkpoint was taken.

    The new ring's learner state is given up first, so that a replay is never held twice on the
    devices: after an error the ring is of no use.

    Raises:
        CheckpointError: as `sebulba.checkpoints.restore.restore`.
    """
    carries = [actor.resume_point for actor in ring.actors]
    like = jax.tree.map(_shape, _stored(ring.learner.state, carries))
    for leaf in jax.tree.leaves(ring.learner.state):
        leaf.delete()
    arrays, meta = restore(directory, which, like)
    ring.learner.restore(arrays["learner"], **meta["learner"])
    actor_cycles = meta["actors"]["num_cycles"]
    for actor, stored, num_cycles in zip(ring.actors, arrays["actors"], actor_cycles, strict=True):
        carry = dataclasses.replace(actor.resume_point, **stored)
        actor.start_at(carry, num_cycles=num_cycles)
    ring.trajectories.restore(actor_cycles)
    ring.ledger.restore(meta["ledger"]["learned"])
    ring.progress.restore(meta["progress"])
    return Resumed(
        num_cycles=ring.learner.num_cycles,
        env_steps=ring.progress.env_steps,
        level="restart" if carries[0].env_state is None else "exact",
    )


def _stored(learner_state: PyTree, carries: Iterable[ActCarry]) -> dict[str, PyTree]:
    return {"learner": learner_state, "actors": [_stored_of_actor(carry) for carry in carries]}


def _stored_of_actor(carry: ActCarry) -> dict[str, PyTree]:
    """Returns the fields of a carry that outlive the process; the others are a new actor's."""
    if carry.env_state is None:
        return {"actor_state": carry.actor_state}
    return {field.name: getattr(carry, field.name) for field in dataclasses.fields(carry)}


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    # Of NumPy arrays, which stay in host memory, there is no sharding.
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
