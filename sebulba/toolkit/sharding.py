"""Placement of an actor state on the learner devices, for `Agent.shard_actor_state`."""

import dataclasses
from collections.abc import Sequence

from sebulba.agent import ActorStateSharding
from sebulba.types import PyTree


def shard_per_env_leaves(
    actor_state: PyTree, sharding: ActorStateSharding, *, replicated: Sequence[str] = ()
) -> PyTree:
    """Split the fields of an actor state over the learner devices, and copy the `replicated` ones.

    Args:
        actor_state: a dataclass; each leaf of a split field is `[B, ...]`.
        sharding: the argument of `Agent.shard_actor_state`.
        replicated: names of fields that are not per environment, such as a key.
    """
    placed = {
        field.name: (sharding.replicate if field.name in replicated else sharding.split)(
            getattr(actor_state, field.name)
        )
        for field in dataclasses.fields(actor_state)
    }
    return dataclasses.replace(actor_state, **placed)
