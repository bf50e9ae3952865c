"""Validate an agent against its environment before a run, and its first sharded actor state.

Shapes come from `jax.eval_shape`, so nothing is computed or compiled.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from sebulba.agent import Agent
from sebulba.errors import ConfigError
from sebulba.pytree import describe_inline, leaf_name
from sebulba.types import ActorState, Clock, EnvStep, Networks, PyTree, RunSpec

# The learner keeps the metrics of each until the cycle ends.
_MAX_UPDATES = 100_000
MAX_CYCLES_WITHOUT_UPDATE = 1_000  # then the agent counts as one that takes no updates
_OPTIONAL_METHODS = {"advance_actor_state", "copy_to_targets", "policy_observation"}
_TAKE_CLOCK = {"loss", "optimize"}


class AgentError(ValueError):
    """An agent breaks the protocol; the message names method, leaf, expected and got."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActShapes:
    """Shapes and dtypes of what an agent acts with, and of what `act` returns."""

    networks: Networks  # of the learner
    actor_networks: Networks
    actor_state: ActorState  # of the `B` environments of an actor
    action: PyTree  # [B, ...]
    extras: PyTree  # [B, ...]
    next_actor_state: ActorState


def act_shapes(agent: Agent, run_spec: RunSpec) -> ActShapes:
    """Return the shapes of acting, by tracing each method once."""

    def init(networks: PyTree, key: jax.Array) -> PyTree:
        return agent.init_actor_state(networks, run_spec.num_streams, key, 0)

    def act(networks: PyTree, actor_state: PyTree, env_step: EnvStep) -> PyTree:
        return agent.act(networks, actor_state, env_step, greedy=False)

    key = jax.eval_shape(lambda: jax.random.key(0))
    networks = jax.eval_shape(agent.init_networks, key)
    actor_networks = jax.eval_shape(agent.actor_networks, networks)
    actor_state = jax.eval_shape(init, actor_networks, key)
    action, extras, next_actor_state = jax.eval_shape(
        act, actor_networks, actor_state, env_step_shapes(run_spec)
    )
    return ActShapes(
        networks=networks,
        actor_networks=actor_networks,
        actor_state=actor_state,
        action=action,
        extras=extras,
        next_actor_state=next_actor_state,
    )


def validate_agent(agent: Agent, run_spec: RunSpec) -> ActShapes:
    """Check methods, and that `act` keeps the actor state's shapes and returns actions.

    Returns:
        The shapes that were checked.

    Raises:
        AgentError: a method is missing or takes no clock, or a leaf has another shape or dtype
            than expected.
    """
    validate_methods(agent)
    with _without_notes_of_jax():
        shapes = act_shapes(agent, run_spec)
    _check_act(shapes, run_spec)
    return shapes


def validate_methods(agent: Agent) -> None:
    """Check that an agent has the protocol's methods, and that those with a clock take it.

    Raises:
        AgentError: a method is missing or takes no clock.
    """
    for name, method in inspect.getmembers(Agent, inspect.isfunction):
        if name.startswith("_") or name in _OPTIONAL_METHODS:
            continue
        own = getattr(agent, name, None)
        # An agent that inherits the protocol has all methods, but those of the protocol are empty.
        if not callable(own) or getattr(own, "__func__", None) is method:
            what = (inspect.getdoc(method) or "").splitlines()[0]
            raise AgentError(
                f"{type(agent).__name__} has no method {name}; implement"
                f" `def {name}{_plain(method)}`: {what} See sebulba.agent.Agent"
            )
        if name in _TAKE_CLOCK and not _takes_clock(own):
            raise AgentError(
                f"{type(agent).__name__}.{name}: expected `def {name}{_plain(method)}`, got"
                f" `{name}{_plain(own)}`. `clock.step` is the number of the optimisation step,"
                " `clock.env_steps` the env steps. See sebulba.types.Clock"
            )


