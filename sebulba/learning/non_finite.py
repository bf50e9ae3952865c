"""Discards updates whose loss or gradients are not finite.

The learner devices decide, from averaged gradients that are equal on all of them: asking the host
would stall every update. The host looks once a learner cycle, so after `limit` such updates in a
row the devices freeze the state. It then still holds the inputs of the last of them, and a
checkpoint of it can rerun that update.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree

Tree = TypeVar("Tree", bound=PyTree)


class NonFiniteError(FloatingPointError):
    """The loss or gradients of too many updates in a row were not finite.

    Attributes:
        update: number of the last of these updates, from 0 over the whole run.
        cycle: number of its learner cycle.
    """

    def __init__(self, *, update: int, cycle: int, in_a_row: int):
        self.update = update
        self.cycle = cycle
        before = f", the last of {in_a_row} in a row," if in_a_row > 1 else ""
        super().__init__(
            f"the loss or the gradients of update {update} (learner cycle {cycle}){before} are not"
            " finite; the update was discarded"
        )


@pytree_dataclass
class NonFiniteCounts:
    """Numbers of discarded updates."""

    total: jax.Array  # [] int32
    in_a_row: jax.Array  # [] int32, directly before the next update


def init_counts() -> NonFiniteCounts:
    """Return the counts before the first update."""
    return NonFiniteCounts(total=jnp.int32(0), in_a_row=jnp.int32(0))


def count(
    counts: NonFiniteCounts, is_finite: jax.Array, limit: int
) -> tuple[jax.Array, jax.Array, NonFiniteCounts]:
    """Count an update and decide what it changes.

    Args:
        counts: before the update.
        is_finite: bool `[]`, of its loss and gradients.
        limit: discarded updates in a row that freeze the state.

    Returns:
        Whether to apply the update, whether to count it as a step (False once the state is frozen),
        and the new counts.
    """
    is_alive = counts.in_a_row < limit
    in_a_row = jnp.where(is_finite, 0, counts.in_a_row + 1)
    counts = NonFiniteCounts(
        total=counts.total + (is_alive & ~is_finite).astype(jnp.int32),
        in_a_row=jnp.where(is_alive, in_a_row, counts.in_a_row),
    )
    return is_alive & is_finite, is_alive & (in_a_row < limit), counts


def select(use_new: jax.Array, new: Tree, old: Tree) -> Tree:
    """Return `new` if the scalar `use_new` is True, else `old`.

    A leaf that is the same array in both, such as an unchanged replay buffer, costs nothing.
    """
    return jax.tree.map(lambda x, y: x if x is y else jax.lax.select(use_new, x, y), new, old)
