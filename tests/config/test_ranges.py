"""Every number of a config has a range: values at its bounds are accepted, others are refused."""

import dataclasses
import sys
import typing
from typing import Annotated

import numpy as np
import pytest

from sebulba.config import ActorConfig, Config, LearnerConfig, RunConfig
from sebulba.config.agents import agent_config_class
from sebulba.config.coercion import coerce, describe_type
from sebulba.config.loading import ConfigError, load_config
from sebulba.config.schema import ProfileConfig, key_types
from sebulba.config.validation import validate
from sebulba.ranges import Count, Fraction, Positive, Range, Real
from sebulba.toolkit.schedules import Schedule, Scheduled, ScheduledFraction
from sebulba_agents import AGENTS
from sebulba_agents.config import PPOConfig


def numbers_of(annotation, limits=None, is_item=False):
    """Yield type, range, and whether it is that of a list's items, of each kind of number."""
    if typing.get_origin(annotation) is Annotated:
        annotation, limits = typing.get_args(annotation)
    if annotation in (int, float):
        yield annotation, limits, is_item
    for each in typing.get_args(annotation):
        is_list = typing.get_origin(annotation) is tuple
        yield from numbers_of(each, None if is_list else limits, is_list)


def sides_of(kind, limits):
    """Return the numbers at the bounds that are in a range, and those next to them that are not."""
    step = 1 if kind is int else 1e-9
    inside, outside = [], []
    for bound, closed, away in (
        (limits.least, True, -step),
        (limits.most, True, step),
        (limits.above, False, -step),
        (limits.below, False, step),
    ):
        if bound is not None:
            inside.append(bound if closed else bound - away)
            outside.append(bound + away if closed else bound)
    return [kind(each) for each in inside or [-1e30, 1e30]], [kind(each) for each in outside]


KEYS = {
    (name, key): annotation
    for name in AGENTS
    for key, annotation in key_types(agent_config_class(name)).items()
    # The same for all agents.
    if list(numbers_of(annotation)) and (key.startswith("agent.") or name == "random")
}


@pytest.mark.parametrize(("name", "key"), KEYS, ids=lambda each: each)
def test_every_number_has_a_range_of_which_both_sides_are_told_apart(name, key):
    annotation = KEYS[name, key]
    for kind, limits, is_item in numbers_of(annotation):
        assert limits is not None, "a number without a range; any number suits a `Real`"
        inside, outside = sides_of(kind, limits)
        for number in (*inside, *outside):
            error = ""
            try:
                load_config(None, {"agent.name": name, key: [number] if is_item else number})
            except ConfigError as caught:  # An accepted number may not fit the other defaults.
                error = str(caught)
            refusal = f"overrides: {key}: expected {describe_type(annotation)}, got "
            assert error.startswith(refusal) == (number in outside), error


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("agent.learning_rate: -1", "float ≥ 0 | {schedule: ..., ...}, got -1"),
        ("agent.num_epochs: 0", "int ≥ 1, got 0"),
        ("agent.clip: -0.2", "float ≥ 0 | {schedule: ..., ...}, got -0.2"),
        ("agent.discount: 2", "float in [0, 1], got 2"),
        ("agent.max_grad_norm: 0", "float > 0 | null, got 0"),
        ("agent.rmsprop_decay: 1", "float in [0, 1), got 1"),
        ("agent.hidden_sizes: [8, -3]", "[int ≥ 1, ...], got [8, -3]"),
        ("devices.actor: [-1]", "[int ≥ 0, ...] | cpu | null, got [-1]"),
    ],
)
def test_an_error_names_file_line_key_range_and_value(write, setting, message):
    key, value = setting.split(": ")
    section, name = key.split(".")
    path = write(f"{section}:\n  {name}: {value}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["--agent.name=ppo"])
    assert str(caught.value) == f"{path}:2: {key}: expected {message}"


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (None, Positive | None),
        ((1, 2), tuple[Count, ...]),
        ("cpu", tuple[Count, ...] | typing.Literal["cpu"]),
        (-1e300, Real),
        (0.5, Annotated[Scheduled, Range(0, 1)]),
        (Schedule(schedule="linear", start=1.0, end=0.0), ScheduledFraction),
        (Schedule(schedule="piecewise", values=(1.0, 0.0), boundaries=(5,)), ScheduledFraction),
        (ProfileConfig(from_cycle=0, cycles=1), ProfileConfig | None),
    ],
)
def test_values_in_range_are_accepted(value, annotation):
    coerce(value, annotation)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (0.0, Positive | None, "expected float > 0 | null, got 0.0"),
        ((1, 0), tuple[Count, ...], "expected [int ≥ 1, ...], got [1, 0]"),
        (float("nan"), Fraction, "expected float in [0, 1], got .nan"),
        (1.5, Annotated[float, Range(above=1, below=1.5)], "expected float in (1, 1.5), got 1.5"),
        (5, Annotated[int, Range(most=4)], "expected int ≤ 4, got 5"),
        (
            Schedule(schedule="linear", start=2.0, end=0.0),
            ScheduledFraction,
            "expected float in [0, 1] | {schedule: ..., ...}, got {schedule: linear, start: 2.0, ",
        ),
        (
            Schedule(schedule="piecewise", values=(1.0, -1.0), boundaries=(5,)),
            ScheduledFraction,
            "expected float in [0, 1] | ",
        ),
        (ProfileConfig(cycles=0), ProfileConfig | None, "cycles: expected int ≥ 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(value, annotation, message):
    with pytest.raises(ConfigError) as caught:
        coerce(value, annotation)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", AGENTS)
def test_the_defaults_are_in_range(name):
    validate(Config(learner=LearnerConfig(policy_lag=0), agent=agent_config_class(name)()))


def test_a_config_made_in_python_is_checked_too():
    validate(Config(actor=ActorConfig(num_envs=np.int64(8)), agent=PPOConfig(discount=1)))
    with pytest.raises(ConfigError, match=r"^actor\.num_envs: expected int ≥ 1, got '8' \(str\)"):
        validate(Config(actor=ActorConfig(num_envs="8")))
    with pytest.raises(ConfigError, match=r"^agent\.discount: expected float in \[0, 1\], got 2"):
        validate(Config(agent=PPOConfig(discount=2.0)))
    with pytest.raises(ConfigError, match=r"^run\.profile: cycles: expected int ≥ 1, got 0"):
        validate(Config(run=RunConfig(profile=ProfileConfig(cycles=0))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig:
    name: str = ""
    sizes: list[int] = dataclasses.field(default_factory=list)
    depth: Annotated[int, Range(1, 5)] = 2
    width: "OnlyForTypeCheckers | None" = None  # noqa: F821


def test_an_agent_object_may_have_types_that_no_config_file_can_have(monkeypatch):
    validate(Config(agent=OwnConfig(depth=9)))
    monkeypatch.setattr(sys.modules[__name__], "OnlyForTypeCheckers", int, raising=False)
    with pytest.raises(ConfigError, match=r"^agent\.depth: expected int in \[1, 5\], got 9"):
        validate(Config(agent=OwnConfig(depth=9)))


@pytest.mark.parametrize("name", ["batch_size", "min_replay_rows"])
def test_a_replay_holds_a_batch_and_the_rows_that_learning_starts_with(name):
    overrides = {"agent.name": "ddqn", "agent.replay_capacity": 5_000, f"agent.{name}": 5_001}
    with pytest.raises(ConfigError, match=f"agent.{name}: expected at most agent.replay_capacity"):
        load_config(None, overrides)
    assert load_config(None, overrides | {f"agent.{name}": 5_000}).agent.replay_capacity == 5_000