@contextlib.contextmanager
def _without_notes_of_jax() -> Iterator[None]:
    """Raise a ConfigError of traced code as it was: the last lines would be those that JAX adds."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error)) from error.__cause__


def _check_act(shapes: ActShapes, run_spec: RunSpec) -> None:
    num_envs = run_spec.num_streams
    _expect_same("act: next actor state", shapes.next_actor_state, shapes.actor_state)
    action = run_spec.environment.action
    batch_of_actions = jax.ShapeDtypeStruct((num_envs, *action.shape), action.dtype)
    _expect_same("act: action", shapes.action, batch_of_actions)
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes.extras):
        if leaf.shape[:1] != (num_envs,):
            raise AgentError(
                f"act: extras: {_name(path)}: expected a leading axis of {num_envs} environments"
                f" (actor.num_envs), got shape {leaf.shape}"
            )


def validate_learning(agent: Agent, run_spec: RunSpec) -> None:
    """Check what `loss` and `optimize` return, by tracing them once more than the run does.

    Raises:
        AgentError: a leaf has another shape or dtype than expected.
    """
    with _without_notes_of_jax():
        _check_loss(agent, run_spec)


def _check_loss(agent: Agent, run_spec: RunSpec) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    networks = jax.eval_shape(agent.init_networks, key)
    _check_differentiable(agent, networks)
    opt_state = jax.eval_shape(agent.init_opt_state, networks)
    num_envs = run_spec.num_streams_per_learner_device
    experience = jax.eval_shape(lambda x: agent.init_experience(x, num_envs), networks)
    clock = jax.eval_shape(Clock.at)
    returned = jax.eval_shape(agent.loss, networks, experience, key, clock)
    try:
        loss, (next_experience, metrics) = returned
    except (TypeError, ValueError):
        raise AgentError(
            "loss: expected (loss, (experience, metrics)), got"
            f" {type(returned).__name__}: {describe_inline(returned)}"
        ) from None
    for name, value in {"the loss": loss, **metrics}.items():
        if getattr(value, "shape", None) != ():
            raise AgentError(f"loss: {name}: expected a scalar, got {describe_inline(value)}")
    _expect_same("loss: experience", next_experience, experience)
    next_networks, next_opt_state = jax.eval_shape(
        agent.optimize, networks, opt_state, networks, next_experience, clock
    )
    _expect_same("optimize: networks", next_networks, networks)
    _expect_same("optimize: optimizer state", next_opt_state, opt_state)


def _check_differentiable(agent: Agent, networks: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(networks):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        # Without updates there are no gradients, and a table of integers is as good as any.
        if any(num_updates_of(agent, cycle) for cycle in range(MAX_CYCLES_WITHOUT_UPDATE)):
            name = leaf_name(path, "networks")
            raise AgentError(
                f"{name}: expected real or complex numbers, since gradients are taken, got"
                f" {leaf.dtype}; keep counters in the optimizer state"
            )


def _takes_clock(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters
    return "clock" in parameters or any(
        each.kind is each.VAR_POSITIONAL for each in parameters.values()
    )


def _plain(method: Callable[..., Any]) -> inspect.Signature:
    """Return a signature without types."""
    parameters = inspect.signature(method).parameters.values()
    return inspect.Signature([each.replace(annotation=each.empty) for each in parameters])


def env_step_shapes(run_spec: RunSpec) -> EnvStep:
    """Return the shapes and dtypes of one row of an actor's environments."""
    num_envs = run_spec.num_streams
    mask = run_spec.environment.action_mask
    if mask is not None:
        mask = jax.ShapeDtypeStruct((num_envs, *mask.shape), mask.dtype)
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
        action_mask=mask,
    )


def validate_sharded_state(
    sharded: PyTree, local: PyTree, learner_devices: Sequence[jax.Device]
) -> None:
    """Check that `shard_actor_state` kept every leaf and placed it on the learner devices.

    Args:
        sharded: the actor state that `shard_actor_state` returned.
        local: the actor state that it was given.
        learner_devices: of this host.

    Raises:
        AgentError: a leaf is missing, has another shape or dtype, or is not on the learner devices.
    """
    _expect_same("shard_actor_state", sharded, local)
    for path, leaf in jax.tree_util.tree_leaves_with_path(sharded):
        is_there = leaf.sharding.device_set == set(learner_devices)
        has_spec = len(learner_devices) == 1 or isinstance(leaf.sharding, NamedSharding)
        if not (is_there and has_spec):
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
    is_int = hasattr(value, "__index__") and not isinstance(value, bool | np.bool_)
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
            describe_inline(leaves[path]) if path in leaves else "no such leaf"
            for leaves in (expected_leaves, got_leaves)
        ]
        if sides[0] != sides[1]:
            raise AgentError(f"{what}: {_name(path)}: expected {sides[0]}, got {sides[1]}")


def _name(path: tuple) -> str:
    return leaf_name(path) or "the array itself"
