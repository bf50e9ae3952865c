"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019, openreview r1lyTjAqYX).

A sequence is `burn_in` transitions that only warm up the recurrent state that the actor stored,
`learn_length` transitions to learn from, and one more row to bootstrap from. Sequences start every
`stride` rows. The stride is at most `learn_length`, so every row is learned from.

As in SEED RL (Espeholt et al. 2020, arXiv 1910.06591), and unlike in the paper, a sequence may span
several episodes: the recurrent state is zeroed at resets, and the transition from a final
observation to a reset has no weight.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Metrics
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit import replay
from sebulba.toolkit.cores import core_settings
from sebulba.toolkit.distributions import entry_of, legal_logits
from sebulba.toolkit.exploration import epsilon_greedy, exploration_epsilons, greedy_action
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.replay import ReplayState, Sample, frame_stack, replay_ratio, replay_spec
from sebulba.toolkit.replay.priorities import importance_weights, over_maximum
from sebulba.toolkit.replay.rows import Row, as_seen, row_shapes, rows_of, valid_transitions
from sebulba.toolkit.schedules import at_clock
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import check_network
from sebulba.types import Array, Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.q_learning import (
    DuelingHead,
    RecurrentQNetwork,
    make_torso,
    num_discrete_actions,
    rescaled_td_errors,
    sequence_priority,
)
from sebulba_agents.replay_config import R2D2Config
from sebulba_agents.target_networks import (
    TargetNetworkAgent,
    TargetNetworks,
    with_copy,
)


@pytree_dataclass
class Memory:
    """What acting remembers of the past; zeroed at `is_first`."""

    lstm: PyTree  # [B, ...]
    last_action: jax.Array  # [B] int32


@pytree_dataclass
class R2D2ActorState:
    """The actor state."""

    memory: Memory
    epsilon: jax.Array  # [B]
    key: jax.Array


@pytree_dataclass
class ActorQ:
    """The actor's Q values of a row, for the initial priorities of sequences, and its memory."""

    taken: Array  # [B] float32, of the action taken
    greatest: Array  # [B] float32
    # Before the row; None if sequences only start at row 0 of a trajectory.
    memory: Memory | None = None


