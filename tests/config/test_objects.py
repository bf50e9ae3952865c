"""Agents and environments that a config is given as objects."""

import copy
import dataclasses

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from sebulba.config import Config
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.loading import load_config, to_yaml
from sebulba.config.objects import source_files, with_agent, with_environment
from sebulba.envs import make_environment
from sebulba.envs.jax_tasks import Catch
from sebulba.errors import ConfigError
from sebulba.references import Reference
from sebulba_agents.config import PPOConfig
from tests.envs.stub import Stub
from tests.toys import ToyAgent, ToyConfig, toy_run_spec

CARTPOLE = load_config(None, {"env.id": "CartPole-v1", "agent.name": "impala"})


def make(config, *, num_envs, seed):
    return Stub(config, num_envs, seed)


def test_settings_are_those_of_the_config_or_the_defaults_of_the_agent():
    given = dataclasses.replace(CARTPOLE, agent=ToyConfig(updates_per_cycle=3))
    assert with_agent(given, ToyAgent).agent == ToyConfig(updates_per_cycle=3)
    assert with_agent(CARTPOLE, ToyAgent).agent == ToyConfig()
    assert with_agent(CARTPOLE, lambda settings, run_spec: None).agent.name.endswith("<lambda>")


def test_an_object_survives_copies_and_is_a_name_in_yaml(tmp_path):
    agent = ToyAgent(ToyConfig(), toy_run_spec())
    config = with_agent(with_environment(CARTPOLE, lambda: None), agent)
    again = copy.deepcopy(dataclasses.replace(config, seed=3))
    assert agent_factory(again.agent.name)(again.agent, toy_run_spec()) is agent
    assert agent_config_class(again.agent.name) is ToyConfig
    assert dataclasses.asdict(config)["agent"]["name"] == "tests.toys:ToyAgent"
    assert "name: tests.toys:ToyAgent\n" in to_yaml(config)
    (tmp_path / "x.yaml").write_text(to_yaml(with_agent(CARTPOLE, ToyAgent)))
    assert load_config(tmp_path / "x.yaml").agent == ToyConfig()


@pytest.mark.parametrize(
    ("environment", "suite"),
    [
        (Catch, "jax"),
        (Catch(), "jax"),
        (lambda: gymnasium.make("CartPole-v1"), "gymnasium"),
        (CartPoleEnv, "gymnasium"),
    ],
)
def test_an_environment_is_made_from_what_it_is(environment, suite):
    config = with_environment(CARTPOLE, environment)
    assert config.env.suite == suite
    made = make_environment(config.env, num_envs=3, seed=0)
    assert made.reset().reward.shape == (3,)
    made.close()


def test_a_function_of_num_envs_and_seed_is_an_adapter():
    config = with_environment(CARTPOLE, make)
    assert make_environment(config.env, num_envs=3, seed=7).made_from == (config.env, 3, 7)
    assert config.env.suite == f"{__name__}:make"


@pytest.mark.parametrize("change", [with_agent, with_environment])
def test_what_cannot_make_one_is_refused(change):
    with pytest.raises(ConfigError, match="expected a"):
        change(Config(agent=ToyConfig()), 7)


def test_the_files_of_named_modules_are_found():
    config = with_environment(dataclasses.replace(CARTPOLE, agent=ToyConfig()), make)
    files = source_files(config)
    assert files["tests.toys:ToyAgent"].endswith("/tests/toys.py")
    assert files[f"{__name__}:make"] == __file__
    assert source_files(CARTPOLE) == {}


def test_the_files_of_modules_in_any_setting_are_found():
    wrapper, core = f"{__name__}:Wrapper", f"{__name__}:Core"
    env = dataclasses.replace(
        CARTPOLE.env, wrappers=({wrapper: {"table": "C:/table"}},), options={"url": "http://a"}
    )
    agent = PPOConfig(network=Reference(f"{__name__}:Torso"), core=Reference(core))
    files = source_files(dataclasses.replace(CARTPOLE, env=env, agent=agent))
    assert files == dict.fromkeys((wrapper, f"{__name__}:Torso", core), __file__)
