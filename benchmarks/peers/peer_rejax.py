"""Train PPO of rejax on gymnax CartPole in calls of some updates, and print the env steps."""

import itertools
import sys

import jax
from rejax import PPO

NUM_ENVS, LENGTH = 16, 128
ENV_STEPS = NUM_ENVS * LENGTH * int(sys.argv[1])
agent = PPO.create(
    env="CartPole-v1",
    agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
    num_envs=NUM_ENVS,
    num_steps=LENGTH,
    num_epochs=4,
    num_minibatches=4,
    learning_rate=2.5e-4,
    max_grad_norm=0.5,
    total_timesteps=ENV_STEPS,
    eval_freq=ENV_STEPS,
    skip_initial_evaluation=True,
).replace(eval_callback=lambda *_: ())
train = jax.jit(agent.train)
for call in itertools.count(1):
    jax.block_until_ready(train(jax.random.PRNGKey(call)))
    print(f"env steps: {call * ENV_STEPS}", flush=True)
