"""Environments of dm_env: `env.id: module:function`, which makes one."""

import numpy as np
import pytest
from dm_env import specs
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import EnvironmentDataError
from sebulba.envs.dm_env_to_gymnasium import DmEnv, _space_of
from sebulba.errors import ConfigError
from tests.envs.dm_tasks import MAX_STEPS, Walk

HERE = "tests.envs.dm_tasks"


def make(name, **options):
    config = EnvConfig(suite="dm_env", id=f"{HERE}:{name}", options=options)
    return make_environment(config, num_envs=2, seed=7)


def rows_of(environment, num_steps=MAX_STEPS):
    rows = [environment.reset()]
    rows += [environment.step(np.ones(2, np.int32)) for _ in range(num_steps)]
    environment.close()
    return rows


@pytest.mark.parametrize(("discount", "flag"), [(0.0, "terminated"), (0.9, "truncated")])
def test_the_discount_of_the_last_step_tells_termination_from_truncation(discount, flag):
    rows = rows_of(make("Walk", end_discount=discount))
    for name in ("terminated", "truncated"):
        flags = np.array([getattr(row, name) for row in rows])
        assert flags.any(axis=0).all() == (name == flag)
    assert not rows[0].reward.any()  # dm_env has none in a first step


def test_worker_processes_step_the_same_environments():
    here, there = (rows_of(make("Walk", vectorization_mode=mode)) for mode in ("sync", "async"))
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a.observation["place"], b.observation["place"])
        np.testing.assert_array_equal(a.reward, b.reward)


def test_a_function_without_a_seed_makes_an_environment():
    assert len(rows_of(make("walk", end_discount=0.5))) == MAX_STEPS + 1


def test_a_seed_makes_the_environment_anew_and_closes_the_one_before():
    env = DmEnv(Walk)
    first = env._env
    one, other = (env.reset(seed=seed)[0]["place"].copy() for seed in (3, 4))
    assert first.is_closed
    np.testing.assert_array_equal(env.reset(seed=3)[0]["place"], one)
    assert not np.array_equal(one, other)


def test_an_option_seed_is_the_seed_of_every_environment():
    place = make("Walk", seed=3).reset().observation["place"]
    np.testing.assert_array_equal(place[0], place[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("first", "step_type of env 0: expected MID or LAST"),
        ("reward", "reward of env 0: expected a number, got None; correct step of Walk"),
        ("discount", "discount of env 0: expected 1 before the last step, got 0.9"),
        ("no discount", "discount of env 0: expected a number, got None"),
    ],
)
def test_a_wrong_time_step_is_named_with_its_environment(wrong, message):
    environment = make("Walk", wrong=wrong)
    environment.reset()
    with pytest.raises(EnvironmentDataError, match=message):
        environment.step(np.ones(2, np.int32))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "expected nothing to make a dm_env.Environment, got int, which has no"),
        ("CONSTANT", {}, "expected a function, got tests.envs.dm_tasks:CONSTANT = 3"),
        ("Named", {}, "expected arrays of numbers in observation.name"),
        ("Walk", {"end_discont": 1}, "end_discont: its constructor has no parameter end_discont"),
        ("Walk", {"vectorization_mode": "vector_entry_point"}, "set sync or async"),
    ],
)
def test_what_cannot_be_an_environment_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


INT8 = np.iinfo(np.int8)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (specs.DiscreteArray(3), Discrete(3, dtype=np.int32)),
        (specs.Array((2,), np.float64), Box(-np.inf, np.inf, (2,), np.float64)),
        (specs.Array((), np.int8), Box(INT8.min, INT8.max, (), np.int8)),
        (specs.Array((2, 1), bool), MultiBinary((2, 1))),
        (
            specs.BoundedArray((2,), np.float32, -1, [1, 2]),
            Box(np.float32(-1), np.array([1, 2], np.float32)),
        ),
        (specs.BoundedArray((), np.int32, 1, 4), Box(1, 4, (), np.int32)),
        (
            {"a": specs.DiscreteArray(2), "b": [specs.Array((1,), np.uint8)]},
            Dict(a=Discrete(2, dtype=np.int32), b=Tuple([Box(0, 255, (1,), np.uint8)])),
        ),
    ],
)
def test_each_spec_is_a_space(spec, expected):
    assert _space_of(spec, "action") == expected
