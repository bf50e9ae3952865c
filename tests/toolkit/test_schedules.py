"""Settings that change with the env steps of a run."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.schedules import Schedule, at_clock, value_at
from sebulba.types import Clock
from tests.on_policy import make_run_spec

LINEAR = {"schedule": "linear", "start": 3.0, "end": 1.0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LINEAR, [3.0, 2.5, 2.0, 1.0, 1.0]),
        (LINEAR | {"env_steps": 50}, [3.0, 2.0, 1.0, 1.0, 1.0]),
        (LINEAR | {"schedule": "cosine"}, [3.0, 2.0 + 0.5**0.5, 2.0, 1.0, 1.0]),
        ({"schedule": "constant", "start": 3.0}, [3.0] * 5),
        ({"schedule": "constant", "start": 3.0, "warm_up": 50}, [0.0, 1.5, 3.0, 3.0, 3.0]),
        (LINEAR | {"warm_up": 50}, [0.0, 1.5, 3.0, 1.0, 1.0]),
        (
            {"schedule": "piecewise", "values": (3.0, 2.0, 1.0), "boundaries": (25, 100)},
            [3.0, 2.0, 2.0, 1.0, 1.0],
        ),
    ],
)
def test_value_of_a_schedule_after_env_steps(settings, expected):
    schedule = Schedule(**settings)
    env_steps = jnp.array([0, 25, 50, 100, 150])
    np.testing.assert_allclose(value_at(schedule, env_steps, total_env_steps=100), expected)
    each = [value_at(schedule, x, total_env_steps=100) for x in env_steps.astype(jnp.uint32)]
    np.testing.assert_allclose(each, expected)


def test_schedules_of_settings_are_replaced_and_numbers_stay_python_numbers():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        rate: object
        size: int = 3
        clip: float = 0.2

    constant = Settings(0.1)
    clock, run_spec = Clock.at(env_steps=50), make_run_spec(total_env_steps=100)
    assert at_clock(constant, clock, run_spec) is constant
    settings = at_clock(Settings(Schedule(**LINEAR)), clock, run_spec)
    assert float(settings.rate) == 2.0
    assert (settings.size, settings.clip) == (3, 0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "linear", "start": 1.0}, "a value of `end` with schedule: linear"),
        (LINEAR | {"values": (1.0,)}, "no `values` with schedule: linear"),
        ({"schedule": "constant", "start": 1.0, "env_steps": 5}, "no `env_steps`"),
        (LINEAR | {"env_steps": 5, "warm_up": 5}, "`warm_up` < `env_steps`"),
        ({"schedule": "piecewise", "values": (1.0,), "boundaries": (1,)}, "one more of `values`"),
        (
            {"schedule": "piecewise", "values": (1.0, 2.0, 3.0), "boundaries": (2, 1)},
            "rising `boundaries`",
        ),
    ],
)
def test_schedule_names_what_does_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "linear", "start": 1.0, "end": 0.0},
        {"schedule": "cosine", "start": 1.0, "end": 0.0, "env_steps": 2**40, "warm_up": 2**33},
        {"schedule": "piecewise", "values": (1.0, 0.5, 0.0), "boundaries": (2**35, 3 * 2**38)},
    ],
)
def test_a_schedule_may_be_longer_than_an_int32_counts(settings):
    value = value_at(Schedule(**settings), jnp.float32(2**39), total_env_steps=2**40)
    np.testing.assert_allclose(value, 0.5, atol=0.01)
