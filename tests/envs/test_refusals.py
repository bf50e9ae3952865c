"""Environments that cannot be trained in are refused in one line that says what to do."""

import importlib.metadata
import re

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple

from sebulba.config import EnvConfig
from sebulba.envs import make_environment, versions
from sebulba.envs.gymnasium_registry import check_observation
from sebulba.errors import ConfigError
from tests.packages import make_package

HERE = "tests.envs.test_refusals"


def make(suite, name, *wrappers, **options):
    config = EnvConfig(suite=suite, id=name, options=options, wrappers=wrappers)
    return make_environment(config, num_envs=2, seed=1)


class Sentence(gymnasium.Space):
    """Is no subclass of Text, as the missions of BabyAI."""


class Mission(gymnasium.Env):
    """Has a text in its observation, as MiniGrid has, and buttons."""

    observation_space = Dict({"image": Box(0, 255, (3,), np.uint8), "mission": Text(9)})
    action_space = MultiBinary(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe([0, 0, 0]), {}

    def step(self, action):
        return self._observe(action), 1.0, False, False, {}

    def _observe(self, pressed):
        return {"image": np.asarray(pressed, np.uint8), "mission": "go"}


class Mixed(Mission):
    """Has a discrete and a continuous action."""

    observation_space = Box(0, 255, (3,), np.uint8)
    action_space = Tuple([Discrete(2), Box(-1.0, 1.0)])


def test_text_in_an_observation_names_the_wrapper_with_which_it_runs():
    wrapper = r"\[\{gymnasium.wrappers:FilterObservation: \{filter_keys: \[image\]\}\}\]"
    with pytest.raises(ConfigError, match=f"got Text 'mission'. Set env.wrappers: {wrapper}"):
        make("gymnasium", f"{HERE}:Mission")
    named = {"gymnasium.wrappers:FilterObservation": {"filter_keys": ["image"]}}
    environment = make("gymnasium", f"{HERE}:Mission", named)
    assert environment.reset().observation["image"].shape == (2, 3)
    pressed = environment.step(np.array([[0, 1, 1], [1, 0, 0]], np.int32))
    np.testing.assert_array_equal(pressed.observation["image"], [[0, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize("mission", [Text(9), Sentence()])
def test_minigrid_has_a_wrapper_of_its_own(mission):
    space = Dict({"image": Box(0, 255, (3,), np.uint8), "mission": mission})
    spec = gymnasium.envs.registration.EnvSpec("MiniGrid-v0", "minigrid.envs:EmptyEnv")
    with pytest.raises(ConfigError, match=r'wrappers: \["minigrid.wrappers:ImgObsWrapper"\]$'):
        check_observation(spec, space)


def test_mixed_actions_name_a_wrapper_that_makes_choices_of_numbers():
    with pytest.raises(ConfigError, match=r"discrete action\[0\] and continuous") as error:
        make("gymnasium", f"{HERE}:Mixed")
    advice = re.search(r"env\.wrappers: (\[.*?\])", str(error.value))[1]
    environment = make("gymnasium", f"{HERE}:Mixed", *yaml.safe_load(advice))
    assert environment.spec.action_space.nvec.tolist() == [2, 11]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MultiDuel-v1", "expected a single-player .* segmentation fault. Choose another"),
        ("Cig-v1", "segmentation fault"),
        ("TicTacToe-v1", "with 2 players. Set env.suite pgx, which has opponents"),
        ("IntersectionMultiAgent-v1", "with 2 players. Choose another"),
    ],
)
def test_envpool_with_several_players_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        make("envpool", name)


def test_envpool_finds_the_puzzles_of_sudoku():
    environment = make("envpool", "Sudoku-v0")
    assert environment.reset().action_mask.shape == (2, 729)
    environment.close()


def test_an_old_gymnasium_is_refused_with_the_package_that_requires_it(tmp_path, monkeypatch):
    make_package(
        tmp_path,
        "oldgame",
        modules={},
        entry_points={},
        requires=["gymnasium (<1.3,>=0.29)", "gymnasium-extra<2", "gymnasium<1.4; extra == 'new'"],
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.0")
    versions.check_gymnasium.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"1.3 or newer, got 1.2.0, .*oldgame 1.5 ") as caught:
            make("jax", "Catch-v0")
    finally:
        versions.check_gymnasium.cache_clear()
    message = str(caught.value)
    assert "oldgame 1.5 (gymnasium(<1.3,>=0.29)). Run pip install 'gymnasium>=1.3'" in message
