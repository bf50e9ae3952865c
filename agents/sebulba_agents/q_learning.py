"""The arithmetic of Q-learning: exploration, double-Q targets, priorities."""

import gymnasium
import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from sebulba.toolkit.returns import n_step_returns
from sebulba.toolkit.value_rescaling import inverse_rescale, rescale
from sebulba.types import EnvStep, RunSpec
from sebulba_agents.replay_rows import valid_transitions

# No priority is 0: a sequence learned perfectly may be drawn again.
_LEAST_PRIORITY = 1e-6


def num_discrete_actions(run_spec: RunSpec, agent: str) -> int:
    """Returns A.

    Raises:
        ConfigError: actions are not 0 … A − 1.
    """
    space = run_spec.environment.action_space
    if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
        raise ConfigError(
            f"env.id: {agent} expects an environment with a Discrete action space from 0 on, got"
            f" {space}"
        )
    return int(space.n)


def exploration_epsilons(
    *, first: int | jax.Array, count: int, total: int, base: float, exponent: float
) -> jax.Array:
    """Returns `[count]` float32: `ε_i = base^(1 + exponent · i / (total − 1))`, i from `first` on.

    Horgan et al. 2018 (arXiv 1803.00933), section 4.1; i counts environments, not actors. A single
    environment explores with `base`.
    """
    rung = (first + jnp.arange(count)).astype(jnp.float32) / max(total - 1, 1)
    return jnp.power(base, 1.0 + exponent * rung)


def annealed_epsilon(
    env_steps: jax.Array, *, start: float, end: jax.Array, decay_env_steps: int
) -> jax.Array:
    """Returns `[B]`: linearly from `start` to `end` over `decay_env_steps`, then `end`.

    Args:
        env_steps: `[B]` float32, of the run, as each environment counts them.
        start: ε at 0 env steps.
        end: `[B]`, ε in the end.
        decay_env_steps: 0: `end` from the beginning.
    """
    share = jnp.clip(env_steps / max(decay_env_steps, 1), 0.0, 1.0) if decay_env_steps else 1.0
    return start + share * (end - start)


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Returns `[B]` int32: the action of the greatest Q, or with probability ε any.

    Args:
        key: consumed.
        q: `[B, A]`.
        epsilon: `[B]`.
    """
    explore_key, action_key = jax.random.split(key)
    greatest = jnp.argmax(q, axis=-1).astype(jnp.int32)
    random = jax.random.randint(action_key, greatest.shape, 0, q.shape[-1], dtype=jnp.int32)
    return jnp.where(jax.random.uniform(explore_key, greatest.shape) < epsilon, random, greatest)


def sequence_priority(td_error: jax.Array, valid: jax.Array, mix: float) -> jax.Array:
    """Returns `[n]`: `η · max_t |δ_t| + (1 − η) · mean_t |δ_t|` over valid transitions.

    Args:
        td_error: `[m, n]`.
        valid: `[m, n]` bool.
        mix: η.
    """
    size = jnp.where(valid, jnp.abs(td_error), 0.0)
    count = jnp.maximum(jnp.sum(valid, axis=0, dtype=jnp.float32), 1.0)
    mean = jnp.sum(size, axis=0) / count
    return mix * jnp.max(size, axis=0) + (1.0 - mix) * mean + _LEAST_PRIORITY


def select_action(q: jax.Array, action: jax.Array) -> jax.Array:
    """Returns `[...]`: Q `[..., A]` of the action `[...]`."""
    return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]


def rescaled_td_errors(
    env_steps: EnvStep,
    *,
    taken_q: jax.Array,
    bootstrap_q: jax.Array,
    discount: float,
    n_step: int,
    rescale_epsilon: float,
) -> jax.Array:
    """Returns `[m, n]`: n-step target less Q, 0 where the transition is invalid.

    The target is `h(Σ γ^k r + γ^n h⁻¹(bootstrap))` (Kapturowski et al. 2019, section 2.3), with
    fewer rewards at the end of the sequence and before a truncation or a seam.

    Args:
        env_steps: `[m + 1, n]`, consecutive rows.
        taken_q: `[m, n]`, of the action taken, differentiated.
        bootstrap_q: `[m + 1, n]`, of the action that the target takes: for double Q-learning
            (van Hasselt et al. 2016, arXiv 1509.06461) the target network's value of the online
            network's greedy action.
        discount: γ.
        n_step: rewards in a target.
        rescale_epsilon: ε of h.
    """
    valid = valid_transitions(env_steps)
    bootstrap_values = inverse_rescale(jax.lax.stop_gradient(bootstrap_q), rescale_epsilon)
    returns = n_step_returns(
        rewards=env_steps.reward[1:],
        discounts=discount * (1.0 - env_steps.terminated[1:].astype(jnp.float32)),
        valid=valid,
        bootstrap_values=bootstrap_values[1:],
        n=n_step,
    )
    return jnp.where(valid, rescale(returns, rescale_epsilon) - taken_q, 0.0)
