"""Placing an actor state on the learner devices, for `Agent.shard_actor_state`."""

import dataclasses
from collections.abc import Sequence

from sebulba.agent import ActorStateSharding
from sebulba.types import PyTree


def shard_per_env_leaves(
    actor_state: PyTree, sharding: ActorStateSharding, *, replicated: Sequence[str] = ()
) -> PyTree:
    """Split every field of a dataclass of actor state on axis 0, but for those named.

    Args:
        actor_state: a dataclass; each leaf of a split field is `[B, ...]`.
        sharding: as `Agent.shard_actor_state` is given it.
        replicated: the fields that are not per environment, such as a key.
    """
    placed = {
        field.name: (sharding.replicate if field.name in replicated else sharding.split)(
            getattr(actor_state, field.name)
        )
        for field in dataclasses.fields(actor_state)
    }
    return dataclasses.replace(actor_state, **placed)
