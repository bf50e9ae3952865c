"""Soft actor-critic with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905).

The gradients of critics, policy and temperature are computed at the same parameters, before any of
them is updated. Actions are in [-1, 1]; the environment's adapter scales them.
"""

import dataclasses
import math

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.dense import Dense, LayerNorm
from sebulba.toolkit.optimizers import clipped_adam, descend
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.replay import ReplayState, TransitionReplay, Transitions
from sebulba.toolkit.schedules import at_clock
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import ObservationTorso, check_network
from sebulba.types import Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.replay_config import SACConfig
from sebulba_agents.tanh_gaussian import TanhGaussianSample, tanh_gaussian_sample

# As in the authors' code; with raw observations, initial values may reach both bounds.
_LOG_STD_BOUNDS = (-20.0, 2.0)
# Without a bound, the temperature grows until it is infinite where the policy cannot reach the
# target entropy.
_MAX_LOG_TEMPERATURE = 20.0


@pytree_dataclass
class GaussianParameters:
    """The Gaussian before the tanh."""

    mean: jax.Array  # [N, A]
    log_std: jax.Array  # [N, A]


class GaussianPolicy(nn.Module):
    """ReLU layers; mean and log standard deviation of each action component."""

    action_size: int
    torso: TorsoSettings

    @nn.compact
    def __call__(self, observation: PyTree) -> GaussianParameters:
        """Return parameters `[N, A]` for observations `[N, ...]`."""
        features = ObservationTorso(self.torso, name="torso")(observation)
        x = _hidden_layers(features, self.torso, layer_norm=False)
        log_std = Dense(self.action_size, name="log_std")(x)
        return GaussianParameters(
            mean=Dense(self.action_size, name="mean")(x),
            log_std=jnp.clip(log_std, *_LOG_STD_BOUNDS),
        )


class Critic(nn.Module):
    """ReLU layers on observation and action; one action value."""

    torso: TorsoSettings
    layer_norm: bool  # before each ReLU

    @nn.compact
    def __call__(self, observation: PyTree, action: jax.Array) -> jax.Array:
        """Return Q `[N]` of observations `[N, ...]` and actions `[N, A]`."""
        features = ObservationTorso(self.torso, name="torso")(observation)
        x = jnp.concatenate([features, action], axis=-1)
        return Dense(1)(_hidden_layers(x, self.torso, layer_norm=self.layer_norm))[..., 0]


class TwinCritics(nn.Module):
    """Two critics with separate parameters, as one batched computation."""

    torso: TorsoSettings
    layer_norm: bool

    @nn.compact
    def __call__(self, observation: PyTree, action: jax.Array) -> jax.Array:
        """Return Q `[2, N]` of observations `[N, ...]` and actions `[N, A]`."""
        twins = nn.vmap(
            Critic,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,
            axis_size=2,
        )
        return twins(self.torso, self.layer_norm)(observation, action)


def _hidden_layers(x: jax.Array, torso: TorsoSettings, *, layer_norm: bool) -> jax.Array:
    dtype = jnp.dtype(torso.compute_dtype)
    for size in torso.hidden_sizes:
        x = Dense(size, dtype=dtype)(x)
        x = nn.relu(LayerNorm(dtype=dtype)(x) if layer_norm else x)
    return x.astype(jnp.float32)


@pytree_dataclass
class SACParams:
    """The trained parameters."""

    policy: PyTree
    critics: PyTree
    log_temperature: jax.Array  # [] log α


@pytree_dataclass
class SACNetworks:
    """The trained parameters, and the critics' moving average."""

    online: SACParams
    target_critics: PyTree


@pytree_dataclass
class SACActorState:
    """The actor state."""

    key: jax.Array


