"""Configs that are written load back."""

import pathlib

import pytest
import yaml

from sebulba.config.loading import load_config, to_yaml
from sebulba_agents import AGENTS

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_to_yaml_loads_back_equal_for_every_shipped_config(write, path):
    config = load_config(str(path))
    assert load_config(write(to_yaml(config))) == config
    assert config.agent.name in AGENTS


def test_to_yaml_loads_back_equal_for_unusual_values(write):
    arguments = [
        *("--env.options", "{a: '1e-4', b: 'no', c: ['010', '1:30', 1e-5, [~]], d: {}, é: ''}"),
        *("--run-dir", "null: # 7", "--agent.hidden-sizes", "[]", "--agent.learning-rate", "1e-20"),
        *("--agent.entropy-cost", "{schedule: piecewise, values: [1, 2], boundaries: [9]}"),
        *("--devices.learner", "[1, 0]", "--agent.max-grad-norm", "null", "--run.mode", "serial"),
    ]
    config = load_config(None, arguments)
    text = to_yaml(config)
    assert load_config(write(text)) == config
    assert yaml.safe_load(text)["env"]["options"] == config.env.options
