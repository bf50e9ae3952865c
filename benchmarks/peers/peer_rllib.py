"""Train IMPALA of RLlib on CartPole with two env runners, and print the env steps sampled."""

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NUM_RUNNERS, NUM_ENVS, LENGTH = 2, 16, 20


def main():
    """Train until this process is killed."""
    ray.init(address="local", num_cpus=NUM_RUNNERS + 2, include_dashboard=False)
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=NUM_RUNNERS,
            num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=LENGTH,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=NUM_ENVS * LENGTH,
            lr=1e-3,
            gamma=0.99,
            grad_clip=0.5,
            vf_loss_coeff=0.5,
            entropy_coeff=0.01,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True
            )
        )
        .reporting(min_time_s_per_iteration=1, metrics_num_episodes_for_smoothing=100)
    )
    algorithm = config.build_algo()
    while True:
        # What RLlib calls trained has a row more for each piece of an episode, 8 % in all.
        sampled = algorithm.train()["num_env_steps_sampled_lifetime"]
        if sampled:  # For about 10 s, the first calls return without any.
            print(f"env steps: {int(sampled)}", flush=True)


if __name__ == "__main__":
    main()
