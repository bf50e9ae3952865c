"""Train PPO of PureJaxRL on gymnax CartPole in calls of some updates, and print the env steps."""

import itertools
import pathlib
import sys
import types

# Environments that are not used here, and whose packages need older versions of JAX.
for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
    sys.modules.setdefault(name, types.ModuleType(name))
sys.modules["brax"].envs = sys.modules["brax.envs"]
training = sys.modules["brax.envs.wrappers.training"]
training.EpisodeWrapper = training.AutoResetWrapper = None
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))

import jax  # noqa: E402
import ppo  # noqa: E402

NUM_ENVS, LENGTH = 16, 128
ENV_STEPS = NUM_ENVS * LENGTH * int(sys.argv[2])
train = jax.jit(
    ppo.make_train(
        {
            "LR": 2.5e-4,
            "NUM_ENVS": NUM_ENVS,
            "NUM_STEPS": LENGTH,
            "TOTAL_TIMESTEPS": ENV_STEPS,
            "UPDATE_EPOCHS": 4,
            "NUM_MINIBATCHES": 4,
            "GAMMA": 0.99,
            "GAE_LAMBDA": 0.95,
            "CLIP_EPS": 0.2,
            "ENT_COEF": 0.01,
            "VF_COEF": 0.5,
            "MAX_GRAD_NORM": 0.5,
            "ACTIVATION": "tanh",
            "ENV_NAME": "CartPole-v1",
            "ANNEAL_LR": True,
            "DEBUG": False,
        }
    )
)
for call in itertools.count(1):
    jax.block_until_ready(train(jax.random.PRNGKey(call)))
    print(f"env steps: {call * ENV_STEPS}", flush=True)
