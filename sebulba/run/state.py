"""What a checkpoint of a run holds, and how a new ring is brought to it.

Nothing pauses for a checkpoint, because it holds what has been *learned*. It is taken between two
learner cycles: the learner's state, and each actor's point after its last trajectory that was
learned from. Later trajectories are acted again after resuming; in lock-step to the same bits,
since networks, actor state and environment state are the same. Every stream continues where the
learner left it, and the deque need not be stored.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterable
from typing import Any, Literal

import jax

from sebulba.acting.act_cycle import ActCarry
from sebulba.acting.actor import Actor
from sebulba.acting.env_reset import StreamBoundary, boundary_after
from sebulba.run.assembly import Ring
from sebulba.run.dealing import Deal, begun_anew, describe_deal, join_boundaries, sum_accounts
from sebulba.storage.checkpoints.checkpointer import Snapshot, snapshot
from sebulba.storage.checkpoints.restore import Which, find_step, read_meta, restore
from sebulba.storage.shares import num_hosts_of, share_of
from sebulba.types import Networks, PyTree, TrajectoryItem

Level = Literal["exact", "exact-reset", "restart"]
"""What resuming restores of the environments; everything else is restored completely.

exact: their whole state; exact-reset: they are recreated, as they would have been at this cycle
without the interruption; restart: they are recreated, and the current episodes are dropped.
"""

_HOW = {
    "exact": "environments are restored",
    "exact-reset": "environments are recreated at this cycle in any case",
    "restart": "environments are recreated, and their current episodes are dropped",
}


class LearnedPoints:
    """Each actor's point after its last trajectory that was learned from."""

    def __init__(self, actors: Iterable[Actor]):
        """Start at the actors' current points."""
        actors = tuple(actors)
        self._points = [(actor.resume_point, actor.num_cycles) for actor in actors]
        self._reset_policies = [actor.reset_policy for actor in actors]

    def advance(self, items: Iterable[TrajectoryItem]) -> None:
        """Move to the points after the trajectories of a learner cycle."""
        for item in items:
            self._points[item.actor_id] = (item.resume_point, item.sequence_number + 1)

    @property
    def are_between_streams(self) -> bool:
        """Whether every actor's next cycle begins with environments made from a known seed."""
        return all(
            num_cycles == 0 or policy.is_due(num_cycles)
            for policy, num_cycles in zip(self._reset_policies, self.num_cycles, strict=True)
        )

    @property
    def boundaries(self) -> list[StreamBoundary]:
        """Each actor's last episodes, for the case that its environments are recreated here."""
        if self.are_between_streams:
            return [StreamBoundary() for _ in self._points]
        return [boundary_after(carry) for carry in self.carries]

    @property
    def carries(self) -> list[ActCarry]:
        """What each actor's next cycle begins with."""
        return [carry for carry, _ in self._points]

    @property
    def num_cycles(self) -> list[int]:
        """Each actor's completed cycles, which is its next trajectory's sequence number."""
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
    """Where a resumed run continues."""

    num_cycles: int  # of the learner
    env_steps: int
    level: Level
    deal: str | None = None  # what another number of hosts changes

    def __str__(self) -> str:
        text = f"resumes at cycle {self.num_cycles} ({self.level}: {_HOW[self.level]})"
        return text if self.deal is None else f"{text}; {self.deal}"


