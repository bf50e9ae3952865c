"""A window of the newest trajectories of one learner device, for on-policy agents.

The trajectories of a learner cycle stand side by side on the environment axis. A new trajectory
replaces the oldest, so after a cycle's `N` trajectories the window holds exactly these, in their
order.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from sebulba.agent import Agent
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.spaces import zeros
from sebulba.types import (
    ActorState,
    EnvironmentSpec,
    EnvStep,
    Networks,
    PyTree,
    RunSpec,
    Trajectory,
)


@pytree_dataclass
class Window:
    """`N` trajectories of `B` environments."""

    initial: PyTree  # [N·B, ...], the kept part of the actor states before row 0
    trajectory: Trajectory  # [T + 1, N·B, ...] rows
    oldest: jax.Array | None  # [] int32, number of the trajectory that is replaced; None: N = 1
    # [epochs, entries] int32, in which order they are learned from: `sebulba.toolkit.minibatches`
    order: jax.Array | None = None
    moments: PyTree = None  # of all rows, which the agent merges after a cycle's last update


def init_window(
    agent: Agent,
    networks: Networks,
    run_spec: RunSpec,
    num_envs: int,
    *,
    keep: Callable[[ActorState], PyTree],
) -> Window:
    """Return a window of `run_spec.trajectories_per_cycle` trajectories of zeros.

    Args:
        agent: its `init_actor_state` and `act` determine the shapes, without being computed.
        networks: the result of `Agent.init_networks`.
        run_spec: the run's.
        num_envs: B, environments of one trajectory on one learner device.
        keep: selects the part of an actor state to keep; all its leaves are per environment.
    """
    num_trajectories = run_spec.trajectories_per_cycle
    width = num_envs * num_trajectories

    def act(networks: Networks, key: jax.Array) -> tuple[PyTree, Trajectory]:
        networks = agent.actor_networks(networks)
        state = agent.init_actor_state(networks, width, key, 0)
        env_step = _first_env_step(run_spec.environment, width)
        action, extras, _ = agent.act(networks, state, env_step, greedy=False)
        return keep(state), Trajectory(env_steps=env_step, action=action, extras=extras)

    # Extras may be any pytree: only the agent's own `act` knows their shapes.
    initial, row = jax.eval_shape(act, networks, jax.random.key(0))
    length = run_spec.trajectory_length
    trajectory = Trajectory(
        env_steps=zeros(row.env_steps, length + 1),
        action=zeros(row.action, length),
        extras=zeros(row.extras, length),
    )
    oldest = None if num_trajectories == 1 else jnp.int32(0)
    return Window(initial=zeros(initial), trajectory=trajectory, oldest=oldest)


def push(window: Window, initial: PyTree, trajectory: Trajectory) -> Window:
    """Return the window with its oldest trajectory replaced by a new one.

    Args:
        window: a window of any number of trajectories.
        initial: `[B, ...]`, the kept part of the actor state before row 0.
        trajectory: `[T + 1, B, ...]` rows.
    """
    # Only statistics need `episode_over`, and not every environment provides it.
    env_steps = dataclasses.replace(trajectory.env_steps, episode_over=None)
    trajectory = dataclasses.replace(trajectory, env_steps=env_steps)
    if window.oldest is None:
        return dataclasses.replace(window, initial=initial, trajectory=trajectory)
    num_envs = trajectory.valid.shape[1]
    num_trajectories = window.trajectory.valid.shape[1] // num_envs

    def write(held: PyTree, new: PyTree, *, axis: int) -> PyTree:
        """Write in place: the learner donates the window."""
        return jax.tree.map(
            lambda held, new: jax.lax.dynamic_update_slice_in_dim(
                held, new, window.oldest * num_envs, axis
            ),
            held,
            new,
        )

    return dataclasses.replace(
        window,
        initial=write(window.initial, initial, axis=0),
        trajectory=write(window.trajectory, trajectory, axis=1),
        oldest=(window.oldest + 1) % num_trajectories,
    )


def _first_env_step(environment: EnvironmentSpec, num_envs: int) -> EnvStep:
    flags = jnp.zeros(num_envs, bool)
    return EnvStep(
        observation=zeros(environment.observation, num_envs),
        reward=jnp.zeros(num_envs, jnp.float32),
        terminated=flags,
        truncated=flags,
        is_first=flags,
        action_mask=zeros(environment.action_mask, num_envs),
    )
