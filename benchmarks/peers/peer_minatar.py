"""Train PPO of PureJaxRL or PQN of PureJaxQL on a game of MinAtar, and print its return at the end.

    PEER_PYTHON benchmarks/peers/peer_minatar.py CHECKOUT/purejaxrl/ppo.py GAME SEED [ENV_STEPS]
    PEER_PYTHON benchmarks/peers/peer_minatar.py CHECKOUT/purejaxql/pqn_minatar.py GAME SEED …

The settings are those of PureJaxRL's `examples/brax_minatar.ipynb` and of PureJaxQL's
`config/alg/pqn_minatar.yaml`, with the decays over the env steps that are trained, 5 million unless
said. The peer's environment has gymnax 1.0.1, whose games are those of our results; 0.0.9, which
both ask for, has another SpaceInvaders and no Seaquest. The return of PPO is the mean of the last
100 episodes, and that of PQN, as it logs it, the mean over environments and steps of the last
update of each environment's last return.
"""

import importlib
import pathlib
import sys
from unittest import mock

from gymnax.wrappers import purerl
from gymnax.wrappers.purerl import LogWrapper


class FiveValues(LogWrapper):
    """Step as in gymnax 0.0.9: one `done` for terminations and truncations."""

    def step(self, key, state, action, params=None):
        """Return observation, state, reward, whether the episode ended, and its figures."""
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        info = {name: value for name, value in info.items() if name.startswith("returned_")}
        return obs, state, reward, terminated | truncated, info


purerl.LogWrapper = FiveValues
sys.modules["wrappers"] = purerl  # PureJaxRL's are the older form of gymnax's
# Command line and logger of PureJaxQL, which are not used here.
for name in ("hydra", "omegaconf", "wandb"):
    sys.modules.setdefault(name, mock.MagicMock())
script = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(script.parent))

import jax  # noqa: E402

game, seed = sys.argv[2], int(sys.argv[3])
env_steps = int(float(sys.argv[4])) if len(sys.argv) > 4 else 5_000_000
SETTINGS = {
    "ppo": {
        "LR": 5e-3,
        "NUM_ENVS": 64,
        "NUM_STEPS": 128,
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 8,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "relu",
        "ANNEAL_LR": True,
    },
    "pqn_minatar": {
        "TOTAL_TIMESTEPS_DECAY": env_steps,
        "NUM_ENVS": 128,
        "NUM_STEPS": 32,
        "EPS_START": 1.0,
        "EPS_FINISH": 0.05,
        "EPS_DECAY": 0.1,
        "NUM_MINIBATCHES": 32,
        "NUM_EPOCHS": 2,
        "NORM_TYPE": "layer_norm",
        "LR": 5e-4,
        "MAX_GRAD_NORM": 10,
        "LR_LINEAR_DECAY": True,
        "GAMMA": 0.99,
        "LAMBDA": 0.65,
        "TEST_DURING_TRAINING": False,
        "WANDB_MODE": "disabled",
    },
}
settings = SETTINGS[script.stem] | {"ENV_NAME": game, "TOTAL_TIMESTEPS": env_steps}
train = importlib.import_module(script.stem).make_train(settings)
metrics = jax.jit(train)(jax.random.PRNGKey(seed))["metrics"]
if script.stem == "ppo":
    returns = metrics["returned_episode_returns"][metrics["returned_episode"]]
    last = returns[-100:].mean()
else:
    last = metrics["returned_episode_returns"][-1]
print(f"{script.stem} {game} seed {seed}: {float(last):.2f} after {env_steps:,} env steps")
