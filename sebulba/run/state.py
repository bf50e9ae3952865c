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

from sebulba.acting.act_cycle import ActCarry
from sebulba.acting.actor import Actor
from sebulba.acting.renewal import Seam, seam_after
from sebulba.run.assembly import Ring
from sebulba.storage.checkpoints.checkpointer import Snapshot, snapshot
from sebulba.storage.checkpoints.restore import CheckpointError, Which, restore
from sebulba.types import EpisodeRecord, PyTree, TrajectoryItem

Level = Literal["exact", "exact-reset", "restart"]
"""What comes back of the environments; all else is as it was.

exact: they are as they were; exact-reset: they are made anew, as they are at this cycle without a
break; restart: they are made anew, and the episodes that were under way are cut.
"""

_HOW = {
    "exact": "environments as they were",
    "exact-reset": "environments are made anew here, as without a break",
    "restart": "environments start anew",
}


class LearnedPoints:
    """Where each actor stood after its last trajectory that was learned from."""

    def __init__(self, actors: Iterable[Actor]):
        """Starts where the actors stand now."""
        actors = tuple(actors)
        self._points = [(actor.resume_point, actor.num_cycles) for actor in actors]
        self._renewals = [actor.renewal for actor in actors]

    def advance(self, items: Iterable[TrajectoryItem]) -> None:
        """Takes the trajectories of a learner cycle that is over."""
        for item in items:
            self._points[item.actor_id] = (item.resume_point, item.sequence_number + 1)

    @property
    def are_between_streams(self) -> bool:
        """Whether no actor's environments have to be known: all are made anew, or are the first."""
        return all(
            num_cycles == 0 or renewal.is_due(num_cycles)
            for renewal, num_cycles in zip(self._renewals, self.num_cycles, strict=True)
        )

    @property
    def seams(self) -> list[Seam]:
        """What is left of each actor's episodes if its environments start anew here."""
        return [Seam() if self.are_between_streams else seam_after(carry) for carry in self.carries]

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
        return f"resumes at cycle {self.num_cycles} ({self.level}: {_HOW[self.level]})"


def capture(ring: Ring, points: LearnedPoints) -> RunState:
    """Copies the run as it is now, between two learner cycles, to the host."""
    learner, progress = ring.learner, ring.progress
    return RunState(
        num_cycles=learner.num_cycles,
        arrays=snapshot(_stored(learner.state_of_host, points.carries)),
        meta={
            "hosts": jax.process_count(),
            "learner": {"num_cycles": learner.num_cycles, "num_updates": learner.num_updates},
            "actors": {
                "num_cycles": points.num_cycles,
                "seams": [dataclasses.asdict(seam) for seam in points.seams],
            },
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
        CheckpointError: as `sebulba.storage.checkpoints.restore.restore`, or for another
            number of hosts.
    """
    carries = [actor.resume_point for actor in ring.actors]
    like = jax.tree.map(_shape, _stored(ring.learner.state_of_host, carries))
    for leaf in jax.tree.leaves(ring.learner.state):
        leaf.delete()
    arrays, meta = restore(directory, which, like)
    num_hosts = meta.get("hosts", 1)
    if num_hosts != jax.process_count():
        raise CheckpointError(
            f"checkpoint {which} in {directory} was saved by {num_hosts} hosts, each of which has a"
            f" part of it, and this run has {jax.process_count()}; start it on {num_hosts}"
        )
    ring.learner.restore(arrays["learner"], **meta["learner"])
    actor_cycles = meta["actors"]["num_cycles"]
    for actor, stored, num_cycles in zip(ring.actors, arrays["actors"], actor_cycles, strict=True):
        carry = dataclasses.replace(actor.resume_point, **stored)
        actor.start_at(carry, num_cycles=num_cycles)
    level: Level = "exact"
    if carries[0].env_state is None:
        level = "exact-reset" if LearnedPoints(ring.actors).are_between_streams else "restart"
    if level == "restart":
        for actor, seam in zip(ring.actors, meta["actors"]["seams"], strict=True):
            # An actor that has not acted begins with its first environments, as a new run's.
            if actor.num_cycles:
                actor.end_stream(_read_seam(seam))
    ring.trajectories.restore(actor_cycles)
    ring.ledger.restore(meta["ledger"]["learned"])
    ring.progress.restore(meta["progress"])
    return Resumed(
        num_cycles=ring.learner.num_cycles,
        env_steps=ring.progress.env_steps,
        level=level,
    )


def _stored(learner_state: PyTree, carries: Iterable[ActCarry]) -> dict[str, PyTree]:
    return {"learner": learner_state, "actors": [_stored_of_actor(carry) for carry in carries]}


def _stored_of_actor(carry: ActCarry) -> dict[str, PyTree]:
    """Returns the fields of a carry that outlive the process; the others are a new actor's."""
    if carry.env_state is None:
        return {"actor_state": carry.actor_state}
    return {field.name: getattr(carry, field.name) for field in dataclasses.fields(carry)}


def _read_seam(stored: dict[str, Any]) -> Seam:
    finished = tuple(EpisodeRecord(**record) for record in stored["finished"])
    return Seam(finished=finished, num_cut=stored["num_cut"])


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    # Of NumPy arrays, which stay in host memory, there is no sharding.
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
