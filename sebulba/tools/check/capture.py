"""An agent that also keeps what the learner hands it, as part of its experience."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.agent import Agent
from sebulba.config.agents import agent_factory
from sebulba.devices.memory_plan import trajectory_shapes
from sebulba.pytree import pytree_dataclass
from sebulba.tools.check.result import without_key
from sebulba.types import ActorState, Experience, Networks, PyTree, RunSpec, Trajectory


@pytree_dataclass
class Given:
    """The arguments of `update_experience`; random keys as their data."""

    initial_state: ActorState
    final_state: ActorState
    trajectory: Trajectory
    actor_id: jax.Array


@pytree_dataclass
class CapturedExperience:
    """An agent's experience, and what its latest calls were given."""

    of_agent: Experience
    given: Given  # [N, ...], N trajectories of a learner cycle, the newest last


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptureConfig:
    """Settings of a captured agent, in the place of the agent's own."""

    captured: Any  # the agent's settings
    built: list["CapturingAgent"]  # is given the agent that is built
    name: str = "sebulba.tools.check.capture:CapturingAgent"


class CapturingAgent:
    """Does what the agent does, and keeps the arguments of `update_experience`."""

    def __init__(self, config: CaptureConfig, run_spec: RunSpec):
        factory = agent_factory(config.captured.name)
        self.captured: Agent = factory(config.captured, run_spec)
        self.run_spec = run_spec
        config.built.append(self)

    def __getattr__(self, name: str) -> Any:
        # All that is not about experience is the agent's own.
        return getattr(self.captured, name)

    def init_experience(self, networks: Networks, num_envs: int) -> CapturedExperience:
        """Returns the agent's experience, and zeros for what will be given."""
        run_spec = dataclasses.replace(self.run_spec, num_envs=num_envs)

        def state(networks: Networks) -> ActorState:
            networks = self.captured.actor_networks(networks)
            key = jax.random.key(0)
            return as_data(self.captured.init_actor_state(networks, num_envs, key, 0))

        shapes = jax.eval_shape(state, networks)
        given = Given(
            initial_state=shapes,
            final_state=shapes,
            trajectory=trajectory_shapes(self.captured, run_spec),
            actor_id=jnp.int32(0),
        )
        count = run_spec.trajectories_per_cycle
        return CapturedExperience(
            of_agent=self.captured.init_experience(networks, num_envs),
            given=jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), given),
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
        """Keeps the arguments, and passes them on."""
        given = Given(
            initial_state=as_data(initial_state),
            final_state=as_data(final_state),
            trajectory=trajectory,
            actor_id=actor_id,
        )
        return CapturedExperience(
            of_agent=self.captured.update_experience(
                networks, experience.of_agent, initial_state, final_state, trajectory, actor_id
            ),
            given=jax.tree.map(
                lambda held, new: jnp.concatenate([held[1:], new[None]]), experience.given, given
            ),
        )

    def loss(
        self, networks: Networks, experience: CapturedExperience, key: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, tuple[CapturedExperience, dict[str, jax.Array]]]:
        """Returns the agent's loss."""
        loss, (of_agent, metrics) = self.captured.loss(networks, experience.of_agent, key, step)
        return loss, (CapturedExperience(of_agent=of_agent, given=experience.given), metrics)

    def optimize(
        self,
        networks: Networks,
        opt_state: PyTree,
        grads: Networks,
        experience: CapturedExperience,
    ) -> tuple[Networks, PyTree]:
        """Takes the agent's step."""
        return self.captured.optimize(networks, opt_state, grads, experience.of_agent)


def as_data(state: ActorState) -> PyTree:
    """Returns an actor state with random keys as their data."""
    return jax.tree.map(without_key, state)


def from_data(state: PyTree, like: ActorState) -> ActorState:
    """Returns the actor state that `as_data` was given.

    Args:
        state: with random keys as their data.
        like: an actor state of the same leaves, or its shapes.
    """

    def wrap(leaf: Any, like: Any) -> jax.Array:
        if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jnp.asarray(leaf)
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))

    return jax.tree.map(wrap, state, like)
