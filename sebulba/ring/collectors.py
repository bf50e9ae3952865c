"""Who acts, as a port: a collector acts one cycle from a `Point`.

Acting from the same point with the same networks gives the same result, whoever is asked: a
collector holds nothing that the run needs, and another can be asked in its place at any time. So a
process that died and a run that resumes are one case.
"""

from typing import Protocol

from sebulba.ring.records import Collected, Point
from sebulba.types import EnvironmentSpec, Networks


class CollectorLost(RuntimeError):
    """Whoever acted is gone; another call with the same point gives the same result."""


class StreamLost(RuntimeError):
    """The environments cannot be brought to the point again, so their stream has to end there."""


class Collector(Protocol):
    """Acts one trajectory at a time, and holds nothing that the run needs."""

    # Act cycles of a stream whose actions it needs to return to a point in environments that cannot
    # be stored. An actor keeps them up to this number, and none of a longer stream. 0: it is never
    # lost. A collector that can be lost and says 0 begins new episodes at each loss.
    max_kept_cycles: int
    # Whether anybody has been able to act; it may not be so before the first `wait` has returned.
    has_joined: bool

    @property
    def spec(self) -> EnvironmentSpec:
        """The spaces of a single environment."""
        ...

    def begin(self, networks: Networks) -> Point:
        """Return the first point of a new run: the environments are made from its seed, and reset.

        A collector that may join after the run has begun returns a point with the boundary
        `NOTHING_BEFORE`; its first `collect` makes the environments.

        Raises:
            EnvironmentFault: `reset` failed, or its result is not as the environment's spec says.
            ConfigError: `actor.cycle` or `actor.rollout` does not suit the environment.
        """
        ...

    def wait(self) -> None:
        """Wait until somebody can act, before networks are taken, which would grow old meanwhile.

        Raises:
            Exception: as `collect`.
        """
        ...

    def collect(self, networks: Networks, point: Point) -> Collected:
        """Act the cycle of a point, in the thread of the actor's clock.

        Begin and lap the activities of `sebulba.ring.clocks` on that clock: `begin` before what may
        hang, so that the watchdog sees it, and `lap` after it.

        Raises:
            EnvironmentFault: the environments failed; the same point would fail again.
            StreamLost: the environments of the point are gone.
            CollectorLost: whoever acted is gone. The next call asks this object again, so it has
                to find somebody else itself; the eighth loss at one point ends the run.
        """
        ...

    def interrupt(self) -> None:
        """End a wait for whoever acts with `Closed`; called from another thread, at the run's end.

        A cycle that is acted here ends by itself.
        """
        ...

    def close(self) -> None:
        """Release the environments; no cycle may be running."""
        ...
