"""The check steps the config's own environment, and names what is wrong with it."""

import dataclasses

import gymnasium
import numpy as np
import pytest

from sebulba.check.own_environment import random_action
from sebulba.check.suite import check, environment_results
from sebulba.config import EnvConfig
from tests.check.test_faults import IMPALA, config_of

MODULE = "tests.check.faulty_environments"


def config_with(name):
    """Return a config with a Gymnasium environment, a batch or a shipped task of this name."""
    suite, id = "gymnasium", f"{MODULE}:{name}-v0"
    if name in ("Countdown", "ReturnsViews", "HidesResets", "EndsTwice", "ForgetsWhoIsOut"):
        suite, id = f"{MODULE}:countdown", name
    elif name == "Bandit":
        suite, id = "jax", "Bandit-v0"
    elif name == "Leavers":
        suite, id = "jax", "tests.envs.leavers:Leavers"
    return dataclasses.replace(config_of(IMPALA), env=EnvConfig(suite=suite, id=id))


def answers(name):
    return {each.name: each for each in environment_results(config_with(name))}


@pytest.mark.parametrize("name", ["Walk", "Countdown", "Leavers"])
def test_a_sound_environment_passes(name):
    found = answers(name)
    assert {each.status for each in found.values()} == {"pass"}, found
    assert {each.of for each in found.values()} == {"environment"}


FAULTS = [
    (
        "Raises",
        "stream",
        "fail",
        "raised ValueError: a wheel fell off (faulty_environments.py:",
    ),
    ("GivesNaN", "stream", "fail", " is nan in row 6: expected finite numbers of float32"),
    ("HidesResets", "stream", "fail", "is_first (row 6, env 0): expected True after the end"),
    ("EndsTwice", "stream", "fail", "expected reward 0 and no end in the row of a reset"),
    (
        "ForgetsWhoIsOut",
        "stream",
        "fail",
        "(row 4, env 0, player 1): expected the final row again, with reward 0, of a player that",
    ),
    ("DrawsUnseeded", "seeds", "fail", "observation (row 0): expected the same with the same"),
    ("ReturnsViews", "buffers", "fail", "observation (row 0): expected an array that the env"),
    ("ForgetsItsFlag", "lengths", "unclear", "an environment that forgets to clear its flag"),
    ("Bandit", "lengths", "unclear", "right for a bandit"),
]


@pytest.mark.parametrize(("name", "question", "status", "words"), FAULTS)
def test_a_fault_of_the_environment_is_named(name, question, status, words):
    found = answers(name)
    assert found[question].status == status
    assert words in found[question].detail
    others = {key: each.status for key, each in found.items() if key != question}
    assert set(others.values()) <= {"pass", "skip"}


def test_an_environment_that_raises_fails_the_check_although_the_probe_does_not():
    report = check(config_with("Raises"), only=["stream", "seeds", "splitting"])
    assert report.has_failures
    statuses = {each.name: (each.of, each.status) for each in report.results}
    assert statuses == {
        "stream": ("environment", "fail"),
        "seeds": ("environment", "skip"),
        "protocol": ("probe", "pass"),
        "splitting": ("probe", "pass"),
    }


def test_random_actions_are_legal_and_of_the_space():
    rng = np.random.default_rng(0)
    mask = np.tile([False, True, False, True, True], (3, 1))
    space = gymnasium.spaces.MultiDiscrete([2, 3], dtype=np.int32)
    drawn = np.stack([random_action(space, mask, 3, rng) for _ in range(50)])
    assert drawn.dtype == np.int32
    assert np.unique(drawn[..., 0]).tolist() == [1]
    assert np.unique(drawn[..., 1]).tolist() == [1, 2]
    space = gymnasium.spaces.Discrete(3, start=2, dtype=np.int32)
    drawn = np.stack([random_action(space, None, 3, rng) for _ in range(50)])
    assert np.unique(drawn).tolist() == [2, 3, 4]
