"""What Q-learning agents share: networks, and the arithmetic of targets."""

import functools
from collections.abc import Callable

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from sebulba.toolkit.cores import CoreSettings, initial_core_state, join_past, unroll_core
from sebulba.toolkit.dense import Dense
from sebulba.toolkit.distributions import one_hot
from sebulba.toolkit.noisy_dense import NoisyDense
from sebulba.toolkit.replay import MIN_PRIORITY, valid_transitions
from sebulba.toolkit.returns import n_step_returns
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import MLPTorso, ObservationTorso, fold_time
from sebulba.toolkit.value_rescaling import inverse_rescale, rescale
from sebulba.types import EnvStep, PyTree, RunSpec


class DuelingHead(nn.Module):
    """`Q = V + A − mean_a A` (Wang et al. 2016, arXiv 1511.06581, equation 9).

    With atoms, each of them is such a sum (Hessel et al. 2018, arXiv 1710.02298, section 3).
    """

    num_actions: int
    hidden_size: int
    num_atoms: int | None = None  # outputs for each action; None: one, without an axis
    noisy_sigma: float | None = None  # σ₀ of noisy layers; None: plain ones

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `[..., A]`, or `[..., A, atoms]`."""
        dense, size = _dense_layer(self.noisy_sigma), self.num_atoms or 1
        value = dense(size)(nn.relu(dense(self.hidden_size)(x)))
        advantage = dense(self.num_actions * size)(nn.relu(dense(self.hidden_size)(x)))
        if self.num_atoms is None:
            return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
        advantage = advantage.reshape(*x.shape[:-1], self.num_actions, self.num_atoms)
        return value[..., None, :] + advantage - jnp.mean(advantage, axis=-2, keepdims=True)


class QNetwork(nn.Module):
    """Torso, and a dueling or linear head."""

    num_actions: int
    torso: TorsoSettings
    dueling_size: int | None
    num_atoms: int | None = None  # outputs for each action; None: one, without an axis
    noisy_sigma: float | None = None  # σ₀ of the head's noisy layers; None: plain ones

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Return Q `[N, A]`, or `[N, A, atoms]`, of observations `[N, ...]`."""
        features = make_torso(self.torso)(observation)
        if self.dueling_size is not None:
            head = DuelingHead(
                self.num_actions, self.dueling_size, self.num_atoms, self.noisy_sigma
            )
            return head(features)
        outputs = _dense_layer(self.noisy_sigma)(self.num_actions * (self.num_atoms or 1))(features)
        if self.num_atoms is None:
            return outputs
        return outputs.reshape(-1, self.num_actions, self.num_atoms)


def _dense_layer(noisy_sigma: float | None) -> Callable[[int], nn.Module]:
    """Return the constructor of dense layers by their number of features."""
    if noisy_sigma is None:
        return Dense
    return functools.partial(NoisyDense, initial_sigma=noisy_sigma)


class RecurrentQNetwork(nn.Module):
    """Layers, a recurrent core that also sees last action and reward, and a head."""

    num_actions: int
    features: Callable[[PyTree], jax.Array]  # makes layers: observations [N, ...] to [N, F]
    core: CoreSettings
    head: Callable[[jax.Array], jax.Array]  # makes layers: [T, B, F'] to Q [T, B, A]
    core_name: str | None = None  # of its parameters

    @nn.compact
    def __call__(
        self,
        observation: PyTree,
        *,
        reward: jax.Array,
        last_action: jax.Array,
        is_first: jax.Array,
        state: PyTree,
    ) -> tuple[jax.Array, PyTree]:
        """Unroll consecutive rows.

        Args:
            observation: `[T, B, ...]`.
            reward: `[T, B]`, received with the observation.
            last_action: `[T, B]` int32, of the previous row.
            is_first: `[T, B]` bool, rows before which state, last action and reward are zeroed.
            state: the core's, before row 0.

        Returns:
            Q `[T, B, A]`, and the core's state after the last row.
        """
        features = fold_time(self.features, observation)
        encoded = one_hot(last_action, self.num_actions)
        inputs = join_past(features, reward, encoded, is_first)
        x, state = unroll_core(self.core, inputs, is_first, state, name=self.core_name)
        return self.head(x), state

    def initial_state(self, batch_size: int) -> PyTree:
        """Return the core's zero state of `batch_size` environments."""
        return initial_core_state(self.core, batch_size)


def make_torso(torso: TorsoSettings) -> nn.Module:
    """Return the network that a config names."""
    # An mlp has no scope around it, which keeps the paths and initial values of its parameters.
    if torso.network == "mlp" and torso.choices is None:
        return MLPTorso(torso.hidden_sizes, dtype=jnp.dtype(torso.compute_dtype))
    return ObservationTorso(torso)


def num_discrete_actions(run_spec: RunSpec, agent: str) -> int:
    """Return the number of actions A.

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


def sequence_priority(td_error: jax.Array, valid: jax.Array, mix: float) -> jax.Array:
    """Return priorities `[n]`: `η · max_t |δ_t| + (1 − η) · mean_t |δ_t|` over valid transitions.

    Args:
        td_error: `[m, n]`.
        valid: `[m, n]` bool.
        mix: η.
    """
    size = jnp.where(valid, jnp.abs(td_error), 0.0)
    count = jnp.maximum(jnp.sum(valid, axis=0, dtype=jnp.float32), 1.0)
    mean = jnp.sum(size, axis=0) / count
    return mix * jnp.max(size, axis=0) + (1.0 - mix) * mean + MIN_PRIORITY


def rescaled_td_errors(
    env_steps: EnvStep,
    *,
    taken_q: jax.Array,
    bootstrap_q: jax.Array,
    discount: float,
    n_step: int,
    rescale_epsilon: float,
) -> jax.Array:
    """Return TD errors `[m, n]`: n-step target minus Q, 0 where the transition is invalid.

    The target is `h(Σ γ^k r + γ^n h⁻¹(bootstrap))` (Kapturowski et al. 2019, section 2.3), with
    fewer rewards near the end of the sequence, a truncation or a stream boundary.

    Args:
        env_steps: `[m + 1, n]`, consecutive rows.
        taken_q: `[m, n]`, Q of the actions taken; differentiated.
        bootstrap_q: `[m + 1, n]`; in double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461)
            the target network's Q of the online network's greedy action.
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
