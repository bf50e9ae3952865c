"""The checkout of Stoix, the first argument of the programs that train it, and its configs."""

import pathlib
import sys
from unittest import mock

CONFIGS = pathlib.Path(sys.argv[1].rpartition("/stoix/")[0]).resolve() / "stoix/configs"
sys.path.insert(0, str(CONFIGS.parents[1]))
# Loggers that are not used here.
for name in ("wandb", "neptune", "neptune.utils", "tensorboard_logger", "pandas", "pandas.io"):
    sys.modules.setdefault(name, mock.MagicMock())
for name in ("pandas.io.json", "pandas.io.json._normalize", "marl_eval", "marl_eval.json_tools"):
    sys.modules.setdefault(name, mock.MagicMock())

import hydra  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402


def compose(default, settings, groups=()):
    """Return a default config, such as `sebulba/default_ff_ppo`, with other settings.

    Args:
        default: file in `configs/default`, without its ending.
        settings: values by dotted key.
        groups: other files of Hydra's config groups, such as `network=mlp`.
    """
    path = CONFIGS / "default" / default
    with hydra.initialize_config_dir(str(path.parent), version_base="1.2"):
        config = hydra.compose(path.name, [f"hydra.searchpath=[file://{CONFIGS}]", *groups])
    OmegaConf.set_struct(config, False)
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    return config
