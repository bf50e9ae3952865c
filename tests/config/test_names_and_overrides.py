"""Configs by file or name, overrides, and the nearest names."""

import pathlib
import re

import pytest

from sebulba.config import DevicesConfig, DistributedConfig
from sebulba.config.loading import ConfigError, load_config
from sebulba.errors import did_you_mean
from tests.config.errors import error_of

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


def test_error_for_a_missing_file_suggests_similar_names():
    message = error_of(str(CONFIGS / "impala_cartpol.yaml"))
    assert "no such file" in message
    assert "did you mean impala_cartpole.yaml" in message
    assert "there is no folder /nowhere" in error_of("/nowhere/x.yaml")
    assert "impala_catch.yaml" in error_of(str(CONFIGS))


def test_a_name_is_the_config_that_comes_with_sebulba_unless_there_is_such_a_file(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert load_config("ppo_recall") == load_config(CONFIGS / "ppo_recall.yaml")
    (tmp_path / "ppo_recall").write_text("seed: 7")
    assert load_config("ppo_recall").seed == 7


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("impala_cartpol", "did you mean impala_cartpole or "),
        ("impala_cartpole.yaml", "did you mean impala_cartpole, which comes with Sebulba?"),
        ("configs/impala_cartpole.yaml", "did you mean impala_cartpole, which comes with"),
        ("mine", "did you mean mine.yaml?"),
        ("xyz", "`sebulba configs` lists"),
    ],
)
def test_error_for_a_missing_config_suggests_shipped_ones(tmp_path, monkeypatch, name, suggestion):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(ConfigError, match=f"^{name}: no such file; .*{re.escape(suggestion)}"):
        load_config(name)


def test_overrides_are_values_by_dotted_key_or_section():
    dotted = {"actor.num_envs": 32, "agent.lambda_": 0.5, "devices": "auto", "run_dir": "1e3"}
    nested = {"actor": {"num_envs": 32}, "agent": {"lambda_": 0.5}, "run_dir": "1e3"}
    flags = ["--actor.num-envs=32", "--agent.lambda=0.5", "--devices=auto", "--run-dir=1e3"]
    config = load_config("ppo_recall", dotted)
    assert config == load_config("ppo_recall", nested) == load_config("ppo_recall", flags)
    assert (config.actor.num_envs, config.agent.lambda_, config.run_dir) == (32, 0.5, "1e3")


def test_a_word_as_override_replaces_the_section_of_the_file(write):
    path = write("devices: {actor: [0], learner: [1]}\ndistributed: {mode: auto}")
    config = load_config(path, {"devices": "auto", "distributed": "off"})
    assert (config.devices, config.distributed) == (DevicesConfig(), DistributedConfig(mode="off"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"actor.num_env": 3}, "overrides: actor.num_env: unknown key; did you mean num_envs?"),
        ({"seed": "3"}, "overrides: seed: expected int in [0, 2147483647], got '3' (str)"),
        ({"actor": 3}, "overrides: actor: expected a mapping, {name: value, ...}, got 3"),
        (
            {"agent.name": "impal"},
            "overrides: agent.name: unknown name impal; did you mean impala?",
        ),
    ],
)
def test_errors_of_overrides_name_the_key(overrides, message):
    assert error_of("impala_cartpole", overrides).startswith(message)


@pytest.mark.parametrize(
    ("name", "valid", "suggestion"),
    [
        ("pong-v5", ["Pong-v5", "Qbert-v5"], "; did you mean Pong-v5? (known: Pong-v5, Qbert-v5)"),
        ("Pong", ["Pong-v4", "Pong-v5"], "; did you mean Pong-v5 or Pong-v4? (known: "),
        ("gym", ["gymnax", "gymnasium"], "; did you mean gymnax or gymnasium? (known: "),
        ("zzz", ["a", "b"], "; known: a, b"),
        ("zzz", [], ""),
        ("x123", [f"x{i}" for i in range(100, 1000)], "; did you mean x123 or x923 or x913?"),
        ("zzz", [f"x{i}" for i in range(100, 1000)], ""),
    ],
)
def test_did_you_mean_suggests_similar_names_and_lists_a_few_known_ones(name, valid, suggestion):
    text = did_you_mean(name, valid)
    assert text.startswith(suggestion)
    assert len(text) < 100
