"""The target network's period, the same for every agent that has one."""

import chex
import jax
import jax.numpy as jnp

from sebulba.types import Clock
from tests.compiled import jitted


def check_copies_to_the_target(agent, networks, experience):
    """Check that `optimize` copies once in a period of 2, also after discarded updates."""
    opt_state = jitted(agent.init_opt_state)(networks)
    grads = jax.tree.map(jnp.ones_like, networks)
    optimize = jitted(agent.optimize)
    copies = []
    # Updates 4 and 7 are discarded; the last of a period of 2 is odd.
    for step in (0, 1, 2, 3, 5, 6, 8, 9):
        after, opt_state = optimize(networks, opt_state, grads, experience, Clock.at(step))
        is_copy = jax.tree.all(jax.tree.map(jnp.array_equal, after.target, after.online))
        if not is_copy:
            chex.assert_trees_all_equal(after.target, networks.target)
        copies.append((step, bool(is_copy)))
        networks = after
    assert [step for step, is_copy in copies if is_copy] == [1, 3, 5, 8, 9]
