"""The actor-critic that on-policy agents share: acting, memory, normalisation, optimizer.

IMPALA, A2C and the simple policy gradient are this class and a loss, and take one optimisation step
per learner cycle. PPO adds targets and epochs of minibatches.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.cores import core_settings
from sebulba.toolkit.critic_observation import CriticObservation, SameObservation
from sebulba.toolkit.distributions import Distribution, legal_only
from sebulba.toolkit.minibatches import TransitionBatch
from sebulba.toolkit.normalization import (
    Normalization,
    clip_rewards,
    discounted_returns,
    init_normalization,
    merge_normalization,
    normalization_of_rows,
)
from sebulba.toolkit.optimizers import clipped_adam, clipped_rmsprop, descend
from sebulba.toolkit.policy_heads import make_policy_head
from sebulba.toolkit.row_chunks import map_rows
from sebulba.toolkit.schedules import at_clock
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import ObservationTorso, check_network
from sebulba.toolkit.window import Window, init_window, push
from sebulba.types import Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.config import ActorCriticConfig
from sebulba_agents.networks import ActorCritic, CoreState, PolicyValue

_Batch = TypeVar("_Batch", bound=Trajectory | TransitionBatch)


@pytree_dataclass
class ActorCriticNetworks:
    """Everything that acting and learning need to evaluate the network."""

    params: PyTree
    normalization: Normalization


@pytree_dataclass
class Memory:
    """What acting remembers of the past; zeroed at `is_first`."""

    core: CoreState  # [B, ...]
    last_action: jax.Array  # [B, ...]
    discounted_return: jax.Array | None  # [B], if rewards are normalised


@pytree_dataclass
class ActorCriticState:
    """The actor state."""

    memory: Memory
    key: jax.Array


@pytree_dataclass
class ActorCriticExtras:
    """What the learner needs to know about each action."""

    policy: Distribution  # [B], the behaviour policy


@pytree_dataclass
class ActorCriticOptState:
    """The optimizer's state."""

    optimizer: PyTree


Loss = Callable[[PolicyValue, Any, Any], tuple[jax.Array, Metrics]]
"""`loss(outputs, batch, config)`: the network's outputs for all rows of a batch, and the batch.

The batch is a `Trajectory`, or in PPO's minibatches without a core a `TransitionBatch`. The config
is the agent's, with the current values of its schedules.
"""


