"""What an environment's spec says of its frame stacks is so, at resets and lost lives too."""

import types

import envpool
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.data_checks import check_environment
from sebulba.envs.envpool import _frame_stack as frame_stack_of
from sebulba.errors import ConfigError
from sebulba.types import FrameStack
from tests.envs.cases import needs_ale, play, random_actions

STACK = "sebulba.envs.frame_stack:FrameStack"
GYMNASIUM_STACK = "gymnasium.wrappers:FrameStackObservation"
LIVES = {"episodic_life": True, "img_height": 28, "img_width": 28}


def make(suite, name, options=None, *wrappers):
    config = EnvConfig(suite=suite, id=name, options=options or {}, wrappers=wrappers)
    return make_environment(config, num_envs=2, seed=1)


def case(suite, name, options, fill, *wrappers, size=4, axis=0, num_steps=150, marks=()):
    stack = FrameStack(size=size, axis=axis, fill=fill)
    label = f"{suite} {' '.join(map(str, options.values()))} {len(wrappers)} {fill}"
    return pytest.param(suite, name, options, wrappers, stack, num_steps, id=label, marks=marks)


CASES = [
    case("envpool", "Breakout-v5", LIVES, "repeat"),
    case("envpool", "Breakout-v5", LIVES | {"gray_scale": False}, "repeat", num_steps=60),
    case("envpool", "Pong-v5", {"max_episode_steps": 7}, "repeat", num_steps=40),
    case("ale", "breakout", LIVES, "zeros", marks=needs_ale),
    case(
        "ale",
        "breakout",
        LIVES | {"grayscale": False, "stack_num": 2},
        "zeros",
        size=2,
        num_steps=60,
        marks=needs_ale,
    ),
    case("jax", "Catch-v0", {}, "repeat", {STACK: {"axis": -1}}, num_steps=30),
    case("jax", "Catch-v0", {}, "zeros", {STACK: {"fill": "zeros"}}, num_steps=30),
    case("gymnasium", "CartPole-v1", {}, "repeat", {GYMNASIUM_STACK: {"stack_size": 4}}),
    case(
        "gymnasium",
        "CartPole-v1",
        {},
        "zeros",
        {GYMNASIUM_STACK: {"stack_size": 4, "padding_type": "zero"}},
    ),
    case(
        "gymnasium",
        "tests.envs.returning:Reusing",
        {},
        "repeat",
        {GYMNASIUM_STACK: {"stack_size": 4}},
        num_steps=30,
    ),
    case("tests.envs.stacked:make", "stacked", {"lives": True}, "repeat", size=3),
    case("tests.envs.stacked:make", "stacked", {"fill": "zeros"}, "zeros", size=3),
]


@pytest.mark.parametrize(("suite", "name", "options", "wrappers", "stack", "num_steps"), CASES)
def test_a_stack_is_the_one_before_with_one_frame_added_or_a_new_one(
    suite, name, options, wrappers, stack, num_steps
):
    environment = make(suite, name, options, *wrappers)
    assert environment.spec.frame_stack == stack
    actions = random_actions(environment.spec.action_space, num_envs=2, num_steps=num_steps)
    rows = play(environment, actions)
    environment.close()
    *older, newest = np.split(rows.observation, stack.size, axis=2 + stack.axis)
    fill = newest if stack.fill == "repeat" else np.zeros_like(newest)

    def equal(frames, others):
        pairs = zip(frames, others, strict=True)
        return np.all([(a == b).reshape(*a.shape[:2], -1).all(-1) for a, b in pairs], axis=0)

    is_new = equal([frame[1:] for frame in older], [fill[1:]] * len(older))
    is_added = equal([frame[1:] for frame in older], [x[:-1] for x in [*older[1:], newest]])
    is_reset = rows.is_first[1:]
    assert is_added[~is_reset].all()
    assert is_reset.any()
    if rows.episode_over is None:
        assert is_new[is_reset].all()
    else:
        assert (is_new | is_added)[is_reset].all()
        assert (~is_new)[is_reset].any()


@pytest.mark.parametrize(
    ("suite", "name", "options", "wrappers"),
    [
        ("envpool", "CartPole-v1", {}, ()),
        ("envpool", "Pong-v5", {"stack_num": 1}, ()),
        ("jax", "Catch-v0", {}, ({STACK: {"size": 1}},)),
        ("jax", "Catch-v0", {}, ({STACK: {"size": 2}}, "tests.envs.wrapped:ScaledTask")),
        ("gymnasium", "CartPole-v1", {}, ()),
        (
            "gymnasium",
            "CartPole-v1",
            {},
            ({GYMNASIUM_STACK: {"stack_size": 2}}, "tests.envs.wrapped:AddToReward"),
        ),
        (
            "gymnasium",
            "CartPole-v1",
            {},
            ({GYMNASIUM_STACK: {"stack_size": 2, "padding_type": np.full(4, 0.1, np.float32)}},),
        ),
    ],
)
def test_other_observations_are_no_known_stacks(suite, name, options, wrappers):
    environment = make(suite, name, options, *wrappers)
    assert environment.spec.frame_stack is None
    environment.close()


def test_the_frames_of_vizdoom_are_no_known_stack():
    # No engine is made, since EnvPool waits for ever for one that does not start.
    options = envpool.make_spec("D1Basic-v1").config._asdict()
    assert options["stack_num"] == 4
    assert frame_stack_of(types.SimpleNamespace(config=options)) is None


def test_a_stack_that_does_not_fit_the_observation_is_refused():
    environment = make("tests.envs.stacked:make", "stacked")
    for size, axis in ((4, 0), (1, 0), (2, 1)):
        stack = FrameStack(size=size, axis=axis)
        object.__setattr__(environment.spec, "frame_stack", stack)
        with pytest.raises(ConfigError, match=r"`spec.frame_stack` of stacked .* got FrameStack"):
            check_environment(environment, suite="own", name="stacked")
