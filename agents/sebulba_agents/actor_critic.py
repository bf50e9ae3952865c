"""Acting with a policy and a value: all that on-policy agents have in common.

`ActorCriticAgent` acts with a network, keeps its memory, and takes the steps of the optimizer. What
it learns from its trajectories is a `Learning`'s to say.
"""

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Distribution
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.window import init_window
from sebulba.types import EnvStep, Experience, PyTree, RunSpec, Trajectory
from sebulba_agents.config import ActorCriticConfig
from sebulba_agents.networks import ActorCritic, CoreState, PolicyValue, zero_observation
from sebulba_agents.normalization import discounted_returns, init_normalization, merge_rows
from sebulba_agents.on_policy import (
    ActorCriticNetworks,
    Learning,
    Memory,
    clip_rewards,
)
from sebulba_agents.optimizers import descend, make_optimizer
from sebulba_agents.policies import make_policy_head
from sebulba_agents.torsos import check_torso


@pytree_dataclass
class ActorCriticState:
    """What acting carries along."""

    memory: Memory
    key: jax.Array


@pytree_dataclass
class ActorCriticExtras:
    """What the learner has to know about each action."""

    policy: Distribution  # [B], the behaviour policy


@pytree_dataclass
class ActorCriticOptState:
    """The optimizer's state."""

    optimizer: PyTree
    num_updates: jax.Array  # [] int32


