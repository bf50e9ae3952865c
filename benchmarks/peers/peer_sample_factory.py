"""Train APPO of Sample Factory on CartPole in two workers, and print the env steps learned from."""

import sys
import tempfile

from sample_factory.algo.runners.runner import Runner
from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS
from sf_examples import train_gym_env

FLAGS = (
    *("--algo=APPO", "--env=CartPole-v1", "--device=cpu", "--serial_mode=False"),
    *("--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2"),
    *("--rollout=128", "--recurrence=1", "--use_rnn=False", "--async_rl=True"),
    *("--batch_size=1024", "--num_batches_per_epoch=4", "--num_epochs=4", "--with_vtrace=False"),
    *("--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh"),
    *("--actor_critic_share_weights=False", "--normalize_input=False"),
    *("--normalize_returns=False", "--train_for_env_steps=2000000000"),
    *("--save_every_sec=100000", "--experiment=cartpole"),
)


def main():
    """Train until this process is killed."""
    handle = Runner._learner_steps_handler

    def count(runner, message, policy_id):
        handle(runner, message, policy_id)
        print(f"env steps: {message[LEARNER_ENV_STEPS]}", flush=True)

    Runner._learner_steps_handler = staticmethod(count)
    with tempfile.TemporaryDirectory() as directory:
        sys.argv[1:] = [*FLAGS, f"--train_dir={directory}"]
        sys.exit(train_gym_env.main())


if __name__ == "__main__":
    main()
