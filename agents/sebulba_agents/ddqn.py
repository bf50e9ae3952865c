"""Double DQN (van Hasselt et al. 2016, arXiv 1509.06461), with Adam instead of RMSProp.

Optional: prioritised replay (Schaul et al. 2016, arXiv 1511.05952), a dueling network (Wang et al.
2016, arXiv 1511.06581) and n-step targets. With another network and loss, the same class learns
distributions of returns: docs/tutorials/replay.md.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.agent import ActorStateSharding, Metrics
from sebulba.errors import ConfigError, calling
from sebulba.pytree import describe_inline
from sebulba.toolkit.exploration import ExplorationState, ScheduledExploration, greedy_action
from sebulba.toolkit.learner_clock import at_step
from sebulba.toolkit.reductions import masked_mean
from sebulba.toolkit.replay import ReplayState, Transitions, frame_stack, transition_replay
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.spaces import zeros
from sebulba.toolkit.torsos import check_network
from sebulba.types import EnvStep, PyTree, RunSpec, Trajectory
from sebulba_agents.q_learning import (
    QNetwork,
    QNetworks,
    QOptimizer,
    QOptState,
    num_discrete_actions,
    with_copy,
)
from sebulba_agents.replay_config import DDQNConfig

Loss = Callable[[jax.Array, jax.Array, Transitions], tuple[jax.Array, jax.Array]]
"""`loss(taken, following, batch)` returns losses `[n]` and TD errors `[n]`, which are priorities.

