"""The random agent: uniformly random actions without learning, as a baseline."""

from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Agent, Metrics
from sebulba.errors import ConfigError
from sebulba.toolkit.distributions import Categorical, MultiCategorical, legal_only
from sebulba.types import Clock, EnvStep, RunSpec, Trajectory
from sebulba_agents.config import RandomConfig


class RandomAgent(Agent):
    """Draws actions uniformly from the action space; has no networks."""

    def __init__(self, config: RandomConfig, run_spec: RunSpec):
        """Choose a sampler for the action space.

        Raises:
            ConfigError: the action space has no uniform distribution.
        """
        self._space = run_spec.environment.action_space
        self._sample = _sampler(run_spec.environment.action_space, config.name)

    def init_networks(self, key: jax.Array) -> tuple[()]:
        """Return nothing."""
        del key
        return ()

    def init_opt_state(self, networks: tuple[()]) -> tuple[()]:
        """Return nothing."""
        return networks

    def init_experience(self, networks: tuple[()], num_envs: int) -> tuple[()]:
        """Return nothing."""
        del networks, num_envs
        return ()

    def init_actor_state(
        self, networks: tuple[()], num_envs: int, key: jax.Array, global_actor_id: int
    ) -> jax.Array:
        """Return the key."""
        del networks, num_envs, global_actor_id
        return key

    def act(
        self, networks: tuple[()], actor_state: jax.Array, env_step: EnvStep, *, greedy: bool
    ) -> tuple[jax.Array, tuple[()], jax.Array]:
        """Draw an action for each environment, in evaluation too."""
        del networks, greedy
        key, action_key = jax.random.split(actor_state)
        if env_step.action_mask is not None:
            return _draw_legal(self._space, action_key, env_step.action_mask), (), key
        return self._sample(action_key, env_step.reward.shape[0]), (), key

    def shard_actor_state(self, actor_state: jax.Array, sharding: ActorStateSharding) -> jax.Array:
        """Replicate the key."""
        return sharding.replicate(actor_state)

    def update_experience(
        self,
        networks: tuple[()],
        experience: tuple[()],
        initial_state: jax.Array,
        final_state: jax.Array,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> tuple[()]:
        """Keep nothing."""
        del networks, initial_state, final_state, trajectory, actor_id
        return experience

    def loss(
        self, networks: tuple[()], experience: tuple[()], key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[tuple[()], Metrics]]:
        """Return 0; never called, since no learner cycle has updates."""
        del networks, key, clock
        return jnp.zeros((), jnp.float32), (experience, {})

    def optimize(
        self,
        networks: tuple[()],
        opt_state: tuple[()],
        grads: tuple[()],
        experience: tuple[()],
        clock: Clock,
    ) -> tuple[tuple[()], tuple[()]]:
        """Change nothing."""
        del grads, experience, clock
        return networks, opt_state

    def num_updates_per_cycle(self, cycle: int) -> int:
        """Return 0."""
        del cycle
        return 0

    def actor_networks(self, networks: tuple[()]) -> tuple[()]:
        """Return nothing."""
        return networks


def _draw_legal(space: gymnasium.Space, key: jax.Array, action_mask: jax.Array) -> jax.Array:
    """Return a random legal action for each environment, given masks `[B, A]`."""
    sizes = [space.n] if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    num_envs = action_mask.shape[0]
    uniform = MultiCategorical(
        choices=tuple(Categorical(logits=jnp.zeros((num_envs, int(size)))) for size in sizes)
    )
    action = legal_only(uniform, action_mask).sample(key).reshape(num_envs, *space.shape)
    return action + jnp.broadcast_to(jnp.asarray(space.start, jnp.int32), action.shape)


def _sampler(space: gymnasium.Space, name: str) -> Callable[[jax.Array, int], jax.Array]:
    """Return a function of key and B that draws actions `[B, ...]` from the space."""
    if isinstance(space, gymnasium.spaces.Box) and space.is_bounded():
        low, high = jnp.asarray(space.low), jnp.asarray(space.high)

        def sample(key: jax.Array, num_envs: int) -> jax.Array:
            uniform = jax.random.uniform(key, (num_envs, *space.shape), jnp.float32)
            return low[None] + uniform * (high - low)[None]

        return sample
    if isinstance(space, gymnasium.spaces.MultiDiscrete | gymnasium.spaces.Discrete):
        is_single = isinstance(space, gymnasium.spaces.Discrete)
        size = jnp.asarray(space.n if is_single else space.nvec, jnp.int32)
        start = jnp.asarray(space.start, jnp.int32)

        def sample(key: jax.Array, num_envs: int) -> jax.Array:
            shape = (num_envs, *space.shape)
            low, high = (jnp.broadcast_to(x, shape) for x in (start, start + size))
            return jax.random.randint(key, shape, low, high, jnp.int32)

        return sample
    raise ConfigError(
        f"env.id: {name} expects an environment with Discrete, MultiDiscrete or bounded Box"
        f" actions, got {space}"
    )