class R2D2(TargetNetworkAgent):
    """Recurrent double Q-learning from prioritised replay of sequences."""

    _config: R2D2Config

    def __init__(self, config: R2D2Config, run_spec: RunSpec):
        """Build network, replay and optimizer.

        Raises:
            ConfigError: the settings or the environment do not suit the agent.
        """
        torso = config.torso_for(run_spec.environment)
        check_network(torso, run_spec.environment.observation)
        core = core_settings(config.core, config.lstm_size, config.core_options)
        assert core is not None  # lstm_size is a number
        rows_per_update = config.batch_size * config.learn_length
        super().__init__(
            config, run_spec, replay_ratio(config, run_spec, rows_per_update=rows_per_update)
        )
        self._frame_stack = frame_stack(config.frame_stack, config.frame_stack_fill, run_spec)
        self._replay_spec = replay_spec(
            config,
            run_spec,
            sequence_length=config.burn_in + config.learn_length,
            stride=sequence_stride(config, run_spec),
            stack=self._frame_stack,
            priority_exponent=config.priority_exponent,
        )
        self._batch_size = config.batch_size // run_spec.num_learner_devices
        num_actions = num_discrete_actions(run_spec, "r2d2")
        self.network = RecurrentQNetwork(
            num_actions=num_actions,
            features=lambda observation: make_torso(torso)(observation),
            core=core,
            head=lambda x: DuelingHead(num_actions, config.dueling_size)(x),
        )

    def init_networks(self, key: jax.Array) -> TargetNetworks:
        """Return the parameters, and their copy as target parameters."""
        params = self.network.init(
            key,
            zeros(self._run_spec.environment.observation, 1, 1),
            reward=jnp.zeros((1, 1)),
            last_action=jnp.zeros((1, 1), jnp.int32),
            is_first=jnp.zeros((1, 1), bool),
            state=self.network.initial_state(1),
        )
        return with_copy(params)

    def init_experience(self, networks: TargetNetworks, num_envs: int) -> ReplayState:
        """Return an empty replay of this device's environments."""
        del networks
        number = jax.ShapeDtypeStruct((), jnp.float32)
        extras = ActorQ(taken=number, greatest=number)
        row = row_shapes(self._run_spec, self._frame_stack, extras)
        memory = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], self._initial_memory(1)))
        spec = dataclasses.replace(self._replay_spec, num_envs=num_envs)
        return replay.init(spec, row, memory)

    def init_actor_state(
        self, networks: PyTree, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> R2D2ActorState:
        """Return an empty memory and the exploration rates of the actor's environments."""
        del networks
        return R2D2ActorState(
            memory=self._initial_memory(num_envs),
            epsilon=exploration_epsilons(
                first=global_actor_id * num_envs,
                count=num_envs,
                total=self._run_spec.num_streams_of_all_hosts,
                base=self._config.epsilon_base,
                exponent=self._config.epsilon_exponent,
            ),
            key=key,
        )

    def act(
        self, networks: PyTree, actor_state: R2D2ActorState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, ActorQ, R2D2ActorState]:
        """Select the action with the greatest Q, or with probability ε a random one."""
        memory = actor_state.memory
        (q,), lstm = self._unroll(
            networks,
            jax.tree.map(lambda x: jnp.asarray(x)[None], env_step),
            memory.last_action[None],
            memory.lstm,
        )
        key, action_key = jax.random.split(actor_state.key)
        epsilon = actor_state.epsilon
        if greedy:
            epsilon = jnp.full_like(epsilon, self._config.evaluation_epsilon)
        action = epsilon_greedy(action_key, q, epsilon, env_step.action_mask)
        actor_q = ActorQ(
            taken=entry_of(q, action),
            greatest=jnp.max(legal_logits(q, env_step.action_mask), axis=-1),
            memory=memory if self._has_interior_starts else None,
        )
        memory = Memory(lstm=lstm, last_action=action)
        actor_state = dataclasses.replace(actor_state, memory=memory, key=key)
        return action, actor_q, actor_state

    def shard_actor_state(
        self, actor_state: R2D2ActorState, sharding: ActorStateSharding
    ) -> R2D2ActorState:
        """Split everything except the key."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: TargetNetworks,
        experience: ReplayState,
        initial_state: R2D2ActorState,
        final_state: R2D2ActorState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> ReplayState:
        """Add the rows, and set priorities of completed sequences from the actor's Q values.

        Raises:
            ConfigError: frame_stack is set, but a lost life ends episodes without clearing stacks.
        """
        del networks, final_state
        spec, actor_q = self._replay_spec, trajectory.extras
        rows = rows_of(trajectory, self._frame_stack, dataclasses.replace(actor_q, memory=None))
        memory = jax.tree.map(lambda x: x[None], initial_state.memory)
        if self._has_interior_starts:
            memory = jax.tree.map(lambda x: x[:: spec.stride], actor_q.memory)
        experience = replay.add(spec, experience, rows, memory, actor_id)
        ids = replay.newest(spec, experience, actor_id)
        rows = replay.read(spec, experience, ids).rows
        rows = jax.tree.map(lambda x: x[spec.num_context_rows + self._config.burn_in :], rows)
        actor_q = rows.extras
        _, priority = self._td_errors(rows, actor_q.taken[:-1], bootstrap_q=actor_q.greatest)
        # Where an episode's final row is repeated, a sequence may have nothing to learn from.
        has_transitions = valid_transitions(rows.env_step).any(axis=0)
        priority = jnp.where(has_transitions, priority, 0.0)
        return replay.update_priorities(spec, experience, ids, priority)

    def loss(
        self, networks: TargetNetworks, experience: ReplayState, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[ReplayState, Metrics]]:
        """Return the loss of a batch from the replay, and the replay with new priorities."""
        spec = self._replay_spec
        sample = replay.sample(spec, experience, key, self._batch_size)
        exponent = at_clock(self._config, clock, self._run_spec).importance_exponent
        loss, priority, metrics = self.loss_of_sample(networks, sample, exponent)
        experience = replay.update_priorities(spec, experience, sample.ids, priority)
        metrics |= self._replay_ratio.metrics(experience, clock.step, sample.num_sequences)
        return loss, (experience, metrics)

    def loss_of_sample(
        self, networks: TargetNetworks, sample: Sample, importance_exponent: float | jax.Array
    ) -> tuple[jax.Array, jax.Array, Metrics]:
        """Return the loss `[]`, new priorities `[n]` of the sampled sequences, and metrics.

        The mean over the batch of all learner devices of `w · ½ Σ_t δ_t²`, over valid transitions.

        Args:
            networks: differentiated.
            sample: this learner device's.
            importance_exponent: β `[]`.
        """
        recurrent = sample.sequences.recurrent
        rows = as_seen(sample.sequences.rows, self._frame_stack)
        last_action = jnp.concatenate([recurrent.last_action[None], rows.action[:-1]])
        # Online and target network each burn in their own recurrent state from the stored one.
        online_q = self._learned_q(networks.online, rows, last_action, recurrent.lstm)
        frozen = jax.lax.stop_gradient(networks.target)
        target_q = self._learned_q(frozen, rows, last_action, recurrent.lstm)
        learned = jax.tree.map(lambda x: x[self._config.burn_in :], rows)
        taken_q = entry_of(online_q[:-1], learned.action[:-1])
        best = greedy_action(online_q, learned.env_step.action_mask)
        td_errors, priority = self._td_errors(
            learned, taken_q, bootstrap_q=entry_of(target_q, best)
        )
        weights = over_maximum(
            importance_weights(sample.probability, sample.num_sequences, importance_exponent)
        )
        loss = weights * 0.5 * jnp.sum(jnp.square(td_errors), axis=0)
        every = jnp.ones_like(weights, bool)
        valid = valid_transitions(learned.env_step)
        metrics = {
            "q_taken": mean_share(taken_q, valid),
            "td_error": mean_share(jnp.abs(td_errors), valid),
            "importance_weight": mean_share(weights, every),
        }
        return mean_share(loss, every), priority, metrics

    @property
    def _has_interior_starts(self) -> bool:
        return self._replay_spec.stride < self._run_spec.trajectory_length

    def _initial_memory(self, num_envs: int) -> Memory:
        return Memory(
            lstm=self.network.initial_state(num_envs),
            last_action=jnp.zeros((num_envs,), jnp.int32),
        )

    def _unroll(
        self, params: PyTree, env_steps: EnvStep, last_action: jax.Array, lstm: PyTree
    ) -> tuple[jax.Array, PyTree]:
        """Return Q `[T, B, A]` of consecutive rows, and the core's state after them."""
        return self.network.apply(
            params,
            env_steps.observation,
            reward=env_steps.reward,
            last_action=last_action,
            is_first=env_steps.is_first,
            state=lstm,
        )

    def _learned_q(
        self, params: PyTree, rows: Row, last_action: jax.Array, lstm: PyTree
    ) -> jax.Array:
        """Return Q `[m + 1, n, A]` of the rows after the burn-in, which has no gradient."""
        burn_in = self._config.burn_in
        inputs = (rows.env_step, last_action)
        if burn_in:
            env_steps, actions = jax.tree.map(lambda x: x[:burn_in], inputs)
            _, lstm = self._unroll(jax.lax.stop_gradient(params), env_steps, actions, lstm)
        env_steps, actions = jax.tree.map(lambda x: x[burn_in:], inputs)
        q, _ = self._unroll(params, env_steps, actions, jax.lax.stop_gradient(lstm))
        return q

    def _td_errors(
        self, rows: Row, taken_q: jax.Array, *, bootstrap_q: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the TD errors `[m, n]` and the priorities `[n]` of rows `[m + 1, n]`."""
        config = self._config
        td_errors = rescaled_td_errors(
            rows.env_step,
            taken_q=taken_q,
            bootstrap_q=bootstrap_q,
            discount=config.discount,
            n_step=config.n_step,
            rescale_epsilon=config.rescale_epsilon,
        )
        valid = valid_transitions(rows.env_step)
        priority = sequence_priority(jax.lax.stop_gradient(td_errors), valid, config.priority_mix)
        return td_errors, priority


def sequence_stride(config: R2D2Config, run_spec: RunSpec) -> int:
    """Return the rows between the starts of sequences.

    Raises:
        ConfigError: some rows would never be learned from, or the stride does not divide T.
    """
    length, most = run_spec.trajectory_length, config.learn_length
    divisors = [stride for stride in range(1, length + 1) if length % stride == 0]
    allowed = [stride for stride in divisors if stride <= most]
    if config.stride is None and allowed:
        return allowed[-1]
    if config.stride not in allowed:
        raise ConfigError(
            f"agent.stride: expected a divisor of actor.trajectory_length {length} of at most"
            f" agent.learn_length {most}, so that every row is learned from, got {config.stride}."
            f" Set one of {allowed}"
        )
    return config.stride