class ActorCriticAgent:
    """An actor-critic, feed-forward or with an LSTM, for discrete or continuous actions.

    Continuous actions are drawn from a Gaussian without bounds; the environment's adapter clips.
    """

    def __init__(self, config: ActorCriticConfig, run_spec: RunSpec, *, learning: Learning):
        """Checks that environment and torso suit the agent.

        Args:
            config: the settings of network and optimizer.
            run_spec: the run's.
            learning: what is learned.

        Raises:
            ConfigError: naming the key to change.
        """
        check_torso(config.torso, run_spec.environment.observation)
        self._config = config
        self._run_spec = run_spec
        self._learning = learning
        self._network = ActorCritic(
            policy=make_policy_head(
                run_spec.environment.action_space,
                agent=config.name,
                initial_log_std=config.initial_log_std,
            ),
            torso=config.torso,
            hidden_sizes=config.hidden_sizes,
            lstm_size=config.lstm_size,
        )
        num_updates = run_spec.num_cycles * learning.num_updates_per_cycle
        self._optimizer = make_optimizer(config, num_updates)

    def init_networks(self, key: jax.Array) -> ActorCriticNetworks:
        """Returns the parameters, and moments of nothing."""
        params = self._network.init(
            key,
            zero_observation(self._run_spec, 1, 1),
            reward=jnp.zeros((1, 1), jnp.float32),
            last_action=self._zero_action(1, 1),
            is_first=jnp.ones((1, 1), bool),
            state=self._network.initial_state(1),
        )
        normalization = init_normalization(
            self._run_spec.environment.observation,
            of_observations=self._config.normalize_observations,
            of_rewards=self._config.normalize_rewards,
        )
        return ActorCriticNetworks(params=params, normalization=normalization)

    def init_opt_state(self, networks: ActorCriticNetworks) -> ActorCriticOptState:
        """Returns the optimizer's state."""
        return ActorCriticOptState(
            optimizer=self._optimizer.init(networks.params), num_updates=jnp.int32(0)
        )

    def init_experience(self, networks: ActorCriticNetworks, num_envs: int) -> Experience:
        """Returns what is made of an empty window of one learner cycle's trajectories."""
        window = init_window(
            self, networks, self._run_spec, num_envs, keep=lambda actor_state: actor_state.memory
        )
        return self._learning.init_experience(window)

    def init_actor_state(
        self, networks: ActorCriticNetworks, num_envs: int, key: jax.Array, actor_id: int
    ) -> ActorCriticState:
        """Returns an empty memory, and the key."""
        del networks, actor_id
        normalizes = self._config.normalize_rewards
        memory = Memory(
            core=self._network.initial_state(num_envs),
            last_action=self._zero_action(num_envs),
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
        """Samples from the policy, or takes its mode."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], env_step)
        memory = actor_state.memory
        outputs, core = self.unroll(networks, rows, memory.last_action[None], memory.core)
        policy = jax.tree.map(lambda leaf: leaf[0], outputs.policy)
        key, action_key = jax.random.split(actor_state.key)
        action = policy.mode() if greedy else policy.sample(action_key)
        discounted_return = memory.discounted_return
        if discounted_return is not None:
            discounted_return = discounted_returns(rows, discounted_return, self._config.discount)[
                0
            ]
        memory = Memory(core=core, last_action=action, discounted_return=discounted_return)
        return action, ActorCriticExtras(policy=policy), ActorCriticState(memory=memory, key=key)

    def shard_actor_state(
        self, actor_state: ActorCriticState, sharding: ActorStateSharding
    ) -> ActorCriticState:
        """Splits the memory over the learner devices."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: ActorCriticNetworks,
        experience: Experience,
        initial_state: ActorCriticState,
        final_state: ActorCriticState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Experience:
        """Takes the trajectory in, and the memory that the actor began it with."""
        del final_state, actor_id
        return self._learning.update_experience(
            self.unroll, networks, experience, initial_state.memory, trajectory
        )

    def loss(
        self,
        networks: ActorCriticNetworks,
        experience: Experience,
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Returns the loss of this optimisation step."""
        return self._learning.loss(self.unroll, networks, experience, key, step)

    def optimize(
        self,
        networks: ActorCriticNetworks,
        opt_state: ActorCriticOptState,
        grads: ActorCriticNetworks,
        experience: Experience,
    ) -> tuple[ActorCriticNetworks, ActorCriticOptState]:
        """Takes a step of the optimizer; a cycle's last one merges its rows into the moments.

        So all of a cycle's updates normalise as its targets were.
        """
        params, optimizer = descend(
            self._optimizer, networks.params, opt_state.optimizer, grads.params
        )
        num_updates = opt_state.num_updates + 1
        is_last = num_updates % self._learning.num_updates_per_cycle == 0
        window = self._learning.window(experience)
        normalization = merge_rows(
            networks.normalization,
            window.trajectory.env_steps,
            window.trajectory.valid & is_last,
            window.initial.discounted_return,
            self._config.discount,
        )
        return (
            ActorCriticNetworks(params=params, normalization=normalization),
            ActorCriticOptState(optimizer=optimizer, num_updates=num_updates),
        )

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Returns the same number for every cycle."""
        del cycle
        return self._learning.num_updates_per_cycle

    def actor_networks(self, networks: ActorCriticNetworks) -> ActorCriticNetworks:
        """Returns everything."""
        return networks

    def unroll(
        self,
        networks: ActorCriticNetworks,
        env_steps: EnvStep,
        last_action: jax.Array,
        core: CoreState,
    ) -> tuple[PolicyValue, CoreState]:
        """Returns policy and value of consecutive rows, and the core's state after them.

        Args:
            networks: the parameters, and what normalises their inputs.
            env_steps: `[R, B, ...]`; acting unrolls one row, learning a trajectory's `T + 1`.
            last_action: `[R, B, ...]`, chosen from the row before each.
            core: the state before row 0.
        """
        normalization = networks.normalization
        reward = normalization.scale(env_steps.reward)
        return self._network.apply(
            networks.params,
            normalization.normalize(env_steps.observation),
            reward=clip_rewards(reward, self._config.reward_clip),
            last_action=last_action,
            is_first=env_steps.is_first,
            state=core,
        )

    def _zero_action(self, *leading: int) -> jax.Array:
        space = self._run_spec.environment.action_space
        dtype = jnp.int32 if jnp.issubdtype(space.dtype, jnp.integer) else jnp.float32
        return jnp.zeros((*leading, *space.shape), dtype)
