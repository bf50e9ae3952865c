"""Times what the accounting of time costs: a run with its clocks, and with clocks that do nothing.

    python -m benchmarks.instrumentation CONFIG [--env-steps 150000] [--json FILE]

Any other flag is the config's. Two runs differ by more than the clocks cost, so that is measured
by itself too: the readings of a run's clocks a second, times what one takes.
"""

import contextlib
import time
from collections.abc import Iterator
from unittest import mock

from benchmarks import harness, rings
from benchmarks.harness import Result, Series
from sebulba.acting import actor_building
from sebulba.config import Config
from sebulba.ring.timing import WallClock
from sebulba.run import assembly

_READINGS = 100_000


class NullClock(WallClock):
    """A clock that books nothing."""

    def begin(self, activity: str) -> None:
        """Does nothing."""

    def lap(self, activity: str) -> None:
        """Does nothing."""

    def restart(self) -> None:
        """Does nothing."""


class CountingClock(WallClock):
    """A clock that counts its readings."""

    readings = 0  # of all clocks

    def begin(self, activity: str) -> None:
        """Announces an activity."""
        CountingClock.readings += 1
        super().begin(activity)

    def lap(self, activity: str) -> None:
        """Books an activity."""
        CountingClock.readings += 1
        super().lap(activity)


@contextlib.contextmanager
def clocks(clock: type[WallClock]) -> Iterator[None]:
    """Lets rings be built with another clock."""
    with (
        mock.patch.object(assembly, "WallClock", clock),
        mock.patch.object(actor_building, "WallClock", clock),
    ):
        yield


def measure(config: Config, *, env_steps: int, repeats: int) -> Result:
    """Returns env steps a second with and without clocks, and what their readings take."""
    config = rings.of_length(config, env_steps)

    def run(clock: type[WallClock]) -> harness.Timed:
        with clocks(clock):
            return rings.run_ring(config)

    rates = harness.interleave(
        {"on": lambda: run(WallClock), "off": lambda: run(NullClock)}, repeats
    )
    short = rings.of_length(config, max(1, env_steps // 3))
    cost = Series(values=tuple(1e6 * _share_of_time(short) for _ in range(repeats)))
    return Result(
        name=f"instrumentation, {config.agent.name} on {config.env.suite} {config.env.id}",
        unit="env steps/s",
        rates=rates,
        ratios={"on / off": rates["on"].over(rates["off"])},
        microseconds={"of all clocks' readings in a second of the run": cost},
        settings={"env steps": env_steps},
    )


def _share_of_time(config: Config) -> float:
    """Returns the readings of a run times their cost, over the run's time."""
    clock, begin = WallClock(), time.perf_counter()
    for _ in range(_READINGS):
        clock.lap("x")
    cost_s = (time.perf_counter() - begin) / _READINGS
    CountingClock.readings, begin = 0, time.perf_counter()
    with clocks(CountingClock):
        rate = rings.run_ring(config).amount
    seconds = config.run.total_env_steps / rate
    return CountingClock.readings * cost_s / seconds


def main() -> None:
    """Runs the benchmark."""
    rings.measure_config(__doc__, measure, env_steps=150_000)


if __name__ == "__main__":
    main()
