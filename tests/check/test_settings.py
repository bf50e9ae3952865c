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
    subject = types.SimpleNamespace(config=types.SimpleNamespace(agent=Settings()))
    with pytest.raises(ConfigError, match="a: expected 0 or more"):
        Subject.agent_on(subject, 1, a=-1.0)
