"""Train PQN of PureJaxQL in calls of some updates, and print the env steps.

The script `pqn_gymnax.py` trains CartPole, `pqn_minatar.py` MinAtar Breakout.
"""

import importlib
import itertools
import pathlib
import sys
from unittest import mock

# Command line, logger and storage, which are not used here.
for name in ("hydra", "omegaconf", "safetensors", "safetensors.flax", "wandb"):
    sys.modules.setdefault(name, mock.MagicMock())
script = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(script.parent))

import jax  # noqa: E402

SETTINGS = {
    "pqn_gymnax": {  # `config/alg/pqn_cartpole.yaml`
        "ENV_NAME": "CartPole-v1",
        "TOTAL_TIMESTEPS_DECAY": 5e5,
        "NUM_ENVS": 32,
        "NUM_STEPS": 64,
        "EPS_FINISH": 0.2,
        "EPS_DECAY": 0.2,
        "NUM_MINIBATCHES": 16,
        "NUM_EPOCHS": 4,
        "NORM_INPUT": False,
        "HIDDEN_SIZE": 256,
        "NUM_LAYERS": 2,
        "LR": 1e-4,
        "REW_SCALE": 0.1,
        "LAMBDA": 0.95,
    },
    "pqn_minatar": {  # `config/alg/pqn_minatar.yaml`
        "ENV_NAME": "Breakout-MinAtar",
        "TOTAL_TIMESTEPS_DECAY": 1e7,
        "NUM_ENVS": 128,
        "NUM_STEPS": 32,
        "EPS_FINISH": 0.05,
        "EPS_DECAY": 0.1,
        "NUM_MINIBATCHES": 32,
        "NUM_EPOCHS": 2,
        "LR": 5e-4,
        "LAMBDA": 0.65,
    },
}
settings = SETTINGS[script.stem] | {
    "EPS_START": 1.0,
    "NORM_TYPE": "layer_norm",
    "MAX_GRAD_NORM": 10,
    "LR_LINEAR_DECAY": True,
    "GAMMA": 0.99,
    "TEST_DURING_TRAINING": False,
    "WANDB_MODE": "disabled",
}
env_steps = settings["NUM_ENVS"] * settings["NUM_STEPS"] * int(sys.argv[2])
train = importlib.import_module(script.stem).make_train(settings | {"TOTAL_TIMESTEPS": env_steps})
train = jax.jit(train)
for call in itertools.count(1):
    jax.block_until_ready(train(jax.random.PRNGKey(call)))
    print(f"env steps: {call * env_steps}", flush=True)
