"""Checks that a cycle's minibatches hold every transition equally often."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.one_device import OneDevice
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, failed, passed, skipped
from sebulba.check.sensitivity import ATTEMPTS
from sebulba.types import Clock, Experience, Networks

_MAX_UPDATES = 256


def epochs(evidence: Evidence) -> Answer:
    """Count the updates of a learner cycle in which each transition has a gradient.

    The gradient is that of the loss with respect to the experience, which includes observations.
    """
    subject, sensitivity = evidence.subject, evidence.loss
    num_updates = subject.updates_per_cycle
    if num_updates < 2 or not sensitivity.is_on_policy:
        return skipped("the agent takes one update per cycle, or has a replay")
    if num_updates > _MAX_UPDATES:
        return skipped(f"{num_updates} updates per cycle are too many to try")
    one = OneDevice(subject)  # with all its epochs
    length = subject.run_spec.trajectory_length
    items = sensitivity.items[-subject.run_spec.trajectories_per_cycle :]
    valid = np.concatenate([item.trajectory.valid for item in items], axis=1)
    experience = one.experience(sensitivity.networks, items)

    def loss(
        networks: Networks, floats: list, experience: Experience, key: jax.Array, clock: Clock
    ) -> Any:
        leaves, structure = jax.tree.flatten(experience)
        places = [i for i, leaf in enumerate(leaves) if _is_rows(leaf, valid)]
        for place, leaf in zip(places, floats, strict=True):
            leaves[place] = leaf
        value, aux = one.agent.loss(networks, jax.tree.unflatten(structure, leaves), key, clock)
        return value, aux[0]

    gradients = jax.jit(jax.grad(loss, argnums=1, has_aux=True))
    is_learned = np.zeros((num_updates, *valid.shape), bool)
    # With other networks as well: a dead unit hides a transition, and minibatches stay the same.
    for attempt in range(ATTEMPTS):
        networks, rest = sensitivity.networks_of(attempt), experience
        for step in range(num_updates):
            floats = [leaf for leaf in jax.tree.leaves(rest) if _is_rows(leaf, valid)]
            if not floats:
                return skipped("no leaf of the experience has rows of floats [T, B, …]")
            key = jax.random.fold_in(jax.random.key(subject.config.seed), step)
            grads, rest = gradients(networks, floats, rest, key, Clock.at(step))
            for grad in map(np.asarray, grads):
                rows = (grad[:length] != 0.0).reshape(*valid.shape, -1)
                is_learned[step] |= rows.any(axis=-1)
        counts = is_learned.sum(axis=0)
        if np.ptp(counts[valid]) == 0:
            break
    values, numbers = np.unique(counts[valid], return_counts=True)
    expected = int(values[np.argmax(numbers)])
    wrong = np.argwhere(valid & (counts != expected))
    if len(wrong) or expected == 0:
        row, env = wrong[0] if len(wrong) else (0, 0)
        return failed(
            f"experience (row {row}, env {env}): expected a gradient in the same number of a"
            f" cycle's {num_updates} updates as for other transitions ({expected}), got"
            f" {counts[row, env]}; {len(wrong)} of {valid.sum()} transitions differ"
        )
    return passed(f"{valid.sum()} transitions, each in {expected} of {num_updates} updates")


def _is_rows(leaf: Any, valid: np.ndarray) -> bool:
    length, width = valid.shape
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return (
        is_float
        and leaf.ndim >= 2
        and leaf.shape[0] in (length, length + 1)
        and (leaf.shape[1] == width)
    )


EPOCHS = Question(
    name="epochs",
    ask=epochs,
    property="each epoch learns once from every transition",
    needs=Needs.GRADIENT,
    perturbs="differentiates each loss of a cycle with respect to the experience",
    proof="with several networks: a unit that is dead in all of them is rare",
    expects="a gradient of each transition in equally many updates",
    bound="exact: what a minibatch leaves out has the gradient 0",
    likely_cause="minibatches are drawn with replacement, or leave samples out",
)
