"""Train MuZero of Stoix on gymnax CartPole with our networks, and print the env steps.

Stoix's own `learner_setup`, whose `learn` is called without its evaluation and logging.
"""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
from peer_stoix import compose  # before Stoix, which it finds
from stoix.networks.heads import CategoricalCriticHead
from stoix.systems.search import ff_mz
from stoix.utils import make_env
from stoix.utils.total_timestep_checker import check_total_timesteps

SIZE, NUM_BINS, LIMIT = 64, 51, 500.0
NUM_ENVS, LENGTH = 16, 16
NUM_UPDATES_PER_CALL = 10
SETTINGS = {
    "arch.total_num_envs": NUM_ENVS,
    # A learning rate that falls does so over these, not over a call.
    "arch.total_timesteps": NUM_ENVS * LENGTH * 1_000_000,
    "arch.num_evaluation": 1,
    "system.rollout_length": LENGTH,
    "system.warmup_steps": 64,
    "system.epochs": 8,
    "system.total_batch_size": 64,
    "system.sample_sequence_length": 6,
    "system.n_steps": 5,
    "system.search_method": "gumbel",
    "system.num_simulations": 16,
    "system.critic_vmin": -LIMIT,
    "system.critic_vmax": LIMIT,
    "system.critic_num_atoms": NUM_BINS,
    "system.reward_vmin": -10.0,
    "system.reward_vmax": 10.0,
    "system.reward_num_atoms": NUM_BINS,
}


class WorldModel(nn.Module):
    """Our networks for vectors (`sebulba_agents.muzero_networks`) with the interface of Stoix's."""

    action_dim: int

    def setup(self) -> None:
        """Create the layers."""
        self._hidden, self._latent = nn.Dense(SIZE), nn.Dense(SIZE)
        self._dense, self._norm, self._next = nn.Dense(SIZE), nn.LayerNorm(), nn.Dense(SIZE)
        self._reward = CategoricalCriticHead(num_atoms=NUM_BINS, vmin=-10.0, vmax=10.0)

    def initial_inference(self, observation):
        """Return the latent states of observations."""
        return _scale_to_unit(self._latent(nn.tanh(self._hidden(observation))))

    def recurrent_inference(self, latent, action):
        """Return the next latent states and the distributions of rewards."""
        action = jax.nn.one_hot(action, self.action_dim)
        x = self._dense(jnp.concatenate([latent, action], axis=-1))
        x = nn.relu(self._norm(x))
        return _scale_to_unit(latent + self._next(x)), self._reward(x)

    def __call__(self, observation, action):
        """Run both, for `init`."""
        return self.recurrent_inference(self.initial_inference(observation), action)


def _scale_to_unit(latent):
    least = jnp.min(latent, axis=-1, keepdims=True)
    spread = jnp.max(latent, axis=-1, keepdims=True) - least
    return (latent - least) / jnp.maximum(spread, 0.1)


def _config():
    config = compose("anakin/default_ff_mz", SETTINGS)
    network = config.network
    network.wm_network = {"_target_": f"{__name__}.WorldModel"}
    # Ours shares one dense layer between policy and value: here it is the critic's.
    network.actor_network.pre_torso.layer_sizes = []
    torso = network.critic_network.pre_torso
    torso.layer_sizes, torso.use_layer_norm, torso.activation = [SIZE], True, "relu"
    config.num_devices = len(jax.devices())
    config = check_total_timesteps(config)
    config.arch.num_updates_per_eval = NUM_UPDATES_PER_CALL
    return config


def main() -> None:
    """Train until this process is killed."""
    config = _config()
    environment, _ = make_env.make(config=config)
    keys = tuple(jax.random.split(jax.random.PRNGKey(0), 4))
    learn, _, _, state = ff_mz.learner_setup(environment, keys, config)
    for call in itertools.count(1):
        state = jax.block_until_ready(learn(state)).learner_state
        env_steps = call * NUM_UPDATES_PER_CALL * NUM_ENVS * LENGTH
        print(f"env steps: {env_steps}", flush=True)


if __name__ == "__main__":
    main()
