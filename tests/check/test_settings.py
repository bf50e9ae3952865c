"""Questions change the settings of an agent that it has, and whose types allow it."""

import dataclasses
import types
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from sebulba.check.settings import with_settings
from sebulba.check.subject import Subject
from sebulba.errors import ConfigError
from sebulba.ranges import Range

if TYPE_CHECKING:
    from somewhere import Unknown


def subject_of(agent, **fields):
    """Return a subject of which nothing but these fields and the agent's settings is known."""
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(Subject))
    return Subject(**unknown | fields | {"config": types.SimpleNamespace(agent=agent)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    name: str = "inner"
    reward_clip: float = 1.0
    lstm_size: int | None = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    sound: Inner = Inner()
    a: float = 1.0
    b: "float" = 1.0
    c: Annotated[float, Range(0)] = 1.0
    d: float | None = 1.0
    e: "float | None" = 1.0
    f: Optional[float] = 1.0  # noqa: UP045
    g: Annotated[float | None, Range(0)] = 1.0
    h: Any = 1.0

    def __post_init__(self):
        if self.a < 0.0:
            raise ValueError("a: expected 0 or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unresolved:
    other: "Unknown" = 0
    a: "float" = 1.0
    d: "float | None" = 1.0


@pytest.mark.parametrize("settings", [Settings(), Unresolved()])
def test_none_is_forced_on_no_setting_whose_type_does_not_allow_it(settings):
    names = [field.name for field in dataclasses.fields(settings) if len(field.name) == 1]
    found = with_settings(settings, **dict.fromkeys(names))
    kept = [name for name in names if getattr(found, name) is not None]
    assert kept == [name for name in "abc" if name in names]


def test_wrapped_agents_get_the_settings_that_they_have():
    found = with_settings(Settings(), reward_clip=None, lstm_size=None, a=2.0, unknown=3)
    assert found == Settings(a=2.0, sound=Inner(lstm_size=None))


def test_a_dataclass_that_refuses_a_setting_raises_a_config_error():
    with pytest.raises(ConfigError, match="a: expected 0 or more"):
        subject_of(Settings()).agent_on(1, a=-1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similar:
    """Has names that contain those of settings that questions look for."""

    exploration_steps: int = 10_000
    learning_rate_decay: float = 0.5
    lambdarank: float = 0.4
    discounted: float = 0.3
    value_discounts: tuple[float, ...] = (0.9, 0.99)
    gae_lambda: float = 0.8


def test_settings_are_found_by_their_names_and_numbers_by_words_of_them():
    subject = subject_of(Similar())
    assert subject.setting("n_step", "learning_rate") is None
    assert subject.setting("n_step", "exploration_steps") == 10_000
    assert subject.discounts == [0.9, 0.99]
    assert subject.lambdas == [0.8]
