"""What on-policy agents have in common: everything but what they learn from their trajectories.

`ActorCriticAgent` acts with a network of policy and value, keeps its memory, and takes the steps of
the optimizer. A `Learning` gives it the loss; `OnePass` is that of agents which learn once from
each trajectory.
"""

from collections.abc import Callable
from typing import Protocol

import gymnasium
import jax
import jax.numpy as jnp

from agents.config import A2CConfig, ImpalaConfig, PolicyGradientConfig, PPOConfig
from agents.networks import ActorCritic, CoreState, PolicyValue, check_torso
from agents.optimizers import descend, make_optimizer
from sebulba import distributions
from sebulba.agent import ActorStateSharding, Metrics
from sebulba.devices import shard_per_env_leaves
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, Experience, Networks, PyTree, RunSpec, Trajectory
from sebulba.window import Window, init_window, push

ActorCriticConfig = A2CConfig | ImpalaConfig | PolicyGradientConfig | PPOConfig
Unroll = Callable[[Networks, EnvStep, jax.Array, CoreState], tuple[PolicyValue, CoreState]]
"""`ActorCriticAgent.unroll`."""


@pytree_dataclass
class Memory:
    """What the network has to know about the past; zeroed at `is_first`."""

    core: CoreState  # [B, ...]
    last_action: jax.Array  # [B] int32


@pytree_dataclass
class ActorCriticState:
    """What acting carries along."""

    memory: Memory
    key: jax.Array


@pytree_dataclass
class ActorCriticExtras:
    """What the learner has to know about each action."""

    logits: jax.Array  # [B, A], of the behaviour policy


