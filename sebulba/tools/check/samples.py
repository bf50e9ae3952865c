"""Checks of what a loss draws from its experience: epochs of minibatches, and priorities."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit.replay import ReplayState
from sebulba.tools.check.names import EPOCHS, PRIORITIES
from sebulba.tools.check.perturbation import other_values
from sebulba.tools.check.recording import first_learning_cycle
from sebulba.tools.check.result import CheckResult, failed, leaf_name, passed, skipped
from sebulba.tools.check.sensitivity import LossSensitivity
from sebulba.tools.check.subject import Subject
from sebulba.types import Experience, PyTree

_MOST_UPDATES = 256
_SEQUENCES_TRIED = 16


def check_epochs(subject: Subject, sensitivity: LossSensitivity) -> CheckResult:
    """Count the updates of a learner cycle in which each transition has a gradient.

    The gradient is that of the loss with respect to the experience, which includes observations.
    """
    cycle = first_learning_cycle(subject) or 0
    num_updates = subject.agent.num_updates_per_cycle(cycle)
    if num_updates < 2 or not sensitivity.is_on_policy:
        return skipped(EPOCHS, "the agent takes one update per cycle, or has a replay")
    if num_updates > _MOST_UPDATES:
        return skipped(EPOCHS, f"{num_updates} updates per cycle are too many to try")
    agent, _ = subject.agent_on(1)
    length = subject.run_spec.trajectory_length
    items = sensitivity.items[-subject.run_spec.trajectories_per_cycle :]
    valid = np.concatenate([item.trajectory.valid for item in items], axis=1)
    experience = sensitivity.experience(items)
    networks = sensitivity.networks

    def loss(floats: list, experience: Experience, key: jax.Array, step: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(experience)
        places = [i for i, leaf in enumerate(leaves) if _is_rows(leaf, valid)]
        for place, leaf in zip(places, floats, strict=True):
            leaves[place] = leaf
        value, aux = agent.loss(networks, jax.tree.unflatten(structure, leaves), key, step)
        return value, aux[0]

    gradients = jax.jit(jax.grad(loss, has_aux=True))
    counts = np.zeros(valid.shape, int)
    for step in range(num_updates):
        floats = [leaf for leaf in jax.tree.leaves(experience) if _is_rows(leaf, valid)]
        if not floats:
            return skipped(EPOCHS, "no leaf of the experience has rows of floats [T, B, …]")
        key = jax.random.fold_in(jax.random.key(subject.config.seed), step)
        grads, experience = gradients(floats, experience, key, jnp.int32(step))
        is_learned = np.zeros(valid.shape, bool)
        for grad in grads:
            grad = np.asarray(grad)[:length]
            is_learned |= (grad != 0.0).reshape(*valid.shape, -1).any(axis=-1)
        counts += is_learned
    values, numbers = np.unique(counts[valid], return_counts=True)
    expected = int(values[np.argmax(numbers)])
    wrong = np.argwhere(valid & (counts != expected))
    if len(wrong) or expected == 0:
        row, env = wrong[0] if len(wrong) else (0, 0)
        return failed(
            EPOCHS,
            f"experience (row {row}, env {env}): expected a gradient in the same number of a"
            f" cycle's {num_updates} updates as for other transitions ({expected}), got"
            f" {counts[row, env]}; {len(wrong)} of {valid.sum()} transitions differ; likely cause:"
            " minibatches are drawn with replacement, or leave samples out",
        )
    detail = f"{valid.sum()} transitions, each in {expected} of {num_updates} updates"
    return passed(EPOCHS, detail)


def _is_rows(leaf: Any, valid: np.ndarray) -> bool:
    length, width = valid.shape
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return (
        is_float
        and leaf.ndim >= 2
        and leaf.shape[0] in (length, length + 1)
        and (leaf.shape[1] == width)
    )


def check_priorities(subject: Subject, sensitivity: LossSensitivity) -> CheckResult:
    """Change one reward in a replay at a time, and see which priorities a loss sets otherwise."""
    experience = sensitivity.experience(sensitivity.items)
    replay = _replay_of(experience)
    if replay is None:
        return skipped(PRIORITIES, "the experience has no replay of sebulba.toolkit")
    rewards = [
        (path, leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(replay.rows)
        if leaf_name("", path).endswith("reward")
    ]
    if len(rewards) != 1:
        return skipped(PRIORITIES, "the rows of the replay have no reward")
    path, stored = rewards[0]
    key = jax.random.key(subject.config.seed)

    def mass(rows: PyTree) -> np.ndarray:
        changed = _with_replay(experience, dataclasses.replace(replay, rows=rows))
        (_, (after, _)), _ = sensitivity.loss_and_gradients(
            sensitivity.networks, changed, key, jnp.int32(0)
        )
        return np.asarray(_replay_of(after).mass)  # type: ignore[union-attr]

    before = mass(replay.rows)
    drawn = np.argwhere(before != np.asarray(replay.mass))
    if not len(drawn):
        return skipped(PRIORITIES, "a loss changes no priority")
    stride = stored.shape[1] // before.shape[1]
    num_found = 0
    sequences = drawn[:: -(-len(drawn) // _SEQUENCES_TRIED)]
    # Rewards of a burn-in may have little effect, so a later one is tried, too.
    rewards_tried = [
        (int(stream), int(slot) * stride + offset)
        for stream, slot in sequences
        for offset in {1, stride, 2 * stride}
        if int(slot) * stride + offset < stored.shape[1]
    ]
    for stream, row in rewards_tried:
        reward = np.array(stored)
        reward[stream, row] = other_values(reward[stream, row])
        rows = jax.tree_util.tree_map_with_path(
            lambda each, leaf, new=reward: jnp.asarray(new) if each == path else leaf, replay.rows
        )
        changed = np.argwhere(mass(rows) != before)
        num_found += len(changed)
        for other_stream, other_slot in changed:
            # Sequences overlap: all that begin before the reward may have it. In one that begins
            # with its row, it may be an input of the network.
            if other_stream != stream or other_slot * stride > row:
                return failed(
                    PRIORITIES,
                    f"experience.rows.reward (stream {stream}, row {row}): expected it to change"
                    " priorities of sequences with this reward only, got another priority for"
                    f" stream {other_stream}, row {other_slot * stride}; likely cause: priorities"
                    " are not in the order of the sampled ids",
                )
    if not num_found:
        return failed(
            PRIORITIES,
            "experience.mass: expected rewards to change priorities, got the same for"
            f" {len(rewards_tried)} changed rewards; likely cause: priorities are"
            " not those of the TD errors",
        )
    return passed(PRIORITIES, f"{num_found} priorities changed with their own rewards alone")


def _is_replay(node: Any) -> bool:
    return isinstance(node, ReplayState)


def _replay_of(experience: Experience) -> ReplayState | None:
    return next(filter(_is_replay, jax.tree.leaves(experience, is_leaf=_is_replay)), None)


def _with_replay(experience: Experience, replay: ReplayState) -> Experience:
    return jax.tree.map(
        lambda node: replay if _is_replay(node) else node, experience, is_leaf=_is_replay
    )