class ActorCriticAgent(Agent):
    """An actor-critic, feed-forward or with a recurrent core, for discrete or continuous actions.

    Continuous actions are samples of an unbounded Gaussian; the environment's adapter clips them.
    """

    def __init__(
        self,
        config: ActorCriticConfig,
        run_spec: RunSpec,
        *,
        loss: Loss,
        torso: Callable[..., nn.Module] | None = None,
        num_updates_per_cycle: int = 1,
    ):
        """Build network and optimizer.

        Args:
            config: settings of network and optimizer.
            run_spec: the run's.
            loss: the loss of one optimisation step.
            torso: name -> module; None: the config's.
            num_updates_per_cycle: optimisation steps per learner cycle.

        Raises:
            ConfigError: the network or the policy does not suit the environment.
        """
        environment, critic = run_spec.environment, None
        if config.critic_observation is not None:
            critic = CriticObservation(
                environment, config.critic_observation, setting="agent.critic_observation"
            )
            environment = critic.policy_environment
        self._views = critic or SameObservation()
        settings = config.torso_for(environment)
        is_mlp = settings.network in ("mlp", "relu_mlp")
        has_torso_per_head = is_mlp and config.lstm_size is None
        self._has_dense_rows = has_torso_per_head and torso is None
        if torso is None:
            check_network(settings, environment.observation)
            torso = functools.partial(ObservationTorso, settings)
        value_torso = torso if has_torso_per_head else None
        if critic is not None:
            # Before its own part comes what the policy sees, or the features, which are no choices.
            of_shared = settings.choices if has_torso_per_head else ((),)
            of_value = dataclasses.replace(
                settings,
                network=settings.network if is_mlp else "mlp",
                choices=critic.choices and (*(of_shared or ()), *critic.choices),
            )
            value_torso = functools.partial(ObservationTorso, of_value)
        self._config = config
        self._run_spec = run_spec
        self._loss = loss
        self._num_updates_per_cycle = num_updates_per_cycle
        self._network = ActorCritic(
            policy=make_policy_head(
                run_spec.environment.action_space,
                agent=config.name,
                initial_log_std=config.initial_log_std,
            ),
            torso=torso,
            core=core_settings(config.core, config.lstm_size, config.core_options),
            value_torso=value_torso,
            shares_features=not has_torso_per_head,
            views=self._views,
        )
        self._optimizer = _make_optimizer(config)
        self._action = run_spec.environment.action

    def policy_observation(self, observation: PyTree) -> PyTree:
        """Return what the policy sees: all but `critic_observation`."""
        return self._views.of_policy(observation)

    def init_networks(self, key: jax.Array) -> ActorCriticNetworks:
        """Return initial parameters and empty normalisation statistics."""
        observation = self._run_spec.environment.observation
        params = self._network.init(
            key,
            zeros(observation, 1, 1),
            reward=jnp.zeros((1, 1), jnp.float32),
            last_action=zeros(self._action, 1, 1),
            is_first=jnp.ones((1, 1), bool),
            state=self._network.initial_state(1),
        )
        normalization = init_normalization(
            observation,
            of_observations=self._config.normalize_observations,
            of_rewards=self._config.normalize_rewards,
        )
        return ActorCriticNetworks(params=params, normalization=normalization)

    def init_opt_state(self, networks: ActorCriticNetworks) -> ActorCriticOptState:
        """Return the optimizer's initial state."""
        return ActorCriticOptState(optimizer=self._optimizer.init(networks.params))

    def init_experience(self, networks: ActorCriticNetworks, num_envs: int) -> Window:
        """Return a window of zeros for one learner cycle's trajectories."""
        window = init_window(self, networks, self._run_spec, num_envs, keep=lambda s: s.memory)
        moments = jax.eval_shape(self._moments_of, networks.normalization, window)
        return dataclasses.replace(window, moments=zeros(moments))

    def init_actor_state(
        self, networks: ActorCriticNetworks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> ActorCriticState:
        """Return an empty memory, and the key."""
        del networks, global_actor_id
        normalizes = self._config.normalize_rewards
        memory = Memory(
            core=self._network.initial_state(num_envs),
            last_action=zeros(self._action, num_envs),
            discounted_return=jnp.zeros(num_envs, jnp.float32) if normalizes else None,
        )
        return ActorCriticState(memory=memory, key=key)

    def act(
        self,
        networks: ActorCriticNetworks,
        actor_state: ActorCriticState,
        env_step: EnvStep,
        *,
        greedy: bool,
    ) -> tuple[jax.Array, ActorCriticExtras, ActorCriticState]:
        """Sample from the policy, or take its mode."""
        # One row as an unroll of T = 1; host environments provide NumPy arrays.
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], env_step)
        memory = actor_state.memory
        outputs, core = self.unroll(networks, rows, memory.last_action[None], memory.core)
        policy = jax.tree.map(lambda leaf: leaf[0], outputs.policy)
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        returns = memory.discounted_return
        if returns is not None:
            returns = discounted_returns(rows, returns, self._config.discount)[0]
        memory = Memory(core=core, last_action=action, discounted_return=returns)
        return action, ActorCriticExtras(policy=policy), ActorCriticState(memory=memory, key=key)

    def shard_actor_state(
        self, actor_state: ActorCriticState, sharding: ActorStateSharding
    ) -> ActorCriticState:
        """Split the memory over the learner devices."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: ActorCriticNetworks,
        experience: Window,
        initial_state: ActorCriticState,
        final_state: ActorCriticState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Window:
        """Push the trajectory, and the memory that the actor began it with, into the window."""
        del final_state, actor_id
        window = push(experience, initial_state.memory, trajectory)
        # Here, once per trajectory, and not in each update: returns are a scan over all rows.
        moments = self._moments_of(networks.normalization, window)
        return dataclasses.replace(window, moments=moments)

    def loss(
        self,
        networks: ActorCriticNetworks,
        experience: Window,
        key: jax.Array,
        clock: Clock,
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Return the loss of one optimisation step on the complete window."""
        del key
        outputs = self.unroll_trajectory(networks, experience.initial, experience.trajectory)
        batch = with_scaled_rewards(networks, experience.trajectory)
        loss, metrics = self._loss(outputs, batch, self._config_at(clock))
        return loss, (experience, metrics)

    def optimize(
        self,
        networks: ActorCriticNetworks,
        opt_state: ActorCriticOptState,
        grads: ActorCriticNetworks,
        experience: Window,
        clock: Clock,
    ) -> tuple[ActorCriticNetworks, ActorCriticOptState]:
        """Take a step of the optimizer; a learner cycle's last step also updates the statistics.

        All updates of a cycle thus normalise like the targets that were computed at its start.
        If the last step is discarded, the statistics leave out the cycle's rows: the next step that
        is applied has those of the next cycle, and would change the inputs between its minibatches.
        """
        params, optimizer = descend(
            self._optimizer,
            networks.params,
            opt_state.optimizer,
            grads.params,
            learning_rate=self._config_at(clock).learning_rate,
        )
        # Not from a count of updates, which would leave out the discarded ones.
        is_last = (clock.step + 1) % self._num_updates_per_cycle == 0
        normalization = merge_normalization(networks.normalization, experience.moments, is_last)
        return (
            ActorCriticNetworks(params=params, normalization=normalization),
            ActorCriticOptState(optimizer=optimizer),
        )

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return the same number for every cycle."""
        del cycle
        return self._num_updates_per_cycle

    def actor_networks(self, networks: ActorCriticNetworks) -> ActorCriticNetworks:
        """Return everything: acting also normalises."""
        return networks

    def unroll(
        self,
        networks: ActorCriticNetworks,
        env_steps: EnvStep,
        last_action: jax.Array,
        core: CoreState,
    ) -> tuple[PolicyValue, CoreState]:
        """Return policy and value of consecutive rows, and the recurrent state after them.

        Args:
            networks: parameters and normalisation statistics.
            env_steps: `[R, B, ...]`: one row when acting, `T + 1` when learning.
            last_action: `[R, B, ...]`, selected in the row before each.
            core: the recurrent state before row 0.
        """
        normalization = networks.normalization
        reward = normalization.scale(env_steps.reward)
        apply = functools.partial(self._network.apply, networks.params)
        # Outside of a run acting has no part for the value function, and uses no value.
        observation = self._views.completed(env_steps.observation, env_steps.reward.shape)
        observation = normalization.normalize(observation)
        past = {
            "reward": clip_rewards(reward, self._config.reward_clip),
            "last_action": last_action,
            "is_first": env_steps.is_first,
        }
        if self._has_dense_rows:
            rows = (observation, past)
            outputs = map_rows(lambda row: apply(row[0], **row[1], state=())[0], rows)
        else:
            outputs, core = apply(observation, **past, state=core)
        policy = legal_only(outputs.policy, env_steps.action_mask)
        return dataclasses.replace(outputs, policy=policy), core

    def unroll_trajectory(
        self, networks: ActorCriticNetworks, memory: Memory, trajectory: Trajectory
    ) -> PolicyValue:
        """Return policy and value of all rows `[T + 1, B]`, from the memory before row 0."""
        # Row t sees the action of row t - 1; the actor's memory has the one before row 0.
        last_action = jnp.concatenate([memory.last_action[None], trajectory.action])
        return self.unroll(networks, trajectory.env_steps, last_action, memory.core)[0]

    def _moments_of(self, like: Normalization, window: Window) -> Normalization:
        return normalization_of_rows(
            like,
            window.trajectory.env_steps,
            window.trajectory.valid,
            window.initial.discounted_return,
            self._config.discount,
        )

    def _config_at(self, clock: Clock) -> ActorCriticConfig:
        """Return the config with the current values of its schedules."""
        return at_clock(self._config, clock, self._run_spec)


def with_scaled_rewards(networks: ActorCriticNetworks, batch: _Batch) -> _Batch:
    """Return the batch with normalised rewards, if rewards are normalised."""
    reward = networks.normalization.scale(batch.env_steps.reward)
    env_steps = dataclasses.replace(batch.env_steps, reward=reward)
    return dataclasses.replace(batch, env_steps=env_steps)


def rewards_and_discounts(
    trajectory: Trajectory, config: ActorCriticConfig
) -> tuple[jax.Array, jax.Array]:
    """Return each transition's clipped reward and its discount, `[T, B]` each."""
    env_steps = trajectory.env_steps
    discounts = jnp.where(env_steps.terminated[1:], 0.0, config.discount)
    return clip_rewards(env_steps.reward[1:], config.reward_clip), discounts


def check_standardisation(what: str, run_spec: RunSpec, *, num_minibatches: int = 1) -> None:
    """Check that a batch has more than one transition, since a single one minus the mean is 0.

    Args:
        what: is standardised, and how the user can change that.
        run_spec: the run's.
        num_minibatches: in which a learner cycle's transitions are standardised.

    Raises:
        ConfigError: each batch of all learner devices has one transition.
    """
    devices = run_spec.num_learner_devices * run_spec.num_hosts
    num_transitions = run_spec.batch_size_per_learner_device * run_spec.trajectory_length * devices
    if num_transitions == num_minibatches:
        raise ConfigError(
            f"agent: {what} of 1 transition, which are always 0, so that the policy never learns."
            " Increase actor.trajectory_length or actor.num_envs"
        )


def _make_optimizer(config: ActorCriticConfig) -> optax.GradientTransformation:
    """Return the configured optimizer with learning rate 1."""
    if config.optimizer == "adam":
        return clipped_adam(epsilon=config.adam_epsilon, max_grad_norm=config.max_grad_norm)
    return clipped_rmsprop(
        decay=config.rmsprop_decay,
        epsilon=config.rmsprop_epsilon,
        max_grad_norm=config.max_grad_norm,
    )
