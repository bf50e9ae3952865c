"""Learning from the newest trajectories: what on-policy agents differ in, and what they share.

An agent that acts with a policy and a value (`sebulba_agents.actor_critic`) is given a `Learning`,
which gives it the loss; `OnePass` is that of agents which learn once from each trajectory.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.window import Window, push
from sebulba.types import EnvStep, Experience, PyTree, Trajectory
from sebulba_agents.config import ActorCriticConfig
from sebulba_agents.networks import CoreState, PolicyValue
from sebulba_agents.normalization import Normalization


@pytree_dataclass
class ActorCriticNetworks:
    """What travels to the actors."""

    params: PyTree  # of the network, trained
    normalization: Normalization


Unroll = Callable[
    [ActorCriticNetworks, EnvStep, jax.Array, CoreState], tuple[PolicyValue, CoreState]
]
"""`ActorCriticAgent.unroll`."""


@pytree_dataclass
class Memory:
    """What acting has to know about the past; zeroed at `is_first`."""

    core: CoreState  # [B, ...]
    last_action: jax.Array  # [B, ...]
    discounted_return: jax.Array | None  # [B], if rewards are normalised


class Learning(Protocol):
    """What is learned from trajectories, and in how many steps; otherwise as in `Agent`."""

    num_updates_per_cycle: int

    def init_experience(self, window: Window) -> Experience:
        """Returns the experience, from an empty window of one learner cycle's trajectories."""
        ...

    def update_experience(
        self,
        unroll: Unroll,
        networks: ActorCriticNetworks,
        experience: Experience,
        memory: Memory,
        trajectory: Trajectory,
    ) -> Experience:
        """Takes a trajectory in, and the memory that the actor began it with."""
        ...

    def loss(
        self,
        unroll: Unroll,
        networks: ActorCriticNetworks,
        experience: Experience,
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Returns one optimisation step's loss, the experience and metrics."""
        ...

    def window(self, experience: Experience) -> Window:
        """Returns the learner cycle's trajectories, with memories and raw rewards."""
        ...


class OnePass:
    """One optimisation step a learner cycle, on all of its trajectories."""

    num_updates_per_cycle = 1

    def __init__(self, loss: Callable[[PolicyValue, Trajectory], tuple[jax.Array, Metrics]]):
        """Takes the loss of trajectories, given the network's outputs of their `T + 1` rows."""
        self._loss = loss

    def init_experience(self, window: Window) -> Window:
        """Returns the window."""
        return window

    def update_experience(
        self,
        unroll: Unroll,
        networks: ActorCriticNetworks,
        experience: Window,
        memory: Memory,
        trajectory: Trajectory,
    ) -> Window:
        """Pushes the trajectory into the window."""
        del unroll, networks
        return push(experience, memory, trajectory)

    def loss(
        self,
        unroll: Unroll,
        networks: ActorCriticNetworks,
        experience: Window,
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Returns the loss of the newest trajectories, under the learner's parameters."""
        del key, step
        outputs = unroll_trajectory(unroll, networks, experience.initial, experience.trajectory)
        loss, metrics = self._loss(outputs, with_scaled_rewards(networks, experience.trajectory))
        return loss, (experience, metrics)

    def window(self, experience: Window) -> Window:
        """Returns the experience."""
        return experience


def unroll_trajectory(
    unroll: Unroll, networks: ActorCriticNetworks, memory: Memory, trajectory: Trajectory
) -> PolicyValue:
    """Returns policy and value of all rows `[T + 1, B]`, from the memory before row 0."""
    last_action = jnp.concatenate([memory.last_action[None], trajectory.action])
    return unroll(networks, trajectory.env_steps, last_action, memory.core)[0]


def with_scaled_rewards(networks: ActorCriticNetworks, trajectory: Trajectory) -> Trajectory:
    """Returns the trajectory with the rewards that a loss is to learn from."""
    reward = networks.normalization.scale(trajectory.env_steps.reward)
    env_steps = dataclasses.replace(trajectory.env_steps, reward=reward)
    return dataclasses.replace(trajectory, env_steps=env_steps)


def rewards_and_discounts(
    trajectory: Trajectory, config: ActorCriticConfig
) -> tuple[jax.Array, jax.Array]:
    """Returns what each transition paid, and the discount on arriving; `[T, B]` each."""
    env_steps = trajectory.env_steps
    discounts = jnp.where(env_steps.terminated[1:], 0.0, config.discount)
    return clip_rewards(env_steps.reward[1:], config.reward_clip), discounts


def clip_rewards(reward: jax.Array, limit: float | None) -> jax.Array:
    """Returns rewards of the same shape, clipped to ± `limit` if there is one."""
    return reward if limit is None else jnp.clip(reward, -limit, limit)