class Learning(Protocol):
    """What is learned from trajectories, and in how many steps; otherwise as in `Agent`."""

    num_updates_per_cycle: int

    def init_experience(self, window: Window) -> Experience:
        """Returns the experience, from an empty window of one learner cycle's trajectories."""
        ...

    def update_experience(
        self,
        unroll: Unroll,
        networks: Networks,
        experience: Experience,
        memory: Memory,
        trajectory: Trajectory,
    ) -> Experience:
        """Takes a trajectory in, and the memory that the actor began it with."""
        ...

    def loss(
        self,
        unroll: Unroll,
        networks: Networks,
        experience: Experience,
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Returns one optimisation step's loss, the experience and metrics."""
        ...


class OnePass:
    """One optimisation step a learner cycle, on all of its trajectories."""

    num_updates_per_cycle = 1

    def __init__(self, loss: Callable[[PolicyValue, Trajectory], tuple[jax.Array, Metrics]]):
        """Takes the loss of trajectories, given the network's outputs of their `T + 1` rows."""
        self._loss = loss

    def init_experience(self, window: Window) -> Window:
        """Returns the window."""
        return window

    def update_experience(
        self,
        unroll: Unroll,
        networks: Networks,
        experience: Window,
        memory: Memory,
        trajectory: Trajectory,
    ) -> Window:
        """Pushes the trajectory into the window."""
        del unroll, networks
        return push(experience, memory, trajectory)

    def loss(
        self,
        unroll: Unroll,
        networks: Networks,
        experience: Window,
        key: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Returns the loss of the newest trajectories, under the learner's parameters."""
        del key, step
        outputs = unroll_trajectory(unroll, networks, experience.initial, experience.trajectory)
        loss, metrics = self._loss(outputs, experience.trajectory)
        return loss, (experience, metrics)


class ActorCriticAgent:
    """An actor-critic for discrete actions, feed-forward or with an LSTM."""

    def __init__(self, config: ActorCriticConfig, run_spec: RunSpec, *, learning: Learning):
        """Checks that environment and torso suit the agent.

        Args:
            config: the settings of network and optimizer.
            run_spec: the run's.
            learning: what is learned.

        Raises:
            ConfigError: naming the key to change.
        """
        action_space = run_spec.environment.action_space
        if not isinstance(action_space, gymnasium.spaces.Discrete) or action_space.start != 0:
            raise ConfigError(
                f"env.id: {config.name} expects an environment with a Discrete action space from 0"
                f" on, got {action_space}"
            )
        check_torso(config.torso, run_spec.environment.observation)
        self._config = config
        self._run_spec = run_spec
        self._learning = learning
        self._network = ActorCritic(
            num_actions=int(action_space.n),
            torso=config.torso,
            hidden_sizes=config.hidden_sizes,
            lstm_size=config.lstm_size,
        )
        num_updates = run_spec.num_cycles * learning.num_updates_per_cycle
        self._optimizer = make_optimizer(config, num_updates)

    def init_networks(self, key: jax.Array) -> Networks:
        """Returns the parameters."""
        observation = jax.tree.map(
            lambda leaf: jnp.zeros((1, 1, *leaf.shape), leaf.dtype),
            self._run_spec.environment.observation,
        )
        return self._network.init(
            key,
            observation,
            reward=jnp.zeros((1, 1), jnp.float32),
            last_action=jnp.zeros((1, 1), jnp.int32),
            is_first=jnp.ones((1, 1), bool),
            state=self._network.initial_state(1),
        )

    def init_opt_state(self, networks: Networks) -> PyTree:
        """Returns the optimizer's state."""
        return self._optimizer.init(networks)

    def init_experience(self, networks: Networks, num_envs: int) -> Experience:
        """Returns what is made of an empty window of one learner cycle's trajectories."""
        window = init_window(
            self, networks, self._run_spec, num_envs, keep=lambda actor_state: actor_state.memory
        )
        return self._learning.init_experience(window)

    def init_actor_state(
        self, networks: Networks, num_envs: int, key: jax.Array, actor_id: int
    ) -> ActorCriticState:
        """Returns an empty memory, and the key."""
        del networks, actor_id
        memory = Memory(
            core=self._network.initial_state(num_envs),
            last_action=jnp.zeros(num_envs, jnp.int32),
        )
        return ActorCriticState(memory=memory, key=key)

    def act(
        self, networks: Networks, actor_state: ActorCriticState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, ActorCriticExtras, ActorCriticState]:
        """Samples from the policy, or takes its mode."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], env_step)
        memory = actor_state.memory
        outputs, core = self.unroll(networks, rows, memory.last_action[None], memory.core)
        logits = outputs.logits[0]
        key, action_key = jax.random.split(actor_state.key)
        sample = distributions.categorical_sample(action_key, logits)
        action = distributions.categorical_mode(logits) if greedy else sample
        memory = Memory(core=core, last_action=action)
        return action, ActorCriticExtras(logits=logits), ActorCriticState(memory=memory, key=key)

    def shard_actor_state(
        self, actor_state: ActorCriticState, sharding: ActorStateSharding
    ) -> ActorCriticState:
        """Splits the memory over the learner devices."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: Networks,
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
        self, networks: Networks, experience: Experience, key: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Returns the loss of this optimisation step."""
        return self._learning.loss(self.unroll, networks, experience, key, step)

    def optimize(
        self, networks: Networks, opt_state: PyTree, grads: Networks
    ) -> tuple[Networks, PyTree]:
        """Takes one step of the optimizer."""
        return descend(self._optimizer, networks, opt_state, grads)

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Returns the same number for every cycle."""
        del cycle
        return self._learning.num_updates_per_cycle

    def actor_networks(self, networks: Networks) -> Networks:
        """Returns everything."""
        return networks

    def unroll(
        self, networks: Networks, env_steps: EnvStep, last_action: jax.Array, core: CoreState
    ) -> tuple[PolicyValue, CoreState]:
        """Returns policy and value of consecutive rows, and the core's state after them.

        Args:
            networks: the parameters.
            env_steps: `[R, B, ...]`; acting unrolls one row, learning a trajectory's `T + 1`.
            last_action: `[R, B]`, chosen from the row before each.
            core: the state before row 0.
        """
        return self._network.apply(
            networks,
            env_steps.observation,
            reward=clip_rewards(env_steps.reward, self._config.reward_clip),
            last_action=last_action,
            is_first=env_steps.is_first,
            state=core,
        )


def unroll_trajectory(
    unroll: Unroll, networks: Networks, memory: Memory, trajectory: Trajectory
) -> PolicyValue:
    """Returns policy and value of all rows `[T + 1, B]`, from the memory before row 0."""
    last_action = jnp.concatenate([memory.last_action[None], trajectory.action])
    return unroll(networks, trajectory.env_steps, last_action, memory.core)[0]


def rewards_and_discounts(
    trajectory: Trajectory, config: ActorCriticConfig
) -> tuple[jax.Array, jax.Array]:
    """Returns what each transition paid, and the discount on arriving; `[T, B]` each."""
    env_steps = trajectory.env_steps
    discounts = jnp.where(env_steps.terminated[1:], 0.0, config.discount)
    return clip_rewards(env_steps.reward[1:], config.reward_clip), discounts


def clip_rewards(reward: jax.Array, limit: float | None) -> jax.Array:
    """Returns rewards of the same shape, clipped to ± `limit` if there is one."""
    return reward if limit is None else jnp.clip(reward, -limit, limit)