class SAC(Agent):
    """Maximum-entropy control with continuous actions from a replay of single transitions."""

    def __init__(self, config: SACConfig, run_spec: RunSpec):
        """Build networks, replay and optimizer.

        Raises:
            ConfigError: the settings or the environment do not suit the agent.
        """
        action_size = _action_size(run_spec)
        torso = config.torso_for(run_spec.environment)
        check_network(torso, run_spec.environment.observation)
        critic_torso = torso
        if config.critic_sizes is not None:
            critic_torso = dataclasses.replace(torso, hidden_sizes=config.critic_sizes)
            check_network(critic_torso, run_spec.environment.observation)
        self._config = config
        self._run_spec = run_spec
        self._replay = TransitionReplay(config, run_spec)
        self._target_entropy = (
            -float(action_size) if config.target_entropy is None else config.target_entropy
        )
        most = action_size * math.log(2.0)
        if self._target_entropy >= most:
            raise ConfigError(
                "agent.target_entropy: expected less than the entropy of uniform actions in"
                f" [-1, 1], {most:.2f} with {action_size} components, got {config.target_entropy}"
            )
        self._policy = GaussianPolicy(action_size=action_size, torso=torso)
        self._critics = TwinCritics(critic_torso, config.critic_layer_norm)
        self._optimizer = clipped_adam(epsilon=config.adam_epsilon, max_grad_norm=None)

    def init_networks(self, key: jax.Array) -> SACNetworks:
        """Return the parameters, and a copy of the critics as target critics."""
        policy_key, critics_key = jax.random.split(key)
        observation = zeros(self._run_spec.environment.observation, 1)
        action = jnp.zeros((1, *self._run_spec.environment.action_space.shape))
        critics = self._critics.init(critics_key, observation, action)
        return SACNetworks(
            online=SACParams(
                policy=self._policy.init(policy_key, observation),
                critics=critics,
                log_temperature=jnp.log(jnp.float32(self._config.initial_temperature)),
            ),
            target_critics=jax.tree.map(jnp.copy, critics),
        )

    def copy_to_targets(self, networks: SACNetworks) -> SACNetworks:
        """Return the parameters, and a copy of the critics as target critics."""
        target_critics = jax.tree.map(jnp.copy, networks.online.critics)
        return SACNetworks(online=networks.online, target_critics=target_critics)

    def init_opt_state(self, networks: SACNetworks) -> PyTree:
        """Return Adam's initial state."""
        return self._optimizer.init(networks.online)

    def init_experience(self, networks: SACNetworks, num_envs: int) -> ReplayState:
        """Return an empty replay of this device's environments."""
        del networks, num_envs
        return self._replay.init()

    def init_actor_state(
        self, networks: PyTree, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> SACActorState:
        """Return the key."""
        del networks, num_envs, global_actor_id
        return SACActorState(key=key)

    def act(
        self, networks: PyTree, actor_state: SACActorState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, tuple[()], SACActorState]:
        """Sample an action, or take the tanh of the mean."""
        key, action_key = jax.random.split(actor_state.key)
        gaussian = self._policy.apply(networks, env_step.observation)
        if greedy:
            action = jnp.tanh(gaussian.mean)
        else:
            action = tanh_gaussian_sample(action_key, gaussian.mean, gaussian.log_std).action
        return action, (), SACActorState(key=key)

    def shard_actor_state(
        self, actor_state: SACActorState, sharding: ActorStateSharding
    ) -> SACActorState:
        """Replicate the key."""
        return sharding.replicate(actor_state)

    def update_experience(
        self,
        networks: SACNetworks,
        experience: ReplayState,
        initial_state: SACActorState,
        final_state: SACActorState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> ReplayState:
        """Add the rows."""
        del networks, initial_state, final_state
        return self._replay.add(experience, trajectory, actor_id)

    def loss(
        self, networks: SACNetworks, experience: ReplayState, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[ReplayState, Metrics]]:
        """Return the loss of a batch from the replay."""
        batch_key, sample_key, next_key = jax.random.split(key, 3)
        batch = self._replay.sample(experience, batch_key, clock)
        policy = networks.online.policy
        loss, metrics = self.loss_of_batch(
            networks,
            batch,
            sample=self._draw(sample_key, policy, batch.observation),
            next_sample=self._draw(next_key, policy, batch.next_observation),
        )
        metrics |= self._replay.ratio.metrics(experience, clock.step, batch.num_transitions)
        return loss, (experience, metrics)

    def loss_of_batch(
        self,
        networks: SACNetworks,
        batch: Transitions,
        *,
        sample: TanhGaussianSample,
        next_sample: TanhGaussianSample,
    ) -> tuple[jax.Array, Metrics]:
        """Return the loss `[]` and metrics.

        The sum of the losses of critics (equation 5), policy (7) and temperature (18), each with
        gradients for its own parameters only; means over the batch of all learner devices.

        Args:
            networks: differentiated, also through `sample`.
            batch: `[n]`.
            sample: samples of the policy at `batch.observation`.
            next_sample: samples of the policy at `batch.next_observation`.
        """
        online = networks.online
        temperature = _temperature(online)
        target = self.targets(networks, batch, next_sample)
        q = self._critics.apply(online.critics, batch.observation, batch.action)
        critic_loss = jnp.sum(0.5 * jnp.square(q - target[None]), axis=0)
        # The policy's loss differentiates the critics by the action, not by their parameters.
        frozen_critics = jax.lax.stop_gradient(online.critics)
        sample_q = jnp.min(
            self._critics.apply(frozen_critics, batch.observation, sample.action), axis=0
        )
        policy_loss = jax.lax.stop_gradient(temperature) * sample.log_prob - sample_q
        # Gradient for the temperature only: it grows while the entropy is below its target.
        surplus = jax.lax.stop_gradient(-sample.log_prob) - self._target_entropy
        temperature_loss = temperature * surplus
        drawn = batch.weight > 0.0
        metrics = {
            "critic_loss": mean_share(critic_loss, drawn),
            "q_taken": mean_share(jnp.mean(q, axis=0), drawn),
            "policy_entropy": mean_share(-sample.log_prob, drawn),
            "temperature": temperature,
        }
        loss = batch.weight * (critic_loss + policy_loss + temperature_loss)
        return mean_share(loss, jnp.ones_like(drawn)), metrics

    def targets(
        self, networks: SACNetworks, batch: Transitions, next_sample: TanhGaussianSample
    ) -> jax.Array:
        """Return `[n]`: `R + Γ·(min_i Q⁻_i(s′, a′) − α·log π(a′|s′))`, gradient stopped."""
        q = self._critics.apply(networks.target_critics, batch.next_observation, next_sample.action)
        temperature = _temperature(networks.online)
        value = jnp.min(q, axis=0) - temperature * next_sample.log_prob
        return jax.lax.stop_gradient(batch.reward + batch.discount * value)

    def optimize(
        self,
        networks: SACNetworks,
        opt_state: PyTree,
        grads: SACNetworks,
        experience: ReplayState,
        clock: Clock,
    ) -> tuple[SACNetworks, PyTree]:
        """Take an Adam step, and update the target critics' moving average."""
        config = at_clock(self._config, clock, self._run_spec)
        online, opt_state = descend(
            self._optimizer,
            networks.online,
            opt_state,
            grads.online,
            learning_rate=config.learning_rate,
        )
        bounded = jnp.minimum(online.log_temperature, _MAX_LOG_TEMPERATURE)
        online = dataclasses.replace(online, log_temperature=bounded)
        target_critics = optax.incremental_update(
            online.critics, networks.target_critics, self._config.polyak
        )
        return SACNetworks(online=online, target_critics=target_critics), opt_state

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return the number of updates that keeps the replay ratio exactly."""
        return self._replay.ratio.num_updates_in(cycle)

    def actor_networks(self, networks: SACNetworks) -> PyTree:
        """Return the policy's parameters."""
        return networks.online.policy

    def _draw(self, key: jax.Array, policy: PyTree, observation: PyTree) -> TanhGaussianSample:
        gaussian = self._policy.apply(policy, observation)
        return tanh_gaussian_sample(key, gaussian.mean, gaussian.log_std)


def _temperature(params: SACParams) -> jax.Array:
    """Return α `[]`."""
    return jnp.exp(params.log_temperature)


def _action_size(run_spec: RunSpec) -> int:
    space = run_spec.environment.action_space
    if not (
        isinstance(space, gymnasium.spaces.Box)
        and len(space.shape) == 1
        and np.all(space.low == -1.0)
        and np.all(space.high == 1.0)
    ):
        raise ConfigError(
            "env.id: sac expects an environment with a vector of continuous, bounded actions, got"
            f" {space}"
        )
    return space.shape[0]
