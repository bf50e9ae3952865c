"""Train PPO of Stable-Baselines3 on CartPole, and print the env steps learned from."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

NUM_ENVS, LENGTH = 32, 128


class Count(BaseCallback):
    """Prints before each rollout: the one before has been learned from."""

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        print(f"env steps: {self.num_timesteps}", flush=True)


PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=NUM_ENVS),
    device="cpu",
    n_steps=LENGTH,
    batch_size=NUM_ENVS * LENGTH // 4,
    n_epochs=4,
    ent_coef=0.01,
    clip_range_vf=0.2,
).learn(2_000_000_000, callback=Count())
