"""Validate an agent against its environment before a run, and its first sharded actor state.

Shapes come from `jax.eval_shape`, so nothing is computed or compiled.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from sebulba.agent import Agent
from sebulba.types import EnvStep, PyTree, RunSpec

# The learner keeps the metrics of each until the cycle ends.
_MAX_UPDATES = 100_000


class AgentError(ValueError):
    """An agent breaks the protocol; the message names method, leaf, expected and got."""


def validate_agent(agent: Agent, run_spec: RunSpec) -> None:
    """Check that `act` keeps the actor state's shapes and returns actions of the environment.

    Raises:
        AgentError: a leaf has another shape or dtype than expected.
    """
    num_envs = run_spec.num_envs
    env_step = env_step_shapes(run_spec)
    key = jax.eval_shape(lambda: jax.random.key(0))
    networks = jax.eval_shape(agent.init_networks, key)
    actor_networks = jax.eval_shape(agent.actor_networks, networks)

    def init(networks: PyTree, key: jax.Array) -> PyTree:
        return agent.init_actor_state(networks, num_envs, key, 0)

    def act(networks: PyTree, actor_state: PyTree, env_step: EnvStep) -> PyTree:
        return agent.act(networks, actor_state, env_step, greedy=False)

    actor_state = jax.eval_shape(init, actor_networks, key)
    action, extras, next_state = jax.eval_shape(act, actor_networks, actor_state, env_step)
    _expect_same("act: next actor state", next_state, actor_state)
    _expect_same("act: action", action, action_shapes(run_spec, num_envs))
    for path, leaf in jax.tree_util.tree_leaves_with_path(extras):
        if leaf.shape[:1] != (num_envs,):
            raise AgentError(
                f"act: extras: {_name(path)}: expected a leading axis of {num_envs} environments"
                f" (actor.num_envs), got shape {leaf.shape}"
            )


def action_shapes(run_spec: RunSpec, num_envs: int) -> PyTree:
    """Return shape and dtype of a batch of actions."""
    space = run_spec.environment.action_space
    dtype = jnp.int32 if np.issubdtype(space.dtype, np.integer) else jnp.float32
    return jax.ShapeDtypeStruct((num_envs, *space.shape), dtype)


def env_step_shapes(run_spec: RunSpec) -> EnvStep:
    """Return the shapes and dtypes of one row of an actor's environments."""
    num_envs = run_spec.num_envs
    mask = run_spec.environment.action_mask
    flag = jax.ShapeDtypeStruct((num_envs,), bool)
    return EnvStep(
        observation=jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((num_envs, *leaf.shape), leaf.dtype),
            run_spec.environment.observation,
        ),
        reward=jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        terminated=flag,
        truncated=flag,
        is_first=flag,
        action_mask=mask and jax.ShapeDtypeStruct((num_envs, *mask.shape), mask.dtype),
    )


def validate_sharded_state(sharded: PyTree, local: PyTree) -> None:
    """Check that `shard_actor_state` kept every leaf and placed it on the learner devices.

    Args:
        sharded: the actor state that `shard_actor_state` returned.
        local: the actor state that it was given.

    Raises:
        AgentError: a leaf is missing, has another shape or dtype, or is not on the learner devices.
    """
    _expect_same("shard_actor_state", sharded, local)
    for path, leaf in jax.tree_util.tree_leaves_with_path(sharded):
        if not isinstance(leaf.sharding, NamedSharding):
            raise AgentError(
                f"shard_actor_state: {_name(path)}: expected an array from `sharding.split` or"
                f" `sharding.replicate`, got one on {leaf.sharding}"
            )


def num_updates_of(agent: Agent, cycle: int) -> int:
    """Return `agent.num_updates_per_cycle(cycle)`.

    Raises:
        AgentError: it is no number of updates.
    """
    value: Any = agent.num_updates_per_cycle(cycle)
    is_int = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_int or not 0 <= value <= _MAX_UPDATES:
        raise AgentError(
            f"num_updates_per_cycle({cycle}): expected an int from 0 to {_MAX_UPDATES:,}, got"
            f" {_describe(value)} ({type(value).__name__})"
        )
    return int(value)


def _describe(value: Any) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # Python writes no int of more than 4,300 digits.
        return "a longer one"


def _expect_same(what: str, got: PyTree, expected: PyTree) -> None:
    got_leaves = dict(jax.tree_util.tree_leaves_with_path(got))
    expected_leaves = dict(jax.tree_util.tree_leaves_with_path(expected))
    for path in dict.fromkeys([*expected_leaves, *got_leaves]):
        sides = [
            _shape(leaves[path]) if path in leaves else "no such leaf"
            for leaves in (expected_leaves, got_leaves)
        ]
        if sides[0] != sides[1]:
            raise AgentError(f"{what}: {_name(path)}: expected {sides[0]}, got {sides[1]}")


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "the array itself"
