"""Train PPO of Stoix's Anakin on gymnax CartPole, and print the env steps learned from.

Stoix's own `learner_setup`, whose `learn` is called without its evaluation and logging.
"""

import itertools

import jax
from peer_stoix import compose  # before Stoix, which it finds
from stoix.systems.ppo.anakin import ff_ppo
from stoix.utils import make_env
from stoix.utils.total_timestep_checker import check_total_timesteps

NUM_ENVS, LENGTH = 1_024, 128
SETTINGS = {
    "arch.total_num_envs": NUM_ENVS,
    # Over these, the learning rate falls to 0; not over a call, after which it would be negative.
    "arch.total_timesteps": NUM_ENVS * LENGTH * 100_000,
    "arch.num_evaluation": 1,
    "system.rollout_length": LENGTH,
}


def main() -> None:
    """Train until this process is killed."""
    config = compose("anakin/default_ff_ppo", SETTINGS)
    config.num_devices = len(jax.devices())
    config = check_total_timesteps(config)
    config.arch.num_updates_per_eval = 1  # of each call
    environment, _ = make_env.make(config=config)
    keys = tuple(jax.random.split(jax.random.PRNGKey(0), 3))
    learn, _, state = ff_ppo.learner_setup(environment, keys, config)
    for call in itertools.count(1):
        state = jax.block_until_ready(learn(state)).learner_state
        print(f"env steps: {call * NUM_ENVS * LENGTH}", flush=True)


if __name__ == "__main__":
    main()
