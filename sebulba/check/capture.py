"""An agent that also stores the arguments of `update_experience`, as part of its experience."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.agent import Agent
from sebulba.agent_check import act_shapes, validate_methods
from sebulba.config.agents import agent_factory
from sebulba.devices.memory import trajectory_shapes
from sebulba.pytree import is_key, pytree_dataclass, without_key
from sebulba.types import ActorState, Clock, Experience, Networks, PyTree, RunSpec, Trajectory


@pytree_dataclass
class UpdateArguments:
    """The arguments of `update_experience`; random keys as their data."""

    initial_state: ActorState
    final_state: ActorState
    trajectory: Trajectory
    actor_id: jax.Array


@pytree_dataclass
class CapturedExperience:
    """An agent's experience, and the arguments of the latest calls of `update_experience`."""

    of_agent: Experience
    arguments: UpdateArguments  # [N, ...], N trajectories of a learner cycle, newest last


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptureConfig:
    """Settings of a `CapturingAgent`, which replace the agent's own in a config."""

    captured: Any  # the settings of the agent to capture
    built: list["CapturingAgent"]  # the built agent appends itself
    name: str = "sebulba.check.capture:CapturingAgent"


class CapturingAgent:
    """Wrap an agent and store the arguments of `update_experience`."""

    def __init__(self, config: CaptureConfig, run_spec: RunSpec):
        """Build the agent to capture.

        Raises:
            AgentError: a method of it is missing or takes no clock.
        """
        factory = agent_factory(config.captured.name)
        self.captured: Agent = factory(config.captured, run_spec)
        validate_methods(self.captured)  # Those defined below would hide what is wrong with them.
        self.run_spec = run_spec
        config.built.append(self)

    def __getattr__(self, name: str) -> Any:
        # Methods that do not handle experience are the agent's own.
        return getattr(self.captured, name)

    def init_experience(self, networks: Networks, num_envs: int) -> CapturedExperience:
        """Return the agent's experience, with zeros in place of arguments."""
        run_spec = dataclasses.replace(self.run_spec, num_envs=num_envs)

        def state(networks: Networks) -> ActorState:
            networks = self.captured.actor_networks(networks)
            key = jax.random.key(0)
            return as_data(self.captured.init_actor_state(networks, num_envs, key, 0))

        shapes = jax.eval_shape(state, networks)
        arguments = UpdateArguments(
            initial_state=shapes,
            final_state=shapes,
            trajectory=trajectory_shapes(run_spec, act_shapes(self.captured, run_spec)),
            actor_id=jnp.int32(0),
        )
        count = run_spec.trajectories_per_cycle
        return CapturedExperience(
            of_agent=self.captured.init_experience(networks, num_envs),
            arguments=jax.tree.map(
                lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), arguments
            ),
        )

    def update_experience(
        self,
        networks: Networks,
        experience: CapturedExperience,
        initial_state: ActorState,
        final_state: ActorState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> CapturedExperience:
        """Store the arguments, and pass them to the agent."""
        arguments = UpdateArguments(
            initial_state=as_data(initial_state),
            final_state=as_data(final_state),
            trajectory=trajectory,
            actor_id=actor_id,
        )
        of_agent = self.captured.update_experience(
            networks, experience.of_agent, initial_state, final_state, trajectory, actor_id
        )

        def reuse(old: jax.Array, new: jax.Array) -> jax.Array:
            """Use the old leaf: JAX does not donate one that the agent replaces unread."""
            is_same_kind = old.shape == jnp.shape(new) and old.dtype == getattr(new, "dtype", None)
            return jnp.where(False, old, new) if is_same_kind else new

        structures = [jax.tree.structure(each) for each in (experience.of_agent, of_agent)]
        if structures[0] == structures[1]:  # type: ignore[operator]
            of_agent = jax.tree.map(reuse, experience.of_agent, of_agent)
        return CapturedExperience(
            of_agent=of_agent,
            arguments=jax.tree.map(
                lambda stored, new: jnp.concatenate([stored[1:], new[None]]),
                experience.arguments,
                arguments,
            ),
        )

    def loss(
        self, networks: Networks, experience: CapturedExperience, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[CapturedExperience, dict[str, jax.Array]]]:
        """Return the agent's loss."""
        loss, (of_agent, metrics) = self.captured.loss(networks, experience.of_agent, key, clock)
        return loss, (dataclasses.replace(experience, of_agent=of_agent), metrics)

    def optimize(
        self,
        networks: Networks,
        opt_state: PyTree,
        grads: Networks,
        experience: CapturedExperience,
        clock: Clock,
    ) -> tuple[Networks, PyTree]:
        """Take the agent's optimization step."""
        return self.captured.optimize(networks, opt_state, grads, experience.of_agent, clock)


def as_data(state: ActorState) -> PyTree:
    """Return an actor state with random keys as their data."""
    return jax.tree.map(without_key, state)


def from_data(state: PyTree, like: ActorState) -> ActorState:
    """Invert `as_data`.

    Args:
        state: an actor state with random keys as their data.
        like: an actor state with the same leaves, or its shapes.
    """

    def wrap(leaf: Any, like: Any) -> jax.Array:
        if not is_key(like):
            return jnp.asarray(leaf)
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))

    return jax.tree.map(wrap, state, like)
