"""PQN: Q-learning from parallel environments, without a replay or a target network.

Gallici et al. 2025, "Simplifying Deep Temporal Difference Learning" (arXiv 2407.04811), algorithm
1: ε-greedy acting, Q(λ) targets, and several epochs of minibatches on each learner cycle's
trajectories. LayerNorm in the network replaces the target network.

The targets are computed once per learner cycle, on all rows of its trajectories, with the
parameters that the cycle begins with.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.toolkit.distributions import entry_of, legal_logits
from sebulba.toolkit.exploration import ExplorationState, ScheduledExploration
from sebulba.toolkit.minibatches import (
    TransitionBatch,
    check_num_minibatches,
    choose_transitions,
    next_minibatch,
    with_orders,
)
from sebulba.toolkit.normalization import clip_rewards
from sebulba.toolkit.optimizers import clipped_radam, descend
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.returns import gae
from sebulba.toolkit.schedules import at_env_steps
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import fold_time
from sebulba.toolkit.window import Window, init_window, push
from sebulba.types import Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.config import PQNConfig
from sebulba_agents.normalized_network import NormalizedQNetwork, check_normalized_network
from sebulba_agents.q_learning import num_discrete_actions


class PQN(Agent):
    """Q(λ) on the newest trajectories."""

    def __init__(self, config: PQNConfig, run_spec: RunSpec):
        """Build network and optimizer.

        Raises:
            ConfigError: the settings or the environment do not suit the agent, or a learner
                device's share of a learner cycle cannot be split into minibatches.
        """
        check_num_minibatches(config.num_minibatches, run_spec, of_unrolls=False)
        torso = config.torso_for(run_spec.environment)
        check_normalized_network(torso, run_spec.environment.observation)
        self._config = config
        self._run_spec = run_spec
        self.network = NormalizedQNetwork(
            num_actions=num_discrete_actions(run_spec, "pqn"),
            torso=torso,
        )
        self.exploration = ScheduledExploration(
            run_spec, epsilon=config.epsilon, evaluation_epsilon=config.evaluation_epsilon
        )
        self._radam = clipped_radam(epsilon=config.adam_epsilon, max_grad_norm=config.max_grad_norm)

    def init_networks(self, key: jax.Array) -> PyTree:
        """Return the parameters."""
        return self.network.init(key, zeros(self._run_spec.environment.observation, 1))

    def init_opt_state(self, networks: PyTree) -> PyTree:
        """Return RAdam's initial state."""
        return self._radam.init(networks)

    def init_experience(self, networks: PyTree, num_envs: int) -> Window:
        """Return a window of zeros for one learner cycle's trajectories, with targets as extras."""
        window = init_window(self, networks, self._run_spec, num_envs, keep=lambda _: ())
        shape = window.trajectory.action.shape
        trajectory = dataclasses.replace(window.trajectory, extras=jnp.zeros(shape, jnp.float32))
        window = dataclasses.replace(window, trajectory=trajectory)
        return zeros(jax.eval_shape(self._with_orders, window, jax.random.key(0)))

    def init_actor_state(
        self, networks: PyTree, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> ExplorationState:
        """Return the state at the start of the ε schedule."""
        del networks
        return self.exploration.init(num_envs, key, global_actor_id)

    def advance_actor_state(
        self, actor_state: ExplorationState, env_steps: int
    ) -> ExplorationState:
        """Return the state at `env_steps` of the ε schedule."""
        return self.exploration.advance(actor_state, env_steps)

    def act(
        self, networks: PyTree, actor_state: ExplorationState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, tuple[()], ExplorationState]:
        """Select the action with the greatest Q, or with probability ε a random one."""
        q = self.network.apply(networks, env_step.observation)
        action, actor_state = self.exploration.act(actor_state, q, env_step, greedy=greedy)
        return action, (), actor_state

    def shard_actor_state(
        self, actor_state: ExplorationState, sharding: ActorStateSharding
    ) -> ExplorationState:
        """Split everything except the key."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: PyTree,
        experience: Window,
        initial_state: ExplorationState,
        final_state: ExplorationState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Window:
        """Push the trajectory, with its targets as extras, into the window."""
        del final_state, actor_id
        q = fold_time(
            lambda observation: self.network.apply(networks, observation),
            trajectory.env_steps.observation,
        )
        targets = q_lambda_targets(q, trajectory, self._config)
        trajectory = dataclasses.replace(trajectory, extras=targets)
        return self._with_orders(push(experience, (), trajectory), initial_state.key)

    def loss(
        self, networks: PyTree, experience: Window, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Return the loss of the next minibatch."""
        del key
        batch = choose_transitions(
            experience, next_minibatch(experience, clock, self._config.num_minibatches)
        )
        loss, metrics = self.loss_of_batch(networks, batch)
        return loss, (experience, metrics)

    def _with_orders(self, window: Window, key: jax.Array) -> Window:
        return with_orders(
            window,
            key,
            num_epochs=self._config.num_epochs,
            of_unrolls=False,
        )

    def loss_of_batch(self, networks: PyTree, batch: TransitionBatch) -> tuple[jax.Array, Metrics]:
        """Return the loss `[]`, mean of `0.5 · (G − Q(s, a))²` over valid transitions, and metrics.

        Args:
            networks: differentiated.
            batch: transitions `[1, M]` with targets G as extras.
        """
        observation = jax.tree.map(lambda leaf: leaf[0], batch.env_steps.observation)
        q = self.network.apply(networks, observation)[None]
        taken_q, valid = entry_of(q, batch.action), batch.valid
        legal_q = legal_logits(q, batch.env_steps.action_mask)
        td_error = batch.extras - taken_q
        metrics = {
            "q_taken": mean_share(taken_q, valid),
            "q_greatest": mean_share(jnp.max(legal_q, axis=-1), valid),
            "td_error": mean_share(jnp.abs(td_error), valid),
        }
        return mean_share(0.5 * jnp.square(td_error), valid), metrics

    def optimize(
        self, networks: PyTree, opt_state: PyTree, grads: PyTree, experience: Window, clock: Clock
    ) -> tuple[PyTree, PyTree]:
        """Take a step of RAdam."""
        config = at_env_steps(
            self._config, clock.env_steps, total_env_steps=self._run_spec.total_env_steps
        )
        return descend(self._radam, networks, opt_state, grads, learning_rate=config.learning_rate)

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return epochs × minibatches, for every cycle."""
        del cycle
        return self._config.num_epochs * self._config.num_minibatches

    def actor_networks(self, networks: PyTree) -> PyTree:
        """Return the parameters."""
        return networks


def q_lambda_targets(q: jax.Array, trajectory: Trajectory, config: PQNConfig) -> jax.Array:
    """Return the targets `[T, B]`, without gradients.

        G_t = r_{t+1} + γ_{t+1}·(λ·G_{t+1} + (1 − λ)·max_a Q(s_{t+1}, a))

    (arXiv 2407.04811, section 4.1), where `G_{t+1}` is `max_a Q(s_{t+1}, a)` at the trajectory's
    end and at a truncation. As in the paper, exploring actions do not cut the trace.

    Args:
        q: Q `[T + 1, B, A]` of all rows.
        trajectory: with raw rewards.
        config: γ, λ, reward clip.
    """
    env_steps = trajectory.env_steps
    values = jnp.max(legal_logits(q, env_steps.action_mask), axis=-1)
    # The recursion is that of generalised advantages, with greatest Q for values.
    advantages = gae(
        rewards=clip_rewards(env_steps.reward[1:], config.reward_clip),
        discounts=jnp.where(env_steps.terminated[1:], 0.0, config.discount),
        valid=trajectory.valid,
        values=values,
        lambda_=config.lambda_,
    )
    return jax.lax.stop_gradient(values[:-1]) + advantages
