"""Train PQN of PureJaxQL on gymnax CartPole in calls of 50 updates, and print the env steps."""

import itertools
import pathlib
import sys
from unittest import mock

# Command line, logger and storage, which are not used here.
for name in ("hydra", "omegaconf", "safetensors", "safetensors.flax", "wandb"):
    sys.modules.setdefault(name, mock.MagicMock())
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))

import jax  # noqa: E402
import pqn_gymnax  # noqa: E402

NUM_ENVS, LENGTH, NUM_UPDATES = 32, 64, 50
ENV_STEPS = NUM_ENVS * LENGTH * NUM_UPDATES
train = jax.jit(
    pqn_gymnax.make_train(  # `config/alg/pqn_cartpole.yaml`
        {
            "ENV_NAME": "CartPole-v1",
            "TOTAL_TIMESTEPS": ENV_STEPS,
            "TOTAL_TIMESTEPS_DECAY": 5e5,
            "NUM_ENVS": NUM_ENVS,
            "NUM_STEPS": LENGTH,
            "EPS_START": 1.0,
            "EPS_FINISH": 0.2,
            "EPS_DECAY": 0.2,
            "NUM_MINIBATCHES": 16,
            "NUM_EPOCHS": 4,
            "NORM_INPUT": False,
            "HIDDEN_SIZE": 256,
            "NUM_LAYERS": 2,
            "NORM_TYPE": "layer_norm",
            "LR": 1e-4,
            "MAX_GRAD_NORM": 10,
            "LR_LINEAR_DECAY": True,
            "REW_SCALE": 0.1,
            "GAMMA": 0.99,
            "LAMBDA": 0.95,
            "TEST_DURING_TRAINING": False,
            "WANDB_MODE": "disabled",
        }
    )
)
for call in itertools.count(1):
    jax.block_until_ready(train(jax.random.PRNGKey(call)))
    print(f"env steps: {call * ENV_STEPS}", flush=True)
