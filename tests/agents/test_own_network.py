"""Networks of the user's, as docs/tutorials/own_network.md has them, in every agent."""

import dataclasses
import json
import sys

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.agent_check import validate_agent
from sebulba.config import DevicesConfig
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.run import training
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import ObservationTorso, check_network
from sebulba.types import EnvironmentSpec
from tests.compiled import jitted
from tests.docs.blocks import ROOT, blocks_of
from tests.extras import needs_search
from tests.on_policy import make_run_spec

PAGE = ROOT / "docs" / "tutorials" / "own_network.md"
HERE = "tests.agents.test_own_network"
AGENTS = [
    *("impala", "a2c", "ppo", "policy_gradient", "r2d2", "ddqn", "rainbow", "pqn", "sac", "skills")
]
SETTINGS = {
    "impala": ("impala_bandit", ["--agent.learning-rate", "3e-3"]),
    "ppo": ("ppo_bandit", []),
    "ddqn": ("ddqn_bandit", ["--agent.replay-capacity", "4000"]),
    "r2d2": ("r2d2_recall", ["--agent.replay-capacity", "8000"]),
    "sac": (
        "sac_bandit",
        [
            *("--env.options", "{continuous: true}", "--agent.target-entropy", "-4"),
            *("--agent.replay-capacity", "8000"),
        ],
    ),
}
"""The config that each agent learns with, and what the task needs besides."""


class TupleEnv(gymnasium.Env):
    """Observations of every kind; the reward is the action."""

    observation_space = gymnasium.spaces.Tuple(
        [
            gymnasium.spaces.Box(0, 255, (10, 10, 4), np.uint8),
            gymnasium.spaces.Dict({"vector": gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float64)}),
            gymnasium.spaces.Discrete(3),
        ]
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        done = bool(self.np_random.random() < 0.1)
        return self.observation_space.sample(), float(action), done, False, {}


gymnasium.register("Tuple-v0", entry_point=TupleEnv)


class Sized(nn.Module):
    """A network with the one field that the config fills."""

    hidden_sizes: tuple[int, ...] = (3,)

    @nn.compact
    def __call__(self, observation):
        return nn.Dense(self.hidden_sizes[-1])(observation)


class Scalar(nn.Module):
    """Forgets the axis of the features."""

    @nn.compact
    def __call__(self, observation):
        return nn.Dense(1)(observation)[..., 0]


class Sums(nn.Module):
    """Adds what cannot be added."""

    @nn.compact
    def __call__(self, observation):
        return observation["image"] + observation["vector"]


INSTANCE = Sums()


class Dropping(nn.Module):
    """Draws random numbers."""

    @nn.compact
    def __call__(self, observation):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(observation))


def function(observation):
    """Is no module."""


