"""Defaults by the task: what they replace, what they keep, and what a run says of them."""

import contextlib
import dataclasses
import itertools
import threading

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.config import Config, EnvConfig
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.coercion import coerce
from sebulba.config.loading import load_config, to_yaml
from sebulba.config.objects import with_agent
from sebulba.config.run_spec import make_run_spec
from sebulba.config.schema import key_types
from sebulba.devices.memory import describe_costly_network
from sebulba.envs import make_environment, task_defaults
from sebulba.envs.task_defaults import (
    with_task_defaults,
    with_values,
)
from sebulba.errors import ConfigError
from sebulba.run import training
from sebulba.task import ObservationLeaf, Task
from sebulba.types import EnvironmentSpec
from sebulba_agents import AGENTS
from sebulba_agents.config import PPOConfig
from tests.toys import ToyAgent, ToyConfig

THREE_LINES = "env: {id: Pendulum-v1}\nagent: {name: ppo}\nrun: {total_env_steps: 1_000}\n"
PIXELS = ObservationLeaf(shape=(4, 84, 84), dtype="uint8")
GRID = ObservationLeaf(shape=(10, 10, 4), dtype="bool")
VECTOR = ObservationLeaf(shape=(3,), dtype="float32")
ROOM = ObservationLeaf(shape=(), dtype="int32", choices=(range(500),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ToyConfig):
    """Settings that act twice as long with continuous actions, and half as long with others."""

    @classmethod
    def defaults_for(cls, task):
        return {"actor.trajectory_length": 40 if task.actions == "continuous" else 10, "seed": 7}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrongSettings(ToyConfig):
    """Settings with a default of a key that does not exist."""

    @classmethod
    def defaults_for(cls, task):
        return {"actor.trajectory_lengths": 10}


class TaskAgent(ToyAgent):
    """A toy whose trajectory length depends on the task."""

    Config = Settings


class WrongAgent(ToyAgent):
    """A toy with a misspelt default."""

    Config = WrongSettings


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a config and returns its path."""

    def write(text):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return write


def refuse_environments(monkeypatch):
    def make(*args, **kwargs):
        pytest.fail("an environment was made")  # no `Exception`, which would be a warning

    monkeypatch.setattr(task_defaults, "make_environment", make)


def test_a_config_of_three_lines_gets_the_defaults_of_its_task(write):
    resolved = with_task_defaults(load_config(write(THREE_LINES)))
    agent = resolved.config.agent
    assert (agent.network, agent.normalize_observations, agent.normalize_rewards) == (
        "mlp",
        True,
        True,
    )
    assert "defaults of ppo for vectors and continuous actions: agent.network mlp" in (
        resolved.message or ""
    )


def test_what_a_file_a_flag_or_python_gives_is_kept(write):
    path = write(THREE_LINES + "actor: {num_envs: 16}\n")
    config = load_config(path, ["--agent.normalize-rewards", "false"])
    agent = dataclasses.replace(config.agent, learning_rate=0.5)
    resolved = with_task_defaults(dataclasses.replace(config, agent=agent)).config
    assert resolved.actor.num_envs == 16
    assert (resolved.agent.normalize_rewards, resolved.agent.learning_rate) == (False, 0.5)
    assert resolved.agent.normalize_observations


def test_a_complete_config_and_one_of_python_are_kept_without_an_environment(write, monkeypatch):
    resolved = with_task_defaults(load_config(write(THREE_LINES))).config
    refuse_environments(monkeypatch)
    again = load_config(write(to_yaml(resolved)))
    assert with_task_defaults(again).config == again == resolved
    config = Config(env=EnvConfig(id="Pendulum-v1"), agent=PPOConfig())
    assert with_task_defaults(config).config is config


def test_an_environment_that_does_not_exist_is_left_to_the_run(write):
    config = load_config(write(THREE_LINES), ["--env.id", "Pendulum-v99"])
    resolved = with_task_defaults(config)
    assert (resolved.config, resolved.message) == (config, None)


def test_an_environment_that_fails_once_is_told(write, monkeypatch):
    def make(*args, **kwargs):
        raise OSError("no licence")

    monkeypatch.setattr(task_defaults, "make_environment", make)
    resolved = with_task_defaults(load_config(write(THREE_LINES)))
    assert resolved.message.startswith("warning: an environment raised OSError")
    assert not resolved.config.agent.normalize_rewards


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(0), None])
def test_an_environment_whose_close_fails_or_hangs_has_defaults(write, monkeypatch, error):
    released = threading.Event()

    def make(*args, **kwargs):
        environment = make_environment(*args, **kwargs)

        def close():
            if error is not None:
                raise error
            released.wait()

        monkeypatch.setattr(environment, "close", close)
        return environment

    monkeypatch.setattr(task_defaults, "make_environment", make)
    config = load_config(write(THREE_LINES), ["--run.close-timeout-s", "0.05"])
    resolved = with_task_defaults(config)
    released.set()
    assert resolved.config.agent.normalize_rewards


def test_an_agent_of_the_user_chooses_defaults_too(write):
    config = load_config(write("env: {suite: jax, id: Catch-v0}\nseed: 3\n"))
    resolved = with_task_defaults(with_agent(config, TaskAgent)).config
    assert (resolved.actor.trajectory_length, resolved.seed) == (10, 3)
    with pytest.raises(ConfigError, match=r"WrongSettings.defaults_for: actor.trajectory_lengths"):
        with_task_defaults(with_agent(config, WrongAgent))


def test_settings_of_another_agent_replace_those_of_the_file(write):
    config = load_config(write("env: {id: Pendulum-v1}\nagent: {name: ppo}\n"))
    settings = ToyConfig()
    config = with_agent(dataclasses.replace(config, agent=settings), ToyAgent)
    resolved = with_task_defaults(config).config
    assert resolved.agent == dataclasses.replace(settings, name=config.agent.name)


def test_a_run_records_its_defaults_and_says_them(write, tmp_path, capsys):
    text = "env: {suite: jax, id: Catch-v0}\nactor: {num_envs: 4}\nrun: {total_env_steps: 100}\n"
    config = with_agent(load_config(write(text), {"run_dir": str(tmp_path / "run")}), TaskAgent)
    assert training.train_to_exit_code(config) == 0
    written = load_config(str(tmp_path / "run" / "config.yaml"), is_complete=False)
    assert (written.actor.trajectory_length, written.seed) == (10, 7)
    assert (
        f"defaults of {config.agent.name} for vectors and discrete actions:"
        " actor.trajectory_length 10, seed 7. A key in the config or a flag replaces its default"
    ) in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("network", "shape", "is_costly"),
    [("mlp", (84, 84, 4), True), ("shallow", (84, 84, 4), False), ("mlp", (10, 10, 4), False)],
)
def test_dense_layers_on_images_are_a_warning(network, shape, is_costly):
    config = Config(agent=PPOConfig(network=network))
    observation = jax.ShapeDtypeStruct(shape, np.uint8)
    spec = EnvironmentSpec(observation=observation, action_space=gymnasium.spaces.Discrete(2))
    message = describe_costly_network(config.agent, spec, np.zeros(2**18, np.float32))
    assert (message is not None) == is_costly
    if message is not None:
        assert "flattens images of (84, 84, 4): networks of 1.0 MiB" in message


@pytest.mark.parametrize("agent", AGENTS)
def test_every_default_of_a_shipped_agent_is_a_key_with_a_value_of_its_type(agent):
    config_class = agent_config_class(agent)
    types = key_types(config_class)
    for leaf, actions, total in itertools.product(
        (PIXELS, GRID, VECTOR, ROOM), ("discrete", "continuous"), (1, 10_000_000)
    ):
        task = Task(observation=(leaf,), actions=actions, total_env_steps=total)
        values = {
            key: coerce(value, types[key]) for key, value in config_class.defaults_for(task).items()
        }
        config = Config(agent=config_class())
        assert not any(key.startswith("env.") for key in values)
        assert with_values(config, values).agent.name == agent


@pytest.mark.parametrize(
    ("agent", "leaves", "network"),
    [
        ("ppo", (PIXELS,), "shallow"),
        ("ppo", (VECTOR, PIXELS), "shallow"),
        ("ddqn", (GRID,), "small"),
        ("sac", (VECTOR,), "flat"),
        ("pqn", (VECTOR, PIXELS), "mlp"),  # Its convolutions take one image.
        ("impala", (ROOM,), "mlp"),
        ("impala", (ObservationLeaf(shape=(7, 7, 3), dtype="uint8"),), "mlp"),
    ],
)
def test_the_network_suits_the_observation(agent, leaves, network):
    assert agent_config_class(agent).network_for(leaves) == network


@pytest.mark.usefixtures("lenient_jax")
@pytest.mark.parametrize(
    "agent", sorted(set(AGENTS) - {"sac"})
)  # which has continuous actions only
def test_every_agent_takes_observations_of_a_discrete_space(agent):
    if agent == "gumbel_muzero":
        pytest.importorskip("mctx")
    settings = {"env.id": "Taxi-v3", "agent.name": agent, "run.total_env_steps": 1_000}
    config = with_task_defaults(load_config(None, settings)).config
    with contextlib.closing(make_environment(config.env, num_envs=1, seed=0)) as environment:
        spec = environment.spec
    run_spec = make_run_spec(config, spec, config.actor.threads_per_device, 1)
    built = agent_factory(agent)(config.agent, run_spec)
    validate_agent(built, run_spec)
    sizes = {size for leaf in jax.tree.leaves(networks_of(built)) for size in leaf.shape}
    assert agent == "random" or 500 in sizes


def networks_of(agent):
    return jax.eval_shape(agent.init_networks, jax.random.key(0))