`taken` `[n, ...]` are the online network's outputs for the actions taken. `following` `[n, ...]`
are the target network's for the next observations and the online network's greedy actions there.
"""


def huber_loss(
    taken: jax.Array, following: jax.Array, batch: Transitions
) -> tuple[jax.Array, jax.Array]:
    """Return `huber(δ)` `[n]`, with the gradient clipped at 1, and δ `[n]`.

    `δ = R + Γ·Q⁻(s′, argmax_a Q(s′, a)) − Q(s, a)`.
    """
    td_error = batch.reward + batch.discount * following - taken
    return optax.huber_loss(td_error, delta=1.0), td_error


class DDQN:
    """Double Q-learning from a replay of single transitions."""

    def __init__(
        self,
        config: DDQNConfig,
        run_spec: RunSpec,
        *,
        network: nn.Module | None = None,
        loss: Loss = huber_loss,
        values: Callable[[jax.Array], jax.Array] = lambda outputs: outputs,
    ):
        """Build network, replay and optimizer.

        Args:
            config: settings of network, replay, exploration and optimizer.
            run_spec: the run's.
            network: from observations `[n, ...]` to outputs `[n, A, ...]`; None: the config's,
                whose outputs are action values.
            loss: of a batch.
            values: from outputs `[n, A, ...]` or `[n, ...]` to action values `[n, A]` or `[n]`.

        Raises:
            ConfigError: the settings or the environment do not suit the agent.
        """
        self._loss = loss
        self._own_values = values
        self._run_spec = run_spec
        check_network(config.network, config.hidden_sizes, run_spec.environment.observation)
        self._replay = transition_replay(
            config,
            run_spec,
            n_step=config.n_step,
            reward_clip=config.reward_clip,
            stack=frame_stack(config.frame_stack, config.frame_stack_fill, run_spec),
            priority_exponent=config.priority_exponent,
            importance_exponent=config.importance_exponent,
        )
        self._num_actions = num_discrete_actions(run_spec, config.name)
        self.network = network or QNetwork(
            num_actions=self._num_actions,
            network=config.network,
            hidden_sizes=config.hidden_sizes,
            dueling_size=config.dueling_size,
        )
        self.exploration = ScheduledExploration(
            run_spec,
            epsilon=config.epsilon,
            exponent=config.epsilon_exponent,
            evaluation_epsilon=config.evaluation_epsilon,
        )
        self._optimizer = QOptimizer(config, run_spec)

    def init_networks(self, key: jax.Array) -> QNetworks:
        """Return the parameters, and their copy as target parameters."""
        return with_copy(self.network.init(key, zeros(self._run_spec.environment.observation, 1)))

    def init_opt_state(self, networks: QNetworks) -> QOptState:
        """Return the optimizer's initial state."""
        return self._optimizer.init(networks)

    def init_experience(self, networks: QNetworks, num_envs: int) -> ReplayState:
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
        q = self._values(self._outputs(networks, env_step.observation), num_axes=2)
        action, actor_state = self.exploration.act(actor_state, q, env_step, greedy=greedy)
        return action, (), actor_state

    def shard_actor_state(
        self, actor_state: ExplorationState, sharding: ActorStateSharding
    ) -> ExplorationState:
        """Split everything except the key."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: QNetworks,
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
        self, networks: QNetworks, experience: ReplayState, key: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, tuple[ReplayState, Metrics]]:
        """Return the loss of a batch from the replay, and the replay with new priorities."""
        experience = dataclasses.replace(experience, clock=at_step(experience.clock, step))
        batch = self._replay.sample(experience, key)
        loss, td_error, metrics = self.loss_of_batch(networks, batch)
        experience = self._replay.update_priorities(experience, batch.ids, td_error)
        metrics |= self._replay.ratio.metrics(experience, step, batch.num_transitions)
        return loss, (experience, metrics)

    def loss_of_batch(
        self, networks: QNetworks, batch: Transitions
    ) -> tuple[jax.Array, jax.Array, Metrics]:
        """Return the loss `[]`, TD errors `[n]`, and metrics.

        The loss is the mean over the batch of all learner devices, with importance weights.
        """
        online, target = networks.online, jax.lax.stop_gradient(networks.target)
        each = jnp.arange(len(batch.reward))
        taken = self._outputs(online, batch.observation)[each, batch.action]
        next_values = self._values(self._outputs(online, batch.next_observation), num_axes=2)
        next_action = greedy_action(next_values, batch.next_action_mask)
        following = self._outputs(target, batch.next_observation)[each, next_action]
        losses, td_error = self._losses(taken, following, batch)
        drawn = batch.weight > 0.0
        metrics = {
            "q_taken": masked_mean(self._values(taken, num_axes=1), drawn),
            "td_error": masked_mean(jnp.abs(td_error), drawn),
            "importance_weight": masked_mean(batch.weight, drawn),
        }
        return masked_mean(batch.weight * losses, jnp.ones_like(drawn)), td_error, metrics

    def _outputs(self, params: PyTree, observation: PyTree) -> jax.Array:
        """Return outputs `[n, A, ...]`, checked: JAX would clamp the indices of missing actions."""
        outputs = self.network.apply(params, observation)
        n = jax.tree.leaves(observation)[0].shape[0]
        if getattr(outputs, "shape", ())[:2] != (n, self._num_actions):
            raise ConfigError(
                f"DDQN(network=...): expected {type(self.network).__name__} to return an array"
                f" [{n}, {self._num_actions}, ...], for {n} observations and {self._num_actions}"
                f" actions, got {describe_inline(outputs)}"
            )
        return outputs

    def _values(self, outputs: jax.Array, *, num_axes: int) -> jax.Array:
        """Return action values, with the first axes of the outputs: `[n, A]` or `[n]`."""
        given = f"outputs {describe_inline(outputs)}"
        with calling("DDQN(values=...)", given=given):
            values = self._own_values(outputs)
        expected = outputs.shape[:num_axes]
        if getattr(values, "shape", None) != expected:
            raise ConfigError(
                f"DDQN(values=...): expected action values {list(expected)}, got"
                f" {describe_inline(values)}; it was called with {given}"
            )
        return values

    def _losses(
        self, taken: jax.Array, following: jax.Array, batch: Transitions
    ) -> tuple[jax.Array, jax.Array]:
        """Return losses `[n]` and TD errors `[n]`."""
        given = f"taken {describe_inline(taken)} and following {describe_inline(following)}"
        with calling("DDQN(loss=...)", given=given):
            returned = self._loss(taken, following, batch)
        n = len(taken)
        is_pair = isinstance(returned, tuple) and len(returned) == 2
        if not (is_pair and all(getattr(each, "shape", None) == (n,) for each in returned)):
            raise ConfigError(
                f"DDQN(loss=...): expected a pair of arrays [{n}], losses and TD errors, got"
                f" {describe_inline(returned)}; it was called with {given}"
            )
        return returned

    def optimize(
        self, networks: QNetworks, opt_state: QOptState, grads: QNetworks, experience: ReplayState
    ) -> tuple[QNetworks, QOptState]:
        """Take an Adam step; copy to the target network every `target_period` updates."""
        return self._optimizer.step(networks, opt_state, grads, experience.clock)

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return the number of updates that keeps the replay ratio exactly."""
        return self._replay.ratio.num_updates_in(cycle)

    def actor_networks(self, networks: QNetworks) -> PyTree:
        """Return the online parameters."""
        return networks.online
