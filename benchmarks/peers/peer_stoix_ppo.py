"""Train PPO of Stoix's Sebulba on EnvPool's CartPole, and print the env steps learned from."""

import itertools

from peer_stoix import compose  # before Stoix, which it finds
from stoix.systems.ppo.sebulba import ff_ppo

NUM_ENVS, LENGTH = 32, 128
SETTINGS = {
    "arch.total_num_envs": NUM_ENVS,
    "arch.total_timesteps": 1_000_000_000,
    "arch.actor.device_ids": [0],
    "arch.actor.actor_per_device": 2,
    "arch.learner.device_ids": [0],
    "arch.evaluator_device_id": 0,
    "arch.num_evaluation": 1,  # at the end, which is not reached
    "system.rollout_length": LENGTH,
    "logger.loggers.console.enabled": False,
}
get_learner_rollout_fn = ff_ppo.get_learner_rollout_fn


def counted(config, parameter_server, rollout_pipeline, learn, *rest):
    """Return the learner's loop, which prints the env steps after each call of `learn`.

    JAX may still compute that update. The actors' queues hold one batch, so no more than one waits.
    """
    updates = itertools.count(1)

    def learn_and_print(*arguments):
        output = learn(*arguments)
        print(f"env steps: {next(updates) * NUM_ENVS * LENGTH}", flush=True)
        return output

    return get_learner_rollout_fn(
        config, parameter_server, rollout_pipeline, learn_and_print, *rest
    )


if __name__ == "__main__":
    ff_ppo.get_learner_rollout_fn = counted
    groups = ("network=mlp", "env=envpool/cartpole")
    ff_ppo.run_experiment(compose("sebulba/default_ff_ppo", SETTINGS, groups))