def capture(ring: Ring, points: LearnedPoints) -> RunState:
    """Copy the run's current state, between two learner cycles, to the host."""
    learner, progress = ring.learner, ring.progress
    return RunState(
        num_cycles=learner.num_cycles,
        arrays=snapshot(
            _stored(learner.state_of_host, points.carries) | {"staged": _older_networks(ring)}
        ),
        meta={
            "hosts": jax.process_count(),
            "learner": {"num_cycles": learner.num_cycles, "num_updates": learner.num_updates},
            "actors": {
                "num_cycles": points.num_cycles,
                "boundaries": [dataclasses.asdict(each) for each in points.boundaries],
            },
            "ledger": {"learned": [account["learned"] for account in ring.ledger.balance()]},
            "progress": progress.state(),
        },
        return_mean=progress.window.return_mean,
    )


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
        ring: of this host.
        directory: of the first host's checkpoints.
        which: the checkpoint.
        num_hosts: of the checkpoint; None: as the first host's share says.

    Raises:
        CheckpointError: as `sebulba.storage.checkpoints.restore.restore`.
    """
    directory = pathlib.Path(directory).absolute()
    if num_hosts is None:
        num_hosts = num_hosts_of(directory, find_step(directory, which))
    deal = Deal(num_stored=num_hosts, host=jax.process_index(), num_hosts=jax.process_count())
    carries = [actor.resume_point for actor in ring.actors]
    stored = _stored(ring.learner.state_of_host, carries)
    like = jax.tree.map(_shape, stored) | {"staged": _older_networks_like(ring)}
    for leaf in jax.tree.leaves(ring.learner.state):
        leaf.delete()
    arrays, meta = restore(share_of(directory, deal.source), which, like)
    metas = [
        meta if host == deal.source else read_meta(share_of(directory, host), which)
        for host in deal.accounts
    ]
    ring.learner.restore(arrays["learner"], **meta["learner"])
    _stage_older_networks(ring, arrays["staged"])
    accounts = sum_accounts(metas, len(ring.actors))
    level = _resume_actors(ring, deal, arrays["actors"], meta, metas)
    ring.trajectories.restore(meta["actors"]["num_cycles"])
    ring.ledger.restore(accounts["learned"])
    ring.progress.restore(meta["progress"] | accounts["counts"])
    return Resumed(
        num_cycles=ring.learner.num_cycles,
        env_steps=ring.progress.env_steps,
        level=level,
        deal=describe_deal(deal, ring.config, len(ring.learner.learner_devices.devices))
        if deal.is_new
        else None,
    )


def _resume_actors(
    ring: Ring,
    deal: Deal,
    stored: list[dict[str, PyTree]],
    meta: dict[str, Any],
    metas: list[dict[str, Any]],
) -> Level:
    """Bring the actors to where they were, or begin them anew if the hosts are others."""
    actor_cycles = meta["actors"]["num_cycles"]
    for actor, of_actor, num_cycles in zip(ring.actors, stored, actor_cycles, strict=True):
        if deal.is_new:
            carry = begun_anew(
                ring.agent,
                actor.resume_point,
                env_steps=meta["progress"]["env_steps"],
                num_cycles=ring.learner.num_cycles,
            )
        else:
            carry = dataclasses.replace(actor.resume_point, **of_actor)
        actor.start_at(carry, num_cycles=num_cycles)
    level: Level = "restart"
    if not deal.is_new and ring.actors[0].resume_point.env_state is not None:
        level = "exact"
    elif not deal.is_new and LearnedPoints(ring.actors).are_between_streams:
        level = "exact-reset"
    if level == "restart":
        boundaries = join_boundaries(metas, len(ring.actors))
        for actor, boundary in zip(ring.actors, boundaries, strict=True):
            # An actor that has not acted begins with its first environments, as in a new run.
            if actor.num_cycles:
                actor.end_stream(boundary)
    return level


def _stored(learner_state: PyTree, carries: Iterable[ActCarry]) -> dict[str, PyTree]:
    return {"learner": learner_state, "actors": [_stored_of_actor(carry) for carry in carries]}


def _stored_of_actor(carry: ActCarry) -> dict[str, PyTree]:
    """Return the fields of a carry that are stored; the others are a new actor's."""
    if carry.env_state is None:
        return {"actor_state": carry.actor_state}
    return {field.name: getattr(carry, field.name) for field in dataclasses.fields(carry)}


def _older_networks(ring: Ring) -> list[Networks]:
    """Return the networks of the `policy_lag` versions before the current one, the oldest first.

    The next act cycles need them. Before the first learner cycles, version 0 stands for all.
    """
    staging = ring.stagings[ring.actor_devices[0]]
    current = ring.learner.num_cycles
    older = [networks for version, networks in staging.staged if version < current]
    first = older[0] if older else ring.learner.networks_on(ring.actor_devices[0])
    return [first] * (ring.schedule.num_staged - 1 - len(older)) + older


def _older_networks_like(ring: Ring) -> list[Networks]:
    # Without a sharding, they are restored to host memory.
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), ring.learner.published
    )
    return [shapes] * (ring.schedule.num_staged - 1)


def _stage_older_networks(ring: Ring, networks: list[Networks]) -> None:
    first = ring.learner.num_cycles - len(networks)
    for device, staging in ring.stagings.items():
        for version, each in enumerate(networks, start=first):
            if version >= 0:
                staging.append(version, jax.device_put(each, device))


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    # NumPy arrays stay in host memory and have no sharding.
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
