"""Settings that change during a run, such as a learning rate that falls to 0. Imports no jax.

A setting of type `Scheduled` is a number or a `Schedule` in the config; a range holds for every
value of the schedule. An agent calls `at_clock`, and reads current values only.
"""

import dataclasses
import itertools
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from sebulba.ranges import Range

if TYPE_CHECKING:
    from sebulba.types import Clock, RunSpec

Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """A number that depends on the run's env steps, those of all hosts.

    Raises:
        ValueError: a number is missing, superfluous or out of range.
    """

    schedule: Literal["constant", "linear", "cosine", "piecewise"]
    start: float | None = None  # not of piecewise
    end: float | None = None  # of linear and cosine
    env_steps: int | None = None  # at which `end` is reached; None: run.total_env_steps
    warm_up: int = 0  # env steps in which the value first rises linearly from 0
    values: tuple[float, ...] = ()  # of piecewise
    boundaries: tuple[int, ...] = ()  # env steps at which the next of `values` begins

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that the value moves between, but for the 0 that a warm-up begins at."""
        return tuple(each for each in (self.start, self.end, *self.values) if each is not None)

    def __post_init__(self) -> None:
        used = {
            "constant": ("start",),
            "linear": ("start", "end"),
            "cosine": ("start", "end"),
            "piecewise": ("values", "boundaries"),
        }[self.schedule]
        for name in ("start", "end", "values", "boundaries"):
            is_set = getattr(self, name) not in (None, ())
            if is_set != (name in used):
                state = "a value of" if name in used else "no"
                raise ValueError(f"expected {state} `{name}` with schedule: {self.schedule}")
        if self.env_steps is not None and self.schedule not in ("linear", "cosine"):
            raise ValueError(f"expected no `env_steps` with schedule: {self.schedule}")
        if self.warm_up < 0 or (self.env_steps is not None and self.env_steps <= self.warm_up):
            raise ValueError("expected 0 <= `warm_up` < `env_steps`")
        if self.schedule == "piecewise" and (
            len(self.values) != len(self.boundaries) + 1
            or any(b <= a for a, b in itertools.pairwise((0, *self.boundaries)))
        ):
            raise ValueError("expected rising `boundaries`, and one more of `values`")


if TYPE_CHECKING:
    Scheduled = Any  # a number or a schedule in a config, an array after `at_clock`
else:
    Scheduled = float | Schedule
ScheduledNonNegative = Annotated[Scheduled, Range(0)]
ScheduledFraction = Annotated[Scheduled, Range(0, 1)]


def at_clock(settings: Settings, clock: "Clock", run_spec: "RunSpec") -> Settings:
    """Return a settings dataclass with every schedule replaced by its current value."""
    fields = ((each.name, getattr(settings, each.name)) for each in dataclasses.fields(settings))  # type: ignore[arg-type]
    values = {
        name: value_at(value, clock.env_steps, total_env_steps=run_spec.total_env_steps)
        for name, value in fields
        if isinstance(value, Schedule)
    }
    return dataclasses.replace(settings, **values) if values else settings  # type: ignore[type-var]


def value_at(setting: Scheduled, env_steps: Any, *, total_env_steps: int) -> Any:
    """Return the value `[...]` of a setting after `env_steps`; a number is returned unchanged.

    Args:
        setting: a number or a schedule.
        env_steps: `[...]`, number or array.
        total_env_steps: `run.total_env_steps`, the end of schedules without `env_steps`.
    """
    if not isinstance(setting, Schedule):
        return setting
    # Configs import this module, and `--help` must not wait for jax.
    import jax.numpy as jnp

    env_steps = jnp.asarray(env_steps, jnp.float32)
    # Floats: JAX refuses a Python int that is no int32, and runs may be longer than 2^31 env steps.
    last = float(total_env_steps if setting.env_steps is None else setting.env_steps)
    warm_up = float(setting.warm_up)
    share = (env_steps - warm_up) / max(last - warm_up, 1.0)
    share = jnp.clip(share, 0.0, 1.0)
    if setting.schedule == "piecewise":
        boundaries = jnp.asarray([float(each) for each in setting.boundaries], jnp.float32)
        piece = jnp.searchsorted(boundaries, env_steps, side="right")
        value = jnp.asarray(setting.values, jnp.float32)[piece]
    else:
        if setting.schedule == "cosine":
            share = 0.5 - 0.5 * jnp.cos(jnp.pi * share)
        start = 0.0 if setting.start is None else setting.start
        end = start if setting.end is None else setting.end
        value = start + share * (end - start)
    if setting.warm_up:
        value = value * jnp.clip(env_steps / warm_up, 0.0, 1.0)
    return value
