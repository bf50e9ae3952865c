"""Mistakes of beginners are refused before anything runs, with the key and what to change."""

import re

import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import EnvironmentFault
from sebulba.errors import ConfigError

HERE = "tests.envs.mistakes"


def refusal_of(suite, name, **options):
    """Returns the message with which a pair of environments is refused."""
    config = EnvConfig(suite=suite, id=name, options=options)
    with pytest.raises(ConfigError) as caught:
        make_environment(config, num_envs=2, seed=1)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoObservationSpace", "env.id '{}': The environment must specify an observation space"),
        ("ActionSpaceOfANumber", "action space does not inherit from `gymnasium.spaces.Space`"),
        ("NoStep", "env.id: expected NoStep to have a method `step`, got none"),
        ("NoReset", "env.id: expected NoReset to have a method `reset`, got none"),
        ("NeedsDepth", "env.options: expected a value of depth, which the constructor of {} needs"),
        ("returns_a_number", "must inherit from the gymnasium.Env class, actual class: <class 'in"),
        ("an_instance", "expected a class, a function or a registered ID of tests.envs.mistakes"),
        ("Soud", "env.id: Gymnasium has no '{}'; did you mean Sound?"),
        ("NoClass-v0", "env.id: the registered entry point tests.envs.mistakes:Nothing cannot be"),
        ("NoModule-v0", "cannot be imported: ModuleNotFoundError: No module named 'no_module_at_"),
        ("WrongKwargs-v0", "registered with kwargs {'siz': 1}: its constructor has no parameter"),
    ],
)
def test_a_class_that_is_no_environment_is_refused(name, message, mode):
    got = refusal_of("gymnasium", f"{HERE}:{name}", vectorization_mode=mode)
    assert message.replace("{}", f"{HERE}:{name}") in got


def test_what_a_video_needs_is_said_of_an_environment_that_cannot_be_rendered():
    got = refusal_of("gymnasium", f"{HERE}:Sound", render_mode="rgb_array")
    assert "Sound cannot be rendered, as its constructor has no parameter render_mode" in got
    assert "`metadata = {'render_modes': ['rgb_array']}`" in got


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoActions", "env.id: expected at least one action, got Box([], [], (0,), float32)"),
        ("NothingToObserve", "expected observations with at least one number, got float32[0]"),
        ("Different", "expected equal spaces in every environment of tests.envs.mistakes:Diff"),
    ],
)
def test_spaces_that_no_agent_can_use_are_refused(name, message):
    assert message in refusal_of("gymnasium", f"{HERE}:{name}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"siz": 3}, "env.options.siz: its constructor has no parameter siz; did you mean size?"),
        ({"vector_kwargs": 3}, "env.options.vector_kwargs: expected a mapping, got 3"),
        ({"max_episode_steps": "ten"}, "expected an int of at least 1, got 'ten'"),
        (
            {"vectorization_mode": "vector_entry_point"},
            "env.options.vectorization_mode: expected sync or async",
        ),
    ],
)
def test_a_wrong_option_is_named(options, message):
    assert message in refusal_of("gymnasium", f"{HERE}:Sound", **options)


@pytest.mark.parametrize(
    ("suite", "name", "message"),
    [
        ("gymnasium", "./my_env.py:Env", "env.id: expected the name of a module, got the file ./m"),
        (
            "gymnasium",
            "sebulba.envs.jax_tasks:Catch",
            "got Catch, which does not derive from gymnasium.Env and has no observation_space",
        ),
        ("jax", f"{HERE}:ShapeAsObservation", "expected observation to be a jax.ShapeDtypeStruct"),
        (f"{HERE}:make_nothing", "x", "make_nothing to return an Environment, with num_envs, spec"),
        (f"{HERE}:make_single", "x", "got Sound without num_envs, fused; see docs/add_an_envi"),
        (
            f"{HERE}:Sound",
            "x",
            "Gymnasium environment of your own, set env.suite gymnasium and env",
        ),
        (f"{HERE}:make_without_arguments", "x", "a function (config, *, num_envs, seed), got"),
    ],
)
def test_a_wrong_suite_or_file_is_named(suite, name, message):
    assert message in refusal_of(suite, name)


def test_an_error_inside_a_constructor_names_its_line():
    config = EnvConfig(suite="gymnasium", id=f"{HERE}:TypeErrorInside")
    line = re.escape('self.size = 1 + "1"')
    with pytest.raises(EnvironmentFault, match=rf"TypeError: .*\(mistakes\.py:\d+: {line}\)$"):
        make_environment(config, num_envs=1, seed=1)
