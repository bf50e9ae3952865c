"""A naive act cycle, for comparison: a Python loop around a jitted `act`.

Each env step uploads the row, calls the jitted act, and updates the episode statistics with a JAX
call per operation. Rows go to a list, which one jitted call stacks at the end.
"""

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.envs.base import Environment
from sebulba.envs.data_checks import is_finite
from sebulba.ring.episodes import EpisodeTracker, update_statistics
from sebulba.ring.records import ActCarry, Collected, EpisodeStatistics, Tally
from sebulba.types import ActorState, EnvStep, Networks, Trajectory


class EagerCycle:
    """An act cycle as a Python loop, with the bookkeeping outside the jitted act."""

    def __init__(self, agent: Agent, environment: Environment, *, trajectory_length: int):
        self._environment = environment
        self._trajectory_length = trajectory_length

        def act(networks: Networks, actor_state: ActorState, env_step: EnvStep):
            return agent.act(networks, actor_state, env_step, greedy=False)

        self._act = jax.jit(act, donate_argnums=1)
        self._stack = jax.jit(_stack)

    def __call__(self, networks: Networks, carry: ActCarry) -> Collected:
        """Act for `T` steps; see `ActCycle`."""
        # Donated from step to step, and not the carry's own.
        actor_state = jax.tree.map(jnp.copy, carry.actor_state)
        statistics, env_step = carry.statistics, carry.env_step
        rows = []
        for _ in range(self._trajectory_length):
            env_step = jax.tree.map(jnp.array, env_step)
            action, extras, actor_state = self._act(networks, actor_state, env_step)
            statistics = update_statistics(statistics, env_step)
            rows.append((env_step, action, extras, statistics))
            env_step = self._environment.step(np.asarray(action))
        trajectory, tally = jax.block_until_ready(self._stack(carry.statistics, rows, env_step))
        carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
        return Collected(carry=carry, trajectory=trajectory, tally=tally)


def _stack(before: EpisodeStatistics, rows: list, last: EnvStep) -> tuple[Trajectory, Tally]:
    env_steps, action, extras, statistics = zip(*rows, strict=True)

    def stack(*leaves: jax.Array) -> jax.Array:
        return jnp.stack(leaves)

    trajectory = Trajectory(
        env_steps=jax.tree.map(stack, *env_steps, last),
        action=jax.tree.map(stack, *action),
        extras=jax.tree.map(stack, *extras),
    )
    num_episodes, ended = EpisodeTracker().ended(before, jax.tree.map(stack, *statistics))
    return trajectory, Tally(
        num_episodes=num_episodes,
        ended=ended,
        env_steps=jnp.sum(trajectory.valid, dtype=jnp.int32),
        is_finite=is_finite(trajectory.env_steps),
    )
