"""Measure the cost of timing: a run with its clocks, and one with clocks that do nothing.

    python -m benchmarks.instrumentation CONFIG [--env-steps 150000] [--json FILE]

Any other flag is the config's. The noise between two runs exceeds the cost of the clocks, so it is
also measured directly: the number of clock readings per second of a run, times the cost of one.
"""

import contextlib
import time
from collections.abc import Iterator
from unittest import mock

from benchmarks import harness, rings
from benchmarks.harness import Result, Series
from sebulba.config import Config
from sebulba.ring import make
from sebulba.ring.clocks import WallClock

_READINGS = 100_000


class NullClock(WallClock):
    """A clock that records nothing."""

    def begin(self, activity: str) -> None:
        """Ignore the call."""

    def lap(self, activity: str) -> None:
        """Ignore the call."""

    def restart(self) -> None:
        """Ignore the call."""


class CountingClock(WallClock):
    """A clock that counts its readings."""

    readings = 0  # counted over all clocks

    def begin(self, activity: str) -> None:
        """Count, and begin an activity."""
        CountingClock.readings += 1
        super().begin(activity)

    def lap(self, activity: str) -> None:
        """Count, and record an activity."""
        CountingClock.readings += 1
        super().lap(activity)


@contextlib.contextmanager
def clocks(clock: type[WallClock]) -> Iterator[None]:
    """Build rings with another clock."""
    with mock.patch.object(make, "WallClock", clock):
        yield


def measure(config: Config, *, env_steps: int, repeats: int) -> Result:
    """Measure env steps per second with and without clocks, and the cost of their readings."""
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
    """Return the share of a run's time that its clock readings take."""
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
    """Run the benchmark."""
    rings.measure_config(__doc__, measure, env_steps=150_000)


if __name__ == "__main__":
    main()
