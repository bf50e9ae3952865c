"""Minibatches of a window of trajectories: the epochs of agents such as PPO.

Every learner device shuffles its own share, once for each epoch. An entry of a minibatch is
one transition, or one environment's whole unroll where the network is recurrent.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.prng import stream
from sebulba.toolkit.reductions import learner_device_index
from sebulba.toolkit.shuffling import shuffle
from sebulba.toolkit.window import Window
from sebulba.types import Clock, EnvStep, PyTree, RunSpec


@pytree_dataclass
class TransitionBatch:
    """Single transitions, each from any environment and time."""

    env_steps: EnvStep  # [1, M, ...], the rows in which the actions were selected
    action: jax.Array  # [1, M, ...]
    extras: PyTree  # [1, M, ...]
    valid: jax.Array  # [1, M] bool


def check_num_minibatches(num_minibatches: int, run_spec: RunSpec, *, of_unrolls: bool) -> None:
    """Check that a learner device's share of a learner cycle can be split into minibatches.

    Args:
        num_minibatches: optimisation steps per epoch.
        run_spec: the run's.
        of_unrolls: minibatches hold whole unrolls, for recurrent networks, not transitions.

    Raises:
        ConfigError: `num_minibatches` does not divide the number of entries.
    """
    num_entries, kind = run_spec.batch_size_per_learner_device, "environments"
    if not of_unrolls:
        num_entries, kind = num_entries * run_spec.trajectory_length, "transitions"
    if num_entries % num_minibatches:
        lower = next(n for n in range(num_minibatches, 0, -1) if num_entries % n == 0)
        higher = (n for n in range(num_minibatches, num_entries + 1) if num_entries % n == 0)
        nearest = dict.fromkeys((lower, next(higher, lower)))
        raise ConfigError(
            f"agent.num_minibatches: expected a divisor of the {num_entries} {kind} per learner"
            f" device and learner cycle, got {num_minibatches}. Set"
            f" {' or '.join(map(str, nearest))}"
        )


def with_orders(window: Window, key: jax.Array, *, num_epochs: int, of_unrolls: bool) -> Window:
    """Return the window with the orders in which its epochs learn from its entries.

    Drawn when a trajectory comes in, not when an epoch begins: a branch in every update would cost
    a GPU more than the updates of a small network, since the host decides on it.

    Args:
        window: a window of `[T + 1, N·B]` rows.
        key: of the newest trajectory's actor, such as that of its state before row 0; not consumed.
        num_epochs: optimisation steps learn this often from each entry.
        of_unrolls: the `N·B` entries are whole unrolls, not the `T·N·B` transitions.
    """
    length, width = window.trajectory.action.shape[:2]
    num_entries = width if of_unrolls else length * width
    # The actor's key is the same on all learner devices, whose entries differ.
    key = jax.random.fold_in(stream(key, "minibatches"), learner_device_index())
    entries = jnp.arange(num_entries, dtype=jnp.int32)
    orders = jax.vmap(lambda key: shuffle(key, entries))(jax.random.split(key, num_epochs))
    return dataclasses.replace(window, order=orders)


def next_minibatch(window: Window, clock: Clock, num_minibatches: int) -> jax.Array:
    """Return the entries `[M]` of the minibatch that a step learns from.

    All steps of an epoch share an order, so no entry is learned from twice in an epoch, also if
    some of its steps are discarded as non-finite.

    Args:
        window: `with_orders`.
        clock: the step's.
        num_minibatches: optimisation steps per epoch; divides the number of entries.
    """
    assert window.order is not None, (
        "next_minibatch: the window has no orders; return with_orders(window, …) from"
        " init_experience, as from update_experience"
    )
    num_updates = window.order.shape[0] * num_minibatches
    return window.order.reshape(num_updates, -1)[clock.step % num_updates]


def choose_environments(window: Window, chosen: jax.Array) -> Window:
    """Return the whole unrolls of the environments `chosen` `[M]`."""
    return dataclasses.replace(
        window,
        initial=jax.tree.map(lambda leaf: leaf[chosen], window.initial),
        trajectory=jax.tree.map(lambda leaf: leaf[:, chosen], window.trajectory),
    )


def choose_transitions(window: Window, chosen: jax.Array) -> TransitionBatch:
    """Return the transitions `chosen` `[M]`; entry `t · N · B + b` is environment b at row t."""

    def choose(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, *leaf.shape[2:])[chosen][None]

    trajectory = window.trajectory
    transitions = TransitionBatch(
        env_steps=jax.tree.map(lambda leaf: leaf[:-1], trajectory.env_steps),
        action=trajectory.action,
        extras=trajectory.extras,
        valid=trajectory.valid,
    )
    return jax.tree.map(choose, transitions)
