"""What an environment returns is checked where it returns it, and the message says what to mend."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.base import EnvironmentDataError, EnvironmentFault

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's own
HERE = "tests.envs.returning"
RESULT = "(observation, reward, terminated, truncated, info)"


def first_error(name, *, mode="sync", wrappers=(), **options):
    """Returns the message of the fault in a reset and a step of two environments; None: none."""
    options |= {"vectorization_mode": mode}
    config = EnvConfig(
        suite="gymnasium", id=f"{HERE}:{name}", options=options, wrappers=tuple(wrappers)
    )
    environment = make_environment(config, num_envs=2, seed=2)
    try:
        environment.reset()
        environment.step(np.zeros(2, np.int32))
    except EnvironmentFault as fault:
        return str(fault)
    finally:
        environment.close()
    return None


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        ("step reward", "float64[1]", "reward of env 1: expected a number, got float64[1]"),
        ("step reward", "None", "reward of env 1: expected a number, got None"),
        ("step reward", "text", "reward of env 1: expected a number, got '1.0'"),
        ("step reward", "complex", "reward of env 1: expected a number, got 1j (complex)"),
        ("step terminated", "None", "terminated of env 1: expected a bool, got None"),
        ("step terminated", "bool[1]", "terminated of env 1: expected a bool, got bool[1]"),
        ("step terminated", "number", "terminated of env 1: expected a bool, got 0.5 (float)"),
        ("step truncated", "text", "truncated of env 1: expected a bool, got '1.0'"),
        ("step info", "None", "info of env 1: expected a dict, got None"),
        ("reset info", "list", "info of env 1: expected a dict, got float64[1]"),
        ("step observation", "None", "observation of env 1: expected float32[2], got None"),
        ("step observation", "text", "observation of env 1: expected float32[2], got '1.0'"),
        ("reset observation", "float32[3]", "expected float32[2], got float32[3]; correct reset"),
        ("reset observation", "result of a reset", "float32[2], got (float32[2], an empty dict);"),
        ("step reward", "ragged list", "reward of env 1: expected a number, got list"),
        ("step truncated", "ragged list", "truncated of env 1: expected a bool, got list"),
        ("step", "None", f"result of env 1: expected {RESULT}, got None; correct step of Return"),
        ("step", "3 values", f"expected {RESULT}, got (float32[2], 1.0 (float), False (bool));"),
        ("step", "4 values", "Returning, which returns terminated and truncated, not one done"),
        ("reset", "float32[2]", "result of env 1: expected (observation, info), got float32[2]"),
        ("reset", "float32[3]", "result of env 1: expected (observation, info), got float32[3]"),
        ("reset", "None", "result of env 1: expected (observation, info), got None"),
    ],
)
def test_a_wrong_value_is_named_with_environment_and_method(at, value, message):
    error = first_error("Returning", at=at, value=value)
    assert message in error
    assert f"correct {at.split()[0]} of Returning" in error


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        ("discrete", "9", "observation of env 1: expected a value of Discrete(5), got 9"),
        ("discrete", "1.5", "observation of env 1: expected int64[], got 1.5 (float)"),
        ("int16", "int64 70000", "observation of env 1: expected integers of int16, got 70000"),
        ("dict", "None", "observation of env 1: expected a dict with 'x', 'y', got None"),
        ("dict", "x alone", "observation.y of env 1: expected Discrete(5), got no such leaf"),
    ],
)
def test_an_observation_outside_its_space_is_named(space, value, message):
    error = first_error("Returning", at="step observation", value=value, space=space)
    assert message in error


@pytest.mark.parametrize("value", ["float32[]", "int64[]", "decimal"])
def test_every_kind_of_number_is_a_reward(value):
    assert first_error("Returning", at="step reward", value=value) is None


@pytest.mark.parametrize("what", ["step terminated", "step truncated"])
@pytest.mark.parametrize("value", ["int64[]", "float32[]"])
def test_the_numbers_0_and_1_are_flags(what, value):
    assert first_error("Returning", at=what, value=value) is None


def test_info_that_differs_between_environments_ends_no_run():
    # The environments' `info` has a text and an array of the same name.
    assert first_error("Returning") is None


def test_a_reset_without_arguments_is_told_its_signature():
    error = first_error("NoSeed")
    assert "expected `reset(self, *, seed=None, options=None)`, got reset()" in error


@pytest.mark.parametrize(
    ("wrapper", "options", "message"),
    [
        ("Wrong", {}, "reward of env 0: expected a number, got float64[1]; correct step of Wrong"),
        (
            "Scaled",
            {"at": "step reward", "value": "text"},
            "reward of env 1: expected a number, got '1.0'; correct step of Returning",
        ),
    ],
)
def test_a_wrong_value_is_told_apart_from_that_of_a_wrapper(wrapper, options, message):
    assert first_error("Returning", wrappers=[f"{HERE}:{wrapper}"], **options) == message


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "Returning",
            {"at": "step reward", "value": "float64[1]"},
            "reward of env 1: expected a number, got float64[1]; correct step of Returning",
        ),
        ("Raising", {}, "env 0: step raised Unsent: code 7 at pump (returning.py:"),
    ],
)
def test_an_error_in_a_worker_process_is_that_of_the_environment(name, options, message):
    """`Unsent` can be neither pickled nor made from its message."""
    assert first_error(name, mode="async", **options).startswith(message)


class Batch(gymnasium.vector.VectorEnv):
    """A vector environment of the user's own, whose rewards are a column."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs, value="column"):
        self.num_envs, self._value = num_envs, value
        self.single_observation_space, self.single_action_space = Box(-9.0, 9.0, (2,)), Discrete(2)
        self.observation_space = Box(-9.0, 9.0, (num_envs, 2))

    def reset(self, *, seed=None, options=None):
        return np.ones((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        observation, _ = self.reset()
        no = np.zeros(self.num_envs, bool)
        if self._value == "column":
            return observation, np.ones((self.num_envs, 1)), no, no, {}
        return observation[:1], np.ones(self.num_envs), no, no, {}


gymnasium.register("Batch-v0", vector_entry_point=Batch)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("column", r"reward of the environments: expected numbers \[3\], got float64\[3, 1\]"),
        ("one", r"observation of the environments: expected float32\[3, 2\], got float32\[1, 2\]"),
    ],
)
def test_values_of_a_vector_environment_have_its_length(value, message):
    options = {"vectorization_mode": "vector_entry_point", "value": value}
    config = EnvConfig(suite="gymnasium", id="Batch-v0", options=options)
    environment = make_environment(config, num_envs=3, seed=2)
    environment.reset()
    with pytest.raises(EnvironmentDataError, match=message):
        environment.step(np.zeros(3, np.int32))
