"""Double DQN (van Hasselt et al. 2016, arXiv 1509.06461), with Adam instead of RMSProp.

Optional: prioritised replay (Schaul et al. 2016, arXiv 1511.05952), a dueling network (Wang et al.
2016, arXiv 1511.06581) and n-step targets. With another network and loss, the same class learns
distributions of returns: docs/tutorials/replay.md.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.agent import ActorStateSharding, Metrics
from sebulba.toolkit.exploration import ExplorationState, ScheduledExploration, greedy_action
from sebulba.toolkit.prng import stream
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.replay import ReplayState, TransitionReplay, Transitions, frame_stack
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import check_network
from sebulba.types import Clock, EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.own_q_learning import (
    Loss,
    Values,
    checked_loss,
    checked_network,
    checked_values,
)
from sebulba_agents.q_learning import QNetwork, num_discrete_actions
from sebulba_agents.replay_config import DDQNConfig
from sebulba_agents.target_networks import TargetNetworkAgent, TargetNetworks, with_copy


def huber_loss(q_tm1: jax.Array, q_t: jax.Array, batch: Transitions) -> tuple[jax.Array, jax.Array]:
    """Return `huber(δ)` `[n]`, with the gradient clipped at 1, and δ `[n]`.

    `δ = R + Γ·Q⁻(s′, argmax_a Q(s′, a)) − Q(s, a)`, with the argmax of Q⁻ if `double` is false.
    """
    td_error = batch.reward + batch.discount * q_t - q_tm1
    return optax.huber_loss(td_error, delta=1.0), td_error


class DDQN(TargetNetworkAgent):
    """Double Q-learning from a replay of single transitions."""

    def __init__(
        self,
        config: DDQNConfig,
        run_spec: RunSpec,
        *,
        network: nn.Module | None = None,
        loss: Loss = huber_loss,
        values: Values = lambda outputs: outputs,
    ):
        """Build network, replay and optimizer.

        Args:
            config: settings of network, replay, exploration and optimizer.
            run_spec: the run's.
            network: maps observations `[n, ...]` to outputs `[n, A, ...]`; None: the config's,
                whose outputs are action values.
            loss: the loss of a batch.
            values: maps outputs `[n, A, ...]` or `[n, ...]` to action values `[n, A]` or `[n]`.

        Raises:
            ConfigError: the settings or the environment do not suit the agent.
        """
        self._loss = checked_loss(loss)
        self._values = checked_values(values)
        self._double = config.double
        torso = config.torso_for(run_spec.environment)
        check_network(torso, run_spec.environment.observation)
        self._replay = TransitionReplay(
            config,
            run_spec,
            n_step=config.n_step,
            reward_clip=config.reward_clip,
            stack=frame_stack(config.frame_stack, config.frame_stack_fill, run_spec),
            priority_exponent=config.priority_exponent,
            importance_exponent=config.importance_exponent,
        )
        super().__init__(config, run_spec, self._replay.ratio)
        num_actions = num_discrete_actions(run_spec, config.name)
        self.network = network or QNetwork(
            num_actions=num_actions,
            torso=torso,
            dueling_size=config.dueling_size,
        )
        self._outputs = checked_network(self.network, num_actions)
        self.exploration = ScheduledExploration(
            run_spec,
            epsilon=config.epsilon,
            exponent=config.epsilon_exponent,
            evaluation_epsilon=config.evaluation_epsilon,
        )

    def init_networks(self, key: jax.Array) -> TargetNetworks:
        """Return the parameters, and their copy as target parameters."""
        return with_copy(self.network.init(key, zeros(self._run_spec.environment.observation, 1)))

    def init_experience(self, networks: TargetNetworks, num_envs: int) -> ReplayState:
        """Return an empty replay of this device's environments."""
        del networks, num_envs
        return self._replay.init()

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
        key = None if greedy else stream(actor_state.key, "noise")
        q = self._values(self._outputs(networks, env_step.observation, key))
        action, actor_state = self.exploration.act(actor_state, q, env_step, greedy=greedy)
        return action, (), actor_state

    def shard_actor_state(
        self, actor_state: ExplorationState, sharding: ActorStateSharding
    ) -> ExplorationState:
        """Split everything except the key."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: TargetNetworks,
        experience: ReplayState,
        initial_state: ExplorationState,
        final_state: ExplorationState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> ReplayState:
        """Add the rows.

        Raises:
            ConfigError: frame_stack is set, but a lost life ends episodes without clearing stacks.
        """
        del networks, initial_state, final_state
        return self._replay.add(experience, trajectory, actor_id)

    def loss(
        self, networks: TargetNetworks, experience: ReplayState, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[ReplayState, Metrics]]:
        """Return the loss of a batch from the replay, and the replay with new priorities."""
        batch = self._replay.sample(experience, key, clock)
        loss, td_error, metrics = self.loss_of_batch(networks, batch, stream(key, "noise"))
        experience = self._replay.update_priorities(experience, batch.ids, td_error)
        metrics |= self._replay.ratio.metrics(experience, clock.step, batch.num_transitions)
        return loss, (experience, metrics)

    def loss_of_batch(
        self, networks: TargetNetworks, batch: Transitions, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, Metrics]:
        """Return the loss `[]`, TD errors `[n]`, and metrics.

        The loss is the mean over the batch of all learner devices, with importance weights. The key
        is that of noisy layers; None: no noise.
        """
        online, target = networks.online, jax.lax.stop_gradient(networks.target)
        each = jnp.arange(len(batch.reward))
        keys = (None, None, None) if key is None else jax.random.split(key, 3)
        q_tm1 = self._outputs(online, batch.observation, keys[0])[each, batch.action]
        delayed = chosen_by = self._outputs(target, batch.next_observation, keys[1])
        if self._double:
            chosen_by = self._outputs(online, batch.next_observation, keys[2])
        next_action = greedy_action(self._values(chosen_by), batch.next_action_mask)
        q_t = delayed[each, next_action]
        losses, td_error = self._loss(q_tm1, q_t, batch)
        drawn = batch.weight > 0.0
        metrics = {
            "q_taken": mean_share(self._values(q_tm1), drawn),
            "td_error": mean_share(jnp.abs(td_error), drawn),
            "importance_weight": mean_share(batch.weight, drawn),
        }
        return mean_share(batch.weight * losses, jnp.ones_like(drawn)), td_error, metrics
