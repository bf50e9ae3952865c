"""A small agent and a small task that count, for tests of the framework."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sebulba.agent import ActorStateSharding
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_mean, masked_sum
from sebulba.toolkit.sharding import shard_per_env_leaves
from sebulba.types import EnvironmentSpec, EnvStep, RunSpec, Trajectory

OBSERVATION_SIZE = 3
NUM_ACTIONS = 2


def toy_run_spec(**changes) -> RunSpec:
    """Returns a run of 2 actors with 4 environments each, 5 steps a trajectory, 1 device."""
    spec = RunSpec(
        environment=EnvironmentSpec(
            observation=jax.ShapeDtypeStruct((OBSERVATION_SIZE,), jnp.float32),
            action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
        ),
        num_envs=4,
        num_actors=2,
        num_learner_devices=1,
        trajectory_length=5,
        trajectories_per_cycle=1,
        total_env_steps=200,
    )
    return dataclasses.replace(spec, **changes)


def one_actor_run_spec(
    *, num_envs: int, trajectory_length: int, num_actions: int, observation_size: int = 3
) -> RunSpec:
    """Returns a run of one actor with discrete actions, long enough for a replay."""
    environment = EnvironmentSpec(
        observation=jax.ShapeDtypeStruct((observation_size,), jnp.float32),
        action_space=gymnasium.spaces.Discrete(num_actions),
    )
    return toy_run_spec(
        environment=environment,
        num_envs=num_envs,
        num_actors=1,
        trajectory_length=trajectory_length,
        total_env_steps=10_000,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Settings of the toy agent."""

    name: str = "tests.toys:ToyAgent"
    """Which agent."""
    updates_per_cycle: int = 1
    """Optimisation steps a cycle."""
    learning_rate: float = 0.1
    """Of plain gradient descent."""


@pytree_dataclass
class ToyState:
    """Counts the rows since each episode's start."""

    key: jax.Array
    count: jax.Array  # [B] int32


@pytree_dataclass
class ToyExperience:
    """The newest trajectory, and how many came from each actor."""

    trajectory: Trajectory
    initial_count: jax.Array  # [B] int32
    final_count: jax.Array  # [B] int32
    trajectories_of: jax.Array  # [num_actors] int32


class ToyAgent:
    """Policy gradient on a linear policy, with importance weights.

    So what it learns depends on the networks that acted.
    """

    Config = ToyConfig

    def __init__(self, config: ToyConfig, run_spec: RunSpec):
        self._config = config
        self._run_spec = run_spec
        self._optimizer = optax.sgd(config.learning_rate)

    def init_networks(self, key):
        size = jax.tree.leaves(self._run_spec.environment.observation)[0].shape[-1]
        num_actions = int(self._run_spec.environment.action_space.n)
        return {"weights": 0.1 * jax.random.normal(key, (size, num_actions))}

    def init_opt_state(self, networks):
        return self._optimizer.init(networks)

    def init_experience(self, networks, num_envs):
        return ToyExperience(
            trajectory=toy_trajectory(self._run_spec, num_envs),
            initial_count=jnp.zeros(num_envs, jnp.int32),
            final_count=jnp.zeros(num_envs, jnp.int32),
            trajectories_of=jnp.zeros(self._run_spec.num_actors, jnp.int32),
        )

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        return ToyState(key=key, count=jnp.zeros(num_envs, jnp.int32))

    def act(self, networks, actor_state, env_step: EnvStep, *, greedy):
        key, action_key = jax.random.split(actor_state.key)
        count = jnp.where(env_step.is_first, 0, actor_state.count) + 1
        logits = env_step.observation @ networks["weights"]
        action = jax.random.categorical(action_key, logits)
        if greedy:
            action = jnp.argmax(logits, axis=-1)
        extras = {"logits": logits, "count": count}
        return action.astype(jnp.int32), extras, ToyState(key=key, count=count)

    def shard_actor_state(self, actor_state, sharding: ActorStateSharding):
        return shard_per_env_leaves(actor_state, sharding, replicated=("key",))

    def update_experience(
        self, networks, experience, initial_state, final_state, trajectory, actor_id
    ):
        return ToyExperience(
            trajectory=trajectory,
            initial_count=initial_state.count,
            final_count=final_state.count,
            trajectories_of=experience.trajectories_of.at[actor_id].add(1),
        )

    def loss(self, networks, experience, key, clock):
        trajectory = experience.trajectory
        valid = trajectory.valid
        logits = trajectory.env_steps.observation[:-1] @ networks["weights"]
        log_ratio = jax.nn.log_softmax(logits) - jax.nn.log_softmax(trajectory.extras["logits"])
        taken = jnp.take_along_axis(log_ratio, trajectory.action[..., None], axis=-1)[..., 0]
        reward = trajectory.env_steps.reward[1:]
        loss = -masked_mean(jnp.exp(taken) * reward, valid)
        metrics = {"reward_sum": masked_sum(reward, valid)}
        return loss, (experience, metrics)

    def optimize(self, networks, opt_state, grads, experience, clock):
        updates, opt_state = self._optimizer.update(grads, opt_state)
        return optax.apply_updates(networks, updates), opt_state

    def num_updates_per_cycle(self, cycle):
        return self._config.updates_per_cycle

    def actor_networks(self, networks):
        return networks


def toy_trajectory(run_spec: RunSpec, num_envs: int, seed: int | None = None) -> Trajectory:
    """Returns a trajectory of zeros, or of noise with a done row now and then."""
    length = run_spec.trajectory_length
    rng = np.random.default_rng(seed)
    observation = jax.tree.leaves(run_spec.environment.observation)[0]
    num_actions = int(run_spec.environment.action_space.n)

    def noise(*shape):
        return rng.normal(size=shape).astype(np.float32)

    done = rng.random((length + 1, num_envs)) < 0.2
    trajectory = Trajectory(
        env_steps=EnvStep(
            observation=noise(length + 1, num_envs, *observation.shape),
            reward=noise(length + 1, num_envs),
            terminated=done,
            truncated=np.zeros_like(done),
            is_first=np.roll(done, 1, axis=0),
        ),
        action=rng.integers(0, num_actions, (length, num_envs)).astype(np.int32),
        extras={
            "logits": noise(length, num_envs, num_actions),
            "count": np.zeros((length, num_envs), np.int32),
        },
    )
    convert = jnp.zeros_like if seed is None else jnp.asarray
    return jax.tree.map(convert, trajectory)
