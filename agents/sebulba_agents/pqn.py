"""PQN: Q-learning from parallel environments, without a replay or a target network.

Gallici et al. 2025, "Simplifying Deep Temporal Difference Learning" (arXiv 2407.04811), algorithm
1: ε-greedy acting, Q(λ) targets, and several epochs of minibatches on each learner cycle's
trajectories. LayerNorm in the network replaces the target network.

The targets are computed once per learner cycle, on all rows of its trajectories, with the
parameters that the cycle begins with. A minibatch holds transitions, or whole unrolls with a
recurrent core.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.cores import core_settings, initial_core_state
from sebulba.toolkit.distributions import entry_of, legal_logits
from sebulba.toolkit.exploration import ExplorationState, ScheduledExploration
from sebulba.toolkit.minibatches import (
    TransitionBatch,
    check_num_minibatches,
    choose_environments,
    choose_transitions,
    next_minibatch,
    with_orders,
)
from sebulba.toolkit.normalization import clip_rewards
from sebulba.toolkit.optimizers import clipped_radam, descend
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.returns import gae
from sebulba.toolkit.schedules import at_clock
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import fold_time
from sebulba.toolkit.window import Window, init_window, push
from sebulba.types import Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.config import PQNConfig
from sebulba_agents.normalized_network import (
    NormalizedQNetwork,
    check_normalized_network,
    recurrent_normalized_q_network,
)
from sebulba_agents.q_learning import RecurrentQNetwork, num_discrete_actions


@pytree_dataclass
class Memory:
    """What acting remembers of the past, with a core; zeroed at `is_first`."""

    core: PyTree  # [B, ...]
    last_action: jax.Array  # [B] int32


class PQN(Agent):
    """Q(λ) on the newest trajectories."""

    def __init__(self, config: PQNConfig, run_spec: RunSpec):
        """Build network and optimizer.

        Raises:
            ConfigError: the settings or the environment do not suit the agent, or a learner
                device's share of a learner cycle cannot be split into minibatches.
        """
        self._core = core_settings(config.core, config.lstm_size, config.core_options)
        check_num_minibatches(config.num_minibatches, run_spec, of_unrolls=self._core is not None)
        torso = config.torso_for(run_spec.environment)
        check_normalized_network(torso, run_spec.environment.observation)
        self._config = config
        self._run_spec = run_spec
        num_actions = num_discrete_actions(run_spec, "pqn")
        self.network: NormalizedQNetwork | RecurrentQNetwork = NormalizedQNetwork(
            num_actions=num_actions, torso=torso
        )
        if self._core is not None:
            self.network = recurrent_normalized_q_network(
                num_actions=num_actions, torso=torso, core=self._core
            )
        self.exploration = ScheduledExploration(
            run_spec, epsilon=config.epsilon, evaluation_epsilon=config.evaluation_epsilon
        )
        self._radam = clipped_radam(epsilon=config.adam_epsilon, max_grad_norm=config.max_grad_norm)

    def init_networks(self, key: jax.Array) -> PyTree:
        """Return the parameters."""
        observation = self._run_spec.environment.observation
        if self._core is None:
            return self.network.init(key, zeros(observation, 1))
        return self.network.init(
            key,
            zeros(observation, 1, 1),
            reward=jnp.zeros((1, 1), jnp.float32),
            last_action=jnp.zeros((1, 1), jnp.int32),
            is_first=jnp.ones((1, 1), bool),
            state=initial_core_state(self._core, 1),
        )

    def init_opt_state(self, networks: PyTree) -> PyTree:
        """Return RAdam's initial state."""
        return self._radam.init(networks)

    def init_experience(self, networks: PyTree, num_envs: int) -> Window:
        """Return a window of zeros for one learner cycle's trajectories, with targets as extras."""
        window = init_window(self, networks, self._run_spec, num_envs, keep=lambda s: s.memory)
        shape = window.trajectory.action.shape
        trajectory = dataclasses.replace(window.trajectory, extras=jnp.zeros(shape, jnp.float32))
        window = dataclasses.replace(window, trajectory=trajectory)
        return zeros(jax.eval_shape(self._with_orders, window, jax.random.key(0)))

    def init_actor_state(
        self, networks: PyTree, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> ExplorationState:
        """Return the state at the start of the ε schedule, and an empty memory."""
        del networks
        state = self.exploration.init(num_envs, key, global_actor_id)
        if self._core is None:
            return state
        core = initial_core_state(self._core, num_envs)
        memory = Memory(core=core, last_action=jnp.zeros(num_envs, jnp.int32))
        return dataclasses.replace(state, memory=memory)

    def advance_actor_state(
        self, actor_state: ExplorationState, env_steps: int
    ) -> ExplorationState:
        """Return the state at `env_steps` of the ε schedule."""
        return self.exploration.advance(actor_state, env_steps)

    def act(
        self, networks: PyTree, actor_state: ExplorationState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, tuple[()], ExplorationState]:
        """Select the action with the greatest Q, or with probability ε a random one."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], env_step)
        memory = actor_state.memory
        last_action = None if self._core is None else memory.last_action[None]
        (q,), core = self._unroll(networks, rows, last_action, memory)
        action, actor_state = self.exploration.act(actor_state, q, env_step, greedy=greedy)
        if self._core is not None:
            memory = Memory(core=core, last_action=action)
            actor_state = dataclasses.replace(actor_state, memory=memory)
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
        memory = initial_state.memory
        q = self.unroll_trajectory(networks, memory, trajectory)
        targets = q_lambda_targets(q, trajectory, self._config)
        trajectory = dataclasses.replace(trajectory, extras=targets)
        return self._with_orders(push(experience, memory, trajectory), initial_state.key)

    def loss(
        self, networks: PyTree, experience: Window, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Return the loss of the next minibatch."""
        del key
        chosen = next_minibatch(experience, clock, self._config.num_minibatches)
        if self._core is None:
            loss, metrics = self.loss_of_batch(networks, choose_transitions(experience, chosen))
        else:
            unrolls = choose_environments(experience, chosen)
            q = self.unroll_trajectory(networks, unrolls.initial, unrolls.trajectory)
            loss, metrics = squared_error(q[:-1], unrolls.trajectory)
        return loss, (experience, metrics)

    def loss_of_batch(self, networks: PyTree, batch: TransitionBatch) -> tuple[jax.Array, Metrics]:
        """Return the loss `[]` of a network without a core, and metrics.

        Args:
            networks: differentiated.
            batch: transitions `[1, M]` with targets G as extras.
        """
        q, _ = self._unroll(networks, batch.env_steps, None, ())
        return squared_error(q, batch)

    def unroll_trajectory(
        self, networks: PyTree, memory: Memory | tuple[()], trajectory: Trajectory
    ) -> jax.Array:
        """Return Q `[T + 1, B, A]` of all rows, from the memory before row 0."""
        last_action = None
        if isinstance(memory, Memory):
            # Row t sees the action of row t - 1; the actor's memory has the one before row 0.
            last_action = jnp.concatenate([memory.last_action[None], trajectory.action])
        return self._unroll(networks, trajectory.env_steps, last_action, memory)[0]

    def _unroll(
        self,
        networks: PyTree,
        env_steps: EnvStep,
        last_action: jax.Array | None,
        memory: Memory | tuple[()],
    ) -> tuple[jax.Array, PyTree]:
        """Return Q `[R, B, A]` of rows, and the core's state after them; without a core, `()`."""
        if not isinstance(memory, Memory):
            apply = functools.partial(self.network.apply, networks)
            return fold_time(apply, env_steps.observation), ()
        return self.network.apply(
            networks,
            env_steps.observation,
            reward=clip_rewards(env_steps.reward, self._config.reward_clip),
            last_action=last_action,
            is_first=env_steps.is_first,
            state=memory.core,
        )

    def _with_orders(self, window: Window, key: jax.Array) -> Window:
        return with_orders(
            window,
            key,
            num_epochs=self._config.num_epochs,
            of_unrolls=self._core is not None,
        )

    def optimize(
        self, networks: PyTree, opt_state: PyTree, grads: PyTree, experience: Window, clock: Clock
    ) -> tuple[PyTree, PyTree]:
        """Take a step of RAdam."""
        config = at_clock(self._config, clock, self._run_spec)
        return descend(self._radam, networks, opt_state, grads, learning_rate=config.learning_rate)

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return epochs × minibatches, for every cycle."""
        del cycle
        return self._config.num_epochs * self._config.num_minibatches

    def actor_networks(self, networks: PyTree) -> PyTree:
        """Return the parameters."""
        return networks


def squared_error(q: jax.Array, batch: TransitionBatch | Trajectory) -> tuple[jax.Array, Metrics]:
    """Return the loss `[]`, mean of `0.5 · (G − Q(s, a))²` over valid transitions, and metrics.

    Args:
        q: Q `[T, B, A]`, or `[1, M, A]` of single transitions; differentiated.
        batch: with targets G as extras.
    """
    taken_q, valid = entry_of(q, batch.action), batch.valid
    # Whole unrolls have one row more than transitions.
    mask = jax.tree.map(lambda leaf: leaf[: len(q)], batch.env_steps.action_mask)
    td_error = batch.extras - taken_q
    metrics = {
        "q_taken": mean_share(taken_q, valid),
        "q_greatest": mean_share(jnp.max(legal_logits(q, mask), axis=-1), valid),
        "td_error": mean_share(jnp.abs(td_error), valid),
    }
    return mean_share(0.5 * jnp.square(td_error), valid), metrics


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
