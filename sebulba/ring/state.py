"""A ring between two learner cycles as arrays and a dict, and back.

Nothing pauses for a checkpoint, because it holds what has been *learned*: the learner's state, and
each actor's point after its last trajectory that was learned from. Later trajectories are acted
again after resuming; with a policy lag to the same bits, since networks, actor state and
environment state are the same. Every stream continues where the learner left it, and the deque need
not be stored.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sebulba.ring.episodes import end_episodes
from sebulba.ring.records import ActCarry, FinishedEpisodes, Point, StreamBoundary
from sebulba.ring.ring import Ring
from sebulba.types import PyTree


def state_of(ring: Ring) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """Return the ring's state between two learner cycles, without a copy.

    Returns:
        `learner`, `actors` and `staged`: this host's arrays on their devices. And JSON values.
    """
    learner = ring.learner
    carries = [point.carry for point in ring.points]
    num_players = ring.programs.run_spec.environment.num_players
    boundaries = [
        end_episodes(carry.statistics, carry.env_step, num_players=num_players) for carry in carries
    ]
    arrays = {
        "learner": learner.state_of_host,
        "actors": [_stored_of_actor(carry) for carry in carries],
        "staged": ring.older_networks(),
    }
    meta = {
        "hosts": jax.process_count(),
        "learner": {"num_cycles": learner.num_cycles, "num_updates": learner.num_updates},
        "actors": {
            "num_cycles": [point.cycle for point in ring.points],
            # Reported by the next trajectories if environments are recreated here.
            "boundaries": [_stored_boundary(boundary) for boundary in boundaries],
        },
        "ledger": {"learned": [account["learned"] for account in ring.ledger.balance()]},
        "progress": ring.progress.state(),
    }
    return arrays, meta


def shapes_of(ring: Ring) -> dict[str, PyTree]:
    """Return shapes, dtypes and shardings of the arrays of `state_of`, of a new ring."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        # NumPy arrays stay in host memory and have no sharding.
        sharding = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    arrays = {
        "learner": ring.learner.state_of_host,
        "actors": [_stored_of_actor(actor.point.carry) for actor in ring.actors],
    }
    # Without a sharding, they are restored to host memory.
    networks = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), ring.learner.published
    )
    return jax.tree.map(shape, arrays) | {"staged": [networks] * (ring.schedule.num_staged - 1)}


def restore(ring: Ring, arrays: dict[str, PyTree], meta: dict[str, Any]) -> None:
    """Bring a new ring to a stored state.

    An actor whose environments are not stored recreates them before its next cycle.
    """
    learner = ring.learner
    learner.restore(arrays["learner"], **meta["learner"])
    ring.stage_older(arrays["staged"])
    stored = zip(
        ring.actors,
        arrays["actors"],
        meta["actors"]["num_cycles"],
        meta["actors"]["boundaries"],
        strict=True,
    )
    for actor, fields, num_cycles, boundary in stored:
        new = actor.point
        if num_cycles == 0:
            # An actor that has not acted begins with its first environments, as in a new run.
            carry = dataclasses.replace(new.carry, actor_state=fields["actor_state"])
            actor.continue_at(dataclasses.replace(new, carry=carry))
            continue
        actor.continue_at(
            Point(
                cycle=num_cycles,
                carry=dataclasses.replace(new.carry, **fields),
                boundary=None if "env_state" in fields else _boundary(boundary),
            )
        )
    ring.reset_points()
    ring.trajectories.restore(meta["actors"]["num_cycles"])
    ring.ledger.restore(meta["ledger"]["learned"])
    ring.progress.restore(meta["progress"])


def are_between_streams(ring: Ring) -> bool:
    """Whether the next cycles of all actors begin in environments made from known seeds."""
    return all(
        point.cycle == 0 or actor.is_recreated_at(point)
        for actor, point in zip(ring.actors, ring.points, strict=True)
    )


def _stored_boundary(boundary: StreamBoundary) -> dict[str, Any]:
    """Return the JSON values of a boundary, as `joined_boundaries` takes them."""
    return {
        "returns": boundary.finished.episode_return.tolist(),
        "lengths": boundary.finished.episode_length.tolist(),
        "num_interrupted": boundary.num_interrupted,
    }


def joined_boundaries(stored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the stored boundary of several streams that one actor continues."""
    columns = [_columns_of(each) for each in stored]
    return {
        "returns": [number for returns, _ in columns for number in returns],
        "lengths": [number for _, lengths in columns for number in lengths],
        "num_interrupted": sum(each["num_interrupted"] for each in stored),
    }


def _boundary(stored: dict[str, Any]) -> StreamBoundary:
    returns, lengths = _columns_of(stored)
    return StreamBoundary(
        finished=FinishedEpisodes(
            episode_return=np.array(returns, np.float32),
            episode_length=np.array(lengths, np.int32),
            has_results=np.zeros(len(returns), bool),
        ),
        num_interrupted=stored["num_interrupted"],
    )


def _columns_of(stored: dict[str, Any]) -> tuple[list[float], list[int]]:
    """Return the returns and the lengths of a stored boundary's finished episodes."""
    if "finished" in stored:  # Earlier versions stored a dict for each episode.
        records = stored["finished"]
        return (
            [record["episode_return"] for record in records],
            [record["episode_length"] for record in records],
        )
    return stored["returns"], stored["lengths"]


def _stored_of_actor(carry: ActCarry) -> dict[str, PyTree]:
    """Return the fields of a carry that are stored; the others are a new actor's."""
    if carry.env_state is None:
        return {"actor_state": carry.actor_state}
    return {field.name: getattr(carry, field.name) for field in dataclasses.fields(carry)}
