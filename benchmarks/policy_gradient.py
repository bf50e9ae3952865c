"""The agent of the benchmarks: REINFORCE with an MLP or convolutions, for discrete actions.

The default network has 162,202 parameters on CartPole. In a config, `agent.name` is
`benchmarks.policy_gradient:PolicyGradient`.
"""

import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.distributions import Categorical
from sebulba.toolkit.reductions import masked_mean
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.toolkit.torsos import DeepTorso, DQNTorso, ShallowTorso
from sebulba.toolkit.window import Window, init_window, push
from sebulba.types import Clock, EnvStep, Networks, PyTree, RunSpec, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradientConfig:
    """Settings of the agent."""

    name: str = "benchmarks.policy_gradient:PolicyGradient"
    """`module:Name` of the agent."""
    torso: Literal["mlp", "dqn", "shallow", "deep"] = "mlp"
    """Torso; mlp: tanh layers; dqn: DQN's convolutions; shallow, deep: IMPALA's."""
    hidden_sizes: tuple[int, ...] = (200, 200, 200, 200, 200)
    """Widths of the tanh layers."""
    discount: float = 0.99
    """Discount factor γ."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    updates_per_cycle: int = 1
    """Optimisation steps per learner cycle."""


@pytree_dataclass
class PolicyGradientState:
    """The random key."""

    key: jax.Array


class MLP(nn.Module):
    """Tanh layers."""

    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[N, size]` to `[N, hidden_sizes[-1]]`."""
        for size in self.hidden_sizes:
            x = nn.tanh(nn.Dense(size)(x))
        return x


class Policy(nn.Module):
    """A torso and a linear layer for the logits."""

    config: PolicyGradientConfig
    num_actions: int

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return logits `[T, B, A]` of observations `[T, B, ...]`."""
        torso = {
            "mlp": lambda: MLP(self.config.hidden_sizes),
            "dqn": DQNTorso,
            "shallow": ShallowTorso,
            "deep": DeepTorso,
        }[self.config.torso]()
        features = torso(observation.reshape(-1, *observation.shape[2:]))
        return nn.Dense(self.num_actions)(features).reshape(*observation.shape[:2], -1)


class PolicyGradient(Agent):
    """REINFORCE (Williams 1992), with returns up to the end of the trajectory."""

    Config = PolicyGradientConfig

    def __init__(self, config: PolicyGradientConfig, run_spec: RunSpec):
        self._config = config
        self._run_spec = run_spec
        self._policy = Policy(config, int(run_spec.environment.action_space.n))
        self._optimizer = optax.adam(config.learning_rate)

    def init_networks(self, key: jax.Array) -> Networks:
        """Return the parameters."""
        leaf = self._run_spec.environment.observation
        return self._policy.init(key, jnp.zeros((1, 1, *leaf.shape), leaf.dtype))

    def init_opt_state(self, networks: Networks) -> PyTree:
        """Return Adam's state."""
        return self._optimizer.init(networks)

    def init_experience(self, networks: Networks, num_envs: int) -> Window:
        """Return an empty window of one learner cycle's trajectories."""
        return init_window(self, networks, self._run_spec, num_envs, keep=lambda state: ())

    def init_actor_state(
        self, networks: Networks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> PolicyGradientState:
        """Return the key."""
        del networks, num_envs, global_actor_id
        return PolicyGradientState(key=key)

    def act(
        self,
        networks: Networks,
        actor_state: PolicyGradientState,
        env_step: EnvStep,
        *,
        greedy: bool,
    ) -> tuple[jax.Array, tuple[()], PolicyGradientState]:
        """Sample from the policy, or take its mode if `greedy`."""
        logits = self._policy.apply(networks, env_step.observation[None])[0]
        key, action_key = jax.random.split(actor_state.key)
        policy = Categorical(logits=logits)
        action = policy.mode() if greedy else policy.sample(action_key)
        return action, (), PolicyGradientState(key=key)

    def shard_actor_state(
        self, actor_state: PolicyGradientState, sharding: ActorStateSharding
    ) -> PolicyGradientState:
        """Replicate the key on every learner device."""
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self,
        networks: Networks,
        experience: Window,
        initial_state: PolicyGradientState,
        final_state: PolicyGradientState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Window:
        """Add the trajectory to the window."""
        del networks, initial_state, final_state, actor_id
        return push(experience, (), trajectory)

    def loss(
        self, networks: Networks, experience: Window, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Window, Metrics]]:
        """Return the negative mean of log-probability times return."""
        del key, clock
        trajectory = experience.trajectory
        arrived = jax.tree.map(lambda leaf: leaf[1:], trajectory.env_steps)
        discounts = jnp.where(arrived.terminated, 0.0, self._config.discount)
        returns = _returns(arrived.reward, discounts)
        logits = self._policy.apply(networks, trajectory.env_steps.observation[:-1])
        log_probs = Categorical(logits=logits).log_prob(trajectory.action)
        return -masked_mean(log_probs * returns, trajectory.valid), (experience, {})

    def optimize(
        self,
        networks: Networks,
        opt_state: PyTree,
        grads: Networks,
        experience: Window,
        clock: Clock,
    ) -> tuple[Networks, PyTree]:
        """Take one step of Adam."""
        del experience, clock
        # Optax computes powers of floats and integer counts, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = self._optimizer.update(grads, opt_state, networks)
        return optax.apply_updates(networks, updates), opt_state

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return `updates_per_cycle`."""
        del cycle
        return self._config.updates_per_cycle

    def actor_networks(self, networks: Networks) -> Networks:
        """Return all parameters."""
        return networks


def _returns(rewards: jax.Array, discounts: jax.Array) -> jax.Array:
    """Compute returns `[T, B]` from `rewards` and `discounts` `[T, B]` of each transition."""

    def step(later: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, discount = row
        value = reward + discount * later
        return value, value

    _, returns = jax.lax.scan(step, jnp.zeros_like(rewards[0]), (rewards, discounts), reverse=True)
    return returns
