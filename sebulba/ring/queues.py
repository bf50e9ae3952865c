"""The two deques between actors and learner.

Both are closed by whoever supervises the run: every waiting and every later call then raises
`Closed`, so no thread is left waiting for one that has died.
"""

import collections
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from sebulba.ring.ledger import Ledger
from sebulba.types import Networks, TrajectoryItem

# Closing notifies every waiter; the timeout is a second line of defence against a lost wake-up.
_WAKE_UP_S = 0.5


class Closed(Exception):
    """The deque was closed; the run is stopping."""


class SequenceError(RuntimeError):
    """A trajectory was lost, or came twice."""


class TrajectoryDeque:
    """The bounded deque of trajectories from all actors to the learner; nothing is ever dropped.

    An actor with `slots_per_actor` trajectories waiting has to wait itself. The bound is each
    actor's own: with a shared one, actors that are ahead could fill the deque while the learner
    waits for another.
    """

    def __init__(self, *, num_actors: int, slots_per_actor: int, ledger: Ledger):
        self._slots_per_actor = slots_per_actor
        self._ledger = ledger
        self._changed = threading.Condition()
        self._items: collections.deque[TrajectoryItem] = collections.deque()
        self._waiting = [0] * num_actors
        self._next_sequence_number = [0] * num_actors
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def restore(self, next_sequence_numbers: Sequence[int]) -> None:
        """Expects each actor's items from here on; called before the first of them."""
        self._next_sequence_number = list(next_sequence_numbers)

    def put(self, item: TrajectoryItem) -> None:
        """Appends an item, waiting while its actor has no free slot.

        Raises:
            Closed: the run is stopping; the item's env steps are booked as discarded.
        """
        with self._changed:
            while self._waiting[item.actor_id] >= self._slots_per_actor and not self._closed:
                self._changed.wait(_WAKE_UP_S)
            if self._closed:
                self._ledger.move(item.actor_id, item.env_steps, "in_flight", "discarded")
                raise Closed
            self._items.append(item)
            self._waiting[item.actor_id] += 1
            self._ledger.move(item.actor_id, item.env_steps, "in_flight", "queued")
            self._changed.notify_all()

    def get(self, actor_id: int | None = None) -> TrajectoryItem:
        """Takes the oldest item, or the oldest of one actor, waiting until there is one.

        Raises:
            Closed: the run is stopping.
            SequenceError: the actor's items are not contiguous.
        """
        with self._changed:
            while (item := self._oldest(actor_id)) is None and not self._closed:
                self._changed.wait(_WAKE_UP_S)
            if item is None or self._closed:
                raise Closed
            self._items.remove(item)
            self._waiting[item.actor_id] -= 1
            self._check_sequence(item)
            self._ledger.move(item.actor_id, item.env_steps, "queued", "in_flight")
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Ends every wait; what still lies in the deque is booked as discarded. Idempotent."""
        with self._changed:
            self._closed = True
            for item in self._items:
                self._ledger.move(item.actor_id, item.env_steps, "queued", "discarded")
            self._items.clear()
            self._changed.notify_all()

    def _oldest(self, actor_id: int | None) -> TrajectoryItem | None:
        wanted = (item for item in self._items if actor_id is None or item.actor_id == actor_id)
        return next(wanted, None)

    def _check_sequence(self, item: TrajectoryItem) -> None:
        expected = self._next_sequence_number[item.actor_id]
        if item.sequence_number != expected:
            raise SequenceError(
                f"actor {item.actor_id}: expected trajectory {expected}, got {item.sequence_number}"
            )
        self._next_sequence_number[item.actor_id] += 1


class Staging(Protocol):
    """What the learner hands networks to, and the actors of one device take them from."""

    def append(self, version: int, networks: Networks) -> None:
        """Stages networks on the device, of `version` learner cycles; versions ascend."""
        ...

    def take(self, min_version: int) -> tuple[int, Networks]:
        """Returns a version and its networks, waiting while they are too old."""
        ...

    def close(self) -> None:
        """Ends every wait. Idempotent."""
        ...


class NetworksDeque:
    """The staging deque of one actor device: the newest networks, and nothing else (maxlen 1).

    What lies in it is a copy that the learner never donates.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._staged: collections.deque[tuple[int, Networks]] = collections.deque(maxlen=1)
        self._version = -1
        self._closed = False

    def append(self, version: int, networks: Networks) -> None:
        """Stages networks in the place of any that no actor took.

        Args:
            version: learner cycles that the networks have seen; greater than the last one's.
            networks: on this actor device.
        """
        with self._changed:
            if version <= self._version:
                raise ValueError(
                    f"expected networks of a version after {self._version}, got {version}"
                )
            self._version = version
            self._staged.append((version, networks))
            self._changed.notify_all()

    def take(self, min_version: int) -> tuple[int, Networks]:
        """Returns the newest version and its networks, waiting only while they are too old.

        They stay, for the device's other actors.

        Raises:
            Closed: the run is stopping.
        """
        with self._changed:
            while self._version < min_version and not self._closed:
                self._changed.wait(_WAKE_UP_S)
            if self._closed:
                raise Closed
            return self._staged[0]

    def close(self) -> None:
        """Ends every wait. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class ReplayedNetworksDeque:
    """The staging deque of one actor device in a replayed schedule.

    It hands out exactly the version that is asked for, and holds each until all who are to act with
    it have taken it: as many at once as the recorded run's policy lag.
    """

    def __init__(self, takers: Mapping[int, int]):
        """Starts empty.

        Args:
            takers: how many act cycles of the device's actors take each version.
        """
        self._changed = threading.Condition()
        self._takers = dict(takers)
        self._staged: dict[int, Networks] = {}
        self._closed = False

    def append(self, version: int, networks: Networks) -> None:
        """Stages networks for those who are to act with them; called with ascending versions."""
        with self._changed:
            if self._takers.get(version, 0) > 0:
                self._staged[version] = networks
                self._changed.notify_all()

    def take(self, version: int) -> tuple[int, Networks]:
        """Returns this version and its networks, waiting until they are there.

        Raises:
            Closed: the run is stopping.
        """
        with self._changed:
            while version not in self._staged and not self._closed:
                self._changed.wait(_WAKE_UP_S)
            if self._closed:
                raise Closed
            networks = self._staged[version]
            self._takers[version] -= 1
            if self._takers[version] == 0:
                del self._staged[version]
            return version, networks

    def close(self) -> None:
        """Ends every wait. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
