"""Bring a new ring to the point at which a checkpoint was taken."""

import dataclasses
import os
import pathlib
from typing import Any, Literal

import jax

from sebulba.hosts.remapping import HostRemapping
from sebulba.ring.ring import Ring
from sebulba.ring.state import are_between_streams, restore, shapes_of
from sebulba.storage.checkpoints import restore as checkpoints
from sebulba.storage.checkpoints.restore import Which, find_step, read_meta
from sebulba.storage.shares import num_hosts_of, share_of
from sebulba.toolkit.window import Window

Level = Literal["exact", "exact-reset", "restart"]
"""What resuming restores of the environments; everything else is restored completely.

exact: their whole state; exact-reset: they are recreated, as they would have been at this cycle
without the interruption; restart: they are recreated, and the current episodes are dropped.
"""

_EXPERIENCE = "learner.experience."
_HOW = {
    "exact": "environments are restored",
    "exact-reset": "environments are recreated at this cycle in any case",
    "restart": "environments are recreated, and their current episodes are dropped",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a resumed run continues."""

    num_cycles: int  # of the learner
    env_steps: int
    level: Level
    row: dict[str, Any]  # the unfinished row of metrics, as `MetricsRows.restore` takes it
    remapping: str | None = None  # what another number of hosts changes

    def __str__(self) -> str:
        text = f"resumes at cycle {self.num_cycles} ({self.level}: {_HOW[self.level]})"
        return text if self.remapping is None else f"{text}; {self.remapping}"


def resume(
    ring: Ring,
    directory: str | os.PathLike[str],
    which: Which,
    num_hosts: int | None = None,
) -> Resumed:
    """Bring a new ring to the point at which a checkpoint was taken.

    The new ring's learner state is deleted first, so that the devices never hold a replay twice;
    after an error the ring is unusable.

    Args:
        ring: this host's.
        directory: the first host's checkpoints.
        which: the checkpoint.
        num_hosts: hosts of the checkpoint; None: as the first host's part says.

    Raises:
        CheckpointError: as `sebulba.storage.checkpoints.restore.restore`.
    """
    directory = pathlib.Path(directory).absolute()
    if num_hosts is None:
        num_hosts = num_hosts_of(directory, find_step(directory, which))
    remapping = HostRemapping(
        num_stored=num_hosts, host=jax.process_index(), num_hosts=jax.process_count()
    )
    like, state = shapes_of(ring), ring.learner.state
    ignored: tuple[str, ...] = ()
    # The next learner cycle replaces all of a window before anything is learned from it. So it is
    # not read: in another version, it may have had other parts.
    window = state.experience if isinstance(state.experience, Window) else None
    if window is not None:
        state = dataclasses.replace(state, experience=None)
        like["learner"] = dataclasses.replace(like["learner"], experience=None)
        ignored = (_EXPERIENCE,)
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    stored = share_of(directory, remapping.source)
    arrays, meta = checkpoints.restore(stored, which, like, ignored=ignored)
    if remapping.is_needed:
        metas = [read_meta(share_of(directory, host), which) for host in remapping.accounts]
        carries = [actor.point.carry for actor in ring.actors]
        arrays, meta = remapping.applied_to(
            arrays, meta, metas, agent=ring.programs.agent, carries=carries
        )
    restore(ring, arrays, meta)
    if window is not None:
        ring.learner.state = dataclasses.replace(ring.learner.state, experience=window)
    level: Level = "restart"
    if not remapping.is_needed:
        is_stored = ring.actors[0].point.carry.env_state is not None
        level = "exact" if is_stored else "exact-reset" if are_between_streams(ring) else "restart"
    return Resumed(
        num_cycles=ring.learner.num_cycles,
        env_steps=ring.progress.env_steps,
        level=level,
        row=meta["progress"]["row"],
        remapping=remapping.describe(ring.programs.run_spec) if remapping.is_needed else None,
    )
