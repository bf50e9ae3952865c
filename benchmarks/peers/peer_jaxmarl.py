"""Train IPPO of JaxMARL, and print env steps and returns after each update.

    peer_jaxmarl.py SCRIPT NAME=VALUE...

The script's own settings, beside it in `config/`, are those of the names that are not given.
`ENV_STEPS` counts steps of players, as ours does, and so do the printed env steps.
"""

import importlib
import pathlib
import sys
from unittest import mock

# Command line and logger, which are not used here.
for name in ("hydra", "omegaconf", "wandb"):
    sys.modules.setdefault(name, mock.MagicMock())
script = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(script.parent))

import jax  # noqa: E402
import yaml  # noqa: E402

module = importlib.import_module(script.stem)
settings = yaml.safe_load((script.parent / "config" / f"{script.stem}.yaml").read_text())
given = dict(flag.split("=", 1) for flag in sys.argv[2:])
settings |= {key: yaml.safe_load(value) for key, value in given.items()}
sizes = settings | {"TOTAL_TIMESTEPS": 0}
module.make_train(sizes)  # which adds what it derives
num_players = sizes["NUM_ACTORS"] // sizes["NUM_ENVS"]
settings["TOTAL_TIMESTEPS"] = int(settings["ENV_STEPS"]) // num_players
updates = 0


def log(metric):
    """Print what JaxMARL logs after each update."""
    global updates
    updates += 1
    if "returns" in metric:  # of SMAX, whose players all receive the team's
        mean = metric["returns"]
    else:  # JaxMARL's log multiplies it by the number of players
        mean = metric["returned_episode_returns"] / num_players
    print(f"return: {float(mean)}")
    rows = sizes["NUM_ACTORS"] * sizes["NUM_STEPS"]
    print(f"env steps: {updates * rows}", flush=True)


module.wandb.log = log
train = jax.jit(module.make_train(settings))
jax.block_until_ready(train(jax.random.PRNGKey(int(settings["SEED"]))))
jax.effects_barrier()
