"""ε-greedy exploration with a rate for each environment, which may follow a schedule."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical, legal_logits
from sebulba.toolkit.schedules import Scheduled, value_at
from sebulba.types import EnvStep, PyTree, RunSpec

_MAX_INT32 = 2**31 - 1


@pytree_dataclass
class ExplorationState:
    """The actor state of an agent whose ε follows a schedule; split all but `key` over devices."""

    env_steps: jax.Array  # [B] int32, taken by each environment
    epsilon_power: jax.Array  # [B], of the schedule's ε
    key: jax.Array
    memory: PyTree = ()  # [B, ...], which the agent keeps


class ScheduledExploration:
    """ε-greedy actions whose ε is a schedule over the run's env steps."""

    def __init__(
        self,
        run_spec: RunSpec,
        *,
        epsilon: Scheduled,
        exponent: float = 0.0,
        evaluation_epsilon: float,
    ):
        """Set the rates.

        Args:
            run_spec: the run's.
            epsilon: ε, a number or a schedule over the env steps of all hosts.
            exponent: environment i of N explores with `ε^(1 + exponent · i / (N − 1))`.
            evaluation_epsilon: ε of greedy actions.
        """
        self._run_spec = run_spec
        self._epsilon = epsilon
        self._exponent = exponent
        self._evaluation_epsilon = evaluation_epsilon

    def init(self, num_envs: int, key: jax.Array, global_actor_id: int) -> ExplorationState:
        """Return an actor's state at the start of the schedule; `key` is kept."""
        return ExplorationState(
            env_steps=jnp.zeros(num_envs, jnp.int32),
            epsilon_power=exploration_powers(
                first=global_actor_id * num_envs,
                count=num_envs,
                total=self._run_spec.num_streams_of_all_hosts,
                exponent=self._exponent,
            ),
            key=key,
        )

    def advance(self, state: ExplorationState, env_steps: int) -> ExplorationState:
        """Return a new actor's state for a run that has taken `env_steps` on all hosts."""
        own = min(env_steps // self._run_spec.num_streams_of_all_groups, _MAX_INT32)
        return dataclasses.replace(state, env_steps=jnp.full_like(state.env_steps, own))

    def epsilon(self, state: ExplorationState) -> jax.Array:
        """Return the current exploration rates `[B]`.

        An actor does not know the env steps of other actors: each environment estimates the run's
        as its own times the number of streams, one for each player of each environment.
        """
        epsilon = value_at(
            self._epsilon,
            state.env_steps.astype(jnp.float32) * self._run_spec.num_streams_of_all_groups,
            total_env_steps=self._run_spec.total_env_steps,
        )
        return jnp.power(epsilon, state.epsilon_power)

    def act(
        self, state: ExplorationState, q: jax.Array, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, ExplorationState]:
        """Return actions `[B]` int32 and the state after this row.

        Args:
            state: before this row.
            q: `[B, A]`, of the row's observation.
            env_step: `[B, ...]`, the row.
            greedy: explore with the evaluation's ε.
        """
        key, action_key = jax.random.split(state.key)
        if greedy:
            epsilon = jnp.full_like(state.epsilon_power, self._evaluation_epsilon)
        else:
            epsilon = self.epsilon(state)
        action = epsilon_greedy(action_key, q, epsilon, env_step.action_mask)
        # The action of a final row is ignored: the next row is a reset, not an env step.
        counted = (~jnp.asarray(env_step.done)).astype(jnp.int32)
        # A greater count would be negative, the start of the schedule.
        env_steps = jnp.minimum(state.env_steps, _MAX_INT32 - 1) + counted
        return action, dataclasses.replace(state, env_steps=env_steps, key=key)


def exploration_epsilons(
    *, first: int | jax.Array, count: int, total: int, base: float, exponent: float
) -> jax.Array:
    """Return per-environment exploration rates `[count]`, of environments `first`, `first + 1` …

    `ε_i = base^(1 + exponent · i / (total − 1))`: Horgan et al. 2018 (arXiv 1803.00933), section
    4.1, but i counts environments instead of actors. A single environment explores with `base`.
    """
    powers = exploration_powers(first=first, count=count, total=total, exponent=exponent)
    return jnp.power(base, powers)


def exploration_powers(
    *, first: int | jax.Array, count: int, total: int, exponent: float
) -> jax.Array:
    """Return the powers `[count]` of `exploration_epsilons`: `1 + exponent · i / (total − 1)`."""
    fraction = (first + jnp.arange(count)).astype(jnp.float32) / max(total - 1, 1)
    return 1.0 + exponent * fraction


def epsilon_greedy(
    key: jax.Array, q: jax.Array, epsilon: jax.Array, action_mask: jax.Array | None = None
) -> jax.Array:
    """Return actions `[B]` int32: the one with the greatest Q, or a random one with probability ε.

    Args:
        key: consumed.
        q: `[B, A]`.
        epsilon: `[B]`.
        action_mask: `[B, A]` bool, the legal actions; None: all.
    """
    explore_key, action_key = jax.random.split(key)
    greatest = greedy_action(q, action_mask)
    if action_mask is None:
        random = jax.random.randint(action_key, greatest.shape, 0, q.shape[-1], dtype=jnp.int32)
    else:
        uniform = Categorical(logits=legal_logits(jnp.zeros_like(q), action_mask))
        random = uniform.sample(action_key)
    return jnp.where(jax.random.uniform(explore_key, greatest.shape) < epsilon, random, greatest)


def greedy_action(q: jax.Array, action_mask: jax.Array | None) -> jax.Array:
    """Return the legal actions `[...]` int32 with the greatest Q.

    Args:
        q: `[..., A]`.
        action_mask: `[..., A]` bool; None: all actions are legal.
    """
    return jnp.argmax(legal_logits(q, action_mask), axis=-1).astype(jnp.int32)