class Counting(nn.Module):
    """Has more than parameters."""

    @nn.compact
    def __call__(self, observation):
        return nn.BatchNorm(use_running_average=False)(observation)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The directory with the files of the page, which can be imported."""
    directory = tmp_path_factory.mktemp("page")
    names = [block.file_name for block in blocks_of(PAGE) if block.file_name is not None]
    for block in blocks_of(PAGE):
        if block.file_name is not None:
            (directory / block.file_name).write_text(block.text)
    sys.path.insert(0, str(directory))
    yield directory
    sys.path.remove(str(directory))
    for name in names:
        sys.modules.pop(name.removesuffix(".py"), None)


def run_spec_of(agent, observation):
    space = gymnasium.spaces.Discrete(4, dtype=np.int32)
    if agent == "sac":
        space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    environment = EnvironmentSpec(observation=observation, action_space=space)
    return make_run_spec(environment=environment)


def make(agent, observation, **settings):
    run_spec = run_spec_of(agent, observation)
    config = agent_config_class(agent)(**settings)
    return agent_factory(agent)(config, run_spec), run_spec


@pytest.mark.parametrize(
    "name", [*AGENTS, pytest.param("gumbel_muzero", marks=[pytest.mark.slow, needs_search])]
)
def test_every_agent_takes_a_network_for_dicts_and_keeps_the_protocol(name, page):
    observation = {
        "image": jax.ShapeDtypeStruct((10, 10, 4), np.uint8),
        "vector": jax.ShapeDtypeStruct((2,), np.float32),
    }
    agent, run_spec = make(name, observation, network="my_network:ImageAndVector")
    validate_agent(agent, run_spec)
    paths = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(agent.init_networks, jax.random.key(0))
    )
    assert any("ImageAndVector" in jax.tree_util.keystr(path) for path, _ in paths)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_tuple_goes_through_the_network_of_nnx(name, page):
    observation = (
        jax.ShapeDtypeStruct((3, 3), np.float32),
        (jax.ShapeDtypeStruct((), np.int32),),
    )
    agent, run_spec = make(name, observation, network="my_nnx_network:FromNNX")
    validate_agent(agent, run_spec)


def test_the_network_of_nnx_is_a_function_of_its_parameters(page):
    torso, x = ObservationTorso(TorsoSettings("my_nnx_network:FromNNX", ())), jnp.ones((2, 5))
    params = jitted(torso.init)(jax.random.key(0), x)
    features = jitted(torso.apply)(params, x)
    assert features.shape == (2, 64) and features.any()
    zero = jax.tree.map(jnp.zeros_like, params)
    assert not jitted(torso.apply)(zero, x).any()
    other = jitted(torso.init)(jax.random.key(1), x)
    assert (jitted(torso.apply)(other, x) != features).any()
    grads = jax.jit(jax.grad(lambda params: jnp.sum(torso.apply(params, x))))(params)
    assert all(leaf.any() for leaf in jax.tree.leaves(grads))


def test_the_network_for_any_size_takes_an_unusual_image(page):
    observation = jax.ShapeDtypeStruct((3, 52, 117), np.uint8)
    check_network(TorsoSettings("any_size:AnySize", ()), observation)
    agent, run_spec = make("ddqn", observation, network="any_size:AnySize")
    validate_agent(agent, run_spec)


def test_a_network_gets_the_sizes_of_the_config_if_it_has_them():
    torso = ObservationTorso(TorsoSettings(f"{HERE}:Sized", (5, 7)))
    assert torso.init_with_output(jax.random.key(0), jnp.ones((2, 4)))[0].shape == (2, 7)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("no_such_module:Name", r"agent\.network: there is no module 'no_such_module'"),
        (f"{HERE}:Sizd", r"agent\.network: .* has no Sizd; did you mean Sized"),
        (
            f"{HERE}:Scalar",
            r"agent\.network: expected .*:Scalar to return features.* got float32\[2\] for",
        ),
        (
            f"{HERE}:Sums",
            r"agent\.network: tests.*:Sums raised TypeError: .* \(test_own_network\.py:\d+: return"
            r" observation\[\"image\"\] .*\); it was called with observations float32\[2,4\]",
        ),
        (f"{HERE}:function", r"agent\.network: .*:function raised TypeError: .*'observation'"),
        (
            f"{HERE}:INSTANCE",
            r"agent\.network: expected .*:INSTANCE to be a .* got Sums",
        ),
        (f"{HERE}:Dropping", r"agent\.network: .*:Dropping raised InvalidRngError"),
        ("flax.nnx:Rngs", r"agent\.network: .* to be a .* got Rngs\. For flax NNX"),
        (f"{HERE}:Counting", r"agent\.network: expected .*:Counting .* got batch_stats"),
    ],
)
def test_a_network_that_breaks_the_contract_is_refused(network, message):
    with pytest.raises(ConfigError, match=message):
        make("ppo", jax.ShapeDtypeStruct((4,), np.float32), network=network)


def test_a_network_is_one_of_ours_or_a_module(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("agent: {name: ppo, network: shalow}")
    with pytest.raises(ConfigError, match=r"expected auto \| mlp \| .* \| module:Name, got shalow"):
        load_config(str(config))
    assert load_config(None, ["--agent.network", "a.b:C"]).agent.network == "a.b:C"


def best_return(page, run_dir, name, *arguments):
    config, settings = SETTINGS[name]
    config = load_config(
        f"configs/{config}.yaml",
        [
            *("--env.id", "seeing:Seeing", "--agent.network", "my_network:ImageAndVector"),
            # An answer has no consequences.
            *("--run-dir", str(run_dir), "--agent.discount", "0.9", *settings, *arguments),
        ],
    )
    config = dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    assert training.train_to_exit_code(config) == 0
    return json.loads((run_dir / "summary.json").read_text())["best_episode_return_mean"]


@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param("impala", "small", marks=pytest.mark.slow),
        pytest.param("ppo", "small", marks=pytest.mark.slow),
        pytest.param("r2d2", "small", marks=pytest.mark.slow),
    ],
)
def test_tuples_and_dicts_come_through_gymnasium_normalisation_and_learner(name, network, tmp_path):
    settings = ["--agent.normalize-observations", "true"] if name != "r2d2" else []
    config = load_config(
        f"configs/{SETTINGS[name][0]}.yaml",
        [
            *("--env.suite", "gymnasium", "--env.id", f"{HERE}:Tuple-v0"),
            *("--run-dir", str(tmp_path / "run"), "--agent.network", network, *settings),
            *("--run.total-env-steps", "1200", "--run.stop-at-return", "null"),
        ],
    )
    config = dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    assert training.train_to_exit_code(config) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1801, 1802])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_kind_of_agent_learns_from_a_dict(name, seed, page, tmp_path):
    """Random answers have a mean return of 2.5; of continuous ones about 3.7."""
    goal = 8.5 if name != "sac" else 8.0
    limits = ["--run.total-env-steps", "300_000", "--run.stop-at-return", str(goal)]
    assert best_return(page, tmp_path / "run", name, "--seed", str(seed), *limits) >= goal
