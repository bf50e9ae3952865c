"""What becomes of an update whose loss or gradients are not finite: it is not applied.

Everything is decided on the learner devices, all of which see the same averaged gradients. After
`limit` such updates in a row the state is frozen: no later update of the cycle changes anything, so
the host, which looks once a cycle, finds the state as the last of them saw it.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.types import PyTree

Tree = TypeVar("Tree", bound=PyTree)


class NonFiniteError(FloatingPointError):
    """As many updates in a row as are allowed had a loss or gradients that are not finite.

    Attributes:
        update: number of the last of them, counted from 0 over the whole run.
        cycle: number of its learner cycle.
    """

    def __init__(self, *, update: int, cycle: int, in_a_row: int):
        self.update = update
        self.cycle = cycle
        before = f", the last of {in_a_row} in a row" if in_a_row > 1 else ""
        super().__init__(
            f"the loss or the gradients of update {update} (learner cycle {cycle}){before}, are not"
            " finite; it was not applied"
        )


@pytree_dataclass
class NonFiniteCounts:
    """Updates that were not applied."""

    total: jax.Array  # [] int32
    in_a_row: jax.Array  # [] int32, up to the last update taken


def init_counts() -> NonFiniteCounts:
    """Returns the counts of a run before its first update."""
    return NonFiniteCounts(total=jnp.int32(0), in_a_row=jnp.int32(0))


def count(
    counts: NonFiniteCounts, is_finite: jax.Array, limit: int
) -> tuple[jax.Array, jax.Array, NonFiniteCounts]:
    """Counts an update.

    Args:
        counts: before it.
        is_finite: bool `[]`, its loss and gradients are.
        limit: updates in a row from which on nothing is applied any more.

    Returns:
        Whether it is to be applied, whether anything at all is to change (the number of the update
        and the experience, too), and the counts.
    """
    is_alive = counts.in_a_row < limit
    in_a_row = jnp.where(is_finite, 0, counts.in_a_row + 1)
    counts = NonFiniteCounts(
        total=counts.total + (is_alive & ~is_finite).astype(jnp.int32),
        in_a_row=jnp.where(is_alive, in_a_row, counts.in_a_row),
    )
    return is_alive & is_finite, is_alive & (in_a_row < limit), counts


def select(use_new: jax.Array, new: Tree, old: Tree) -> Tree:
    """Returns `new` where the scalar `use_new` holds, else `old`.

    Leaves that were passed through untouched cost nothing, be they as large as a replay.
    """
    return jax.tree.map(lambda x, y: x if x is y else jax.lax.select(use_new, x, y), new, old)
