"""The deque of trajectories to the learner, and the staging deques of networks to the actors.

The supervisor closes them when the run stops. Every waiting and every later call then raises
`Closed`, so no thread waits for one that has died.
"""

import collections
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from sebulba.ring.ledger import Ledger
from sebulba.types import Networks, TrajectoryItem

# Every change notifies all waiters. Without a timeout, though, a missed notification would hang the
# thread for ever; with one it costs half a second.
_MAX_WAIT_S = 0.5


class Closed(Exception):
    """The deque is closed because the run is stopping."""


class SequenceError(RuntimeError):
    """A trajectory was lost or came twice."""


class TrajectoryDeque:
    """The bounded deque of trajectories from all actors to the learner; it drops none.

    `put` blocks an actor that has `slots_per_actor` trajectories in the deque. The bound is per
    actor: with a shared one, fast actors could fill the deque while the learner, which takes
    trajectories in actor order, waits for a slow one.
    """

    def __init__(self, *, num_actors: int, slots_per_actor: int, ledger: Ledger):
        self._slots_per_actor = slots_per_actor
        self._ledger = ledger
        self._changed = threading.Condition()
        self._items: collections.deque[TrajectoryItem] = collections.deque()
        self._num_queued = [0] * num_actors
        self._next_sequence_number = [0] * num_actors
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def restore(self, next_sequence_numbers: Sequence[int]) -> None:
        """Set the sequence number that each actor's next item must have."""
        self._next_sequence_number = list(next_sequence_numbers)

    def put(self, item: TrajectoryItem) -> None:
        """Append an item; wait while its actor has no free slot.

        Raises:
            Closed: the run is stopping; the item's env steps count as discarded.
        """
        with self._changed:
            while self._num_queued[item.actor_id] >= self._slots_per_actor and not self._closed:
                self._changed.wait(_MAX_WAIT_S)
            if self._closed:
                self._ledger.move(item.actor_id, item.env_steps, "in_flight", "discarded")
                raise Closed
            self._items.append(item)
            self._num_queued[item.actor_id] += 1
            self._ledger.move(item.actor_id, item.env_steps, "in_flight", "queued")
            self._changed.notify_all()

    def get(self, actor_id: int | None = None) -> TrajectoryItem:
        """Take the oldest item, of one actor if `actor_id` is given; wait until there is one.

        Raises:
            Closed: the run is stopping.
            SequenceError: the actor's items are not contiguous.
        """
        with self._changed:
            while (item := self._oldest(actor_id)) is None and not self._closed:
                self._changed.wait(_MAX_WAIT_S)
            if item is None or self._closed:
                raise Closed
            self._items.remove(item)
            self._num_queued[item.actor_id] -= 1
            self._check_sequence(item)
            self._ledger.move(item.actor_id, item.env_steps, "queued", "in_flight")
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """End every wait and discard all items. Idempotent."""
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
    """A staging deque: the learner appends networks, the actors of one device take them.

    A version counts the learner cycles that made the networks.
    """

    def append(self, version: int, networks: Networks) -> None:
        """Stage networks that are on the device; versions ascend."""
        ...

    def take(self, version: int) -> tuple[int, Networks]:
        """Return a version and its networks; wait until they are staged.

        The class decides whether the result is of *at least* or of *exactly* this version.

        Raises:
            Closed: the run is stopping.
        """
        ...

    def close(self) -> None:
        """End every wait. Idempotent."""
        ...


class NetworksDeque:
    """The staging deque of one actor device, which keeps only the newest networks (maxlen 1).

    It holds a copy that the learner never donates.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._staged: collections.deque[tuple[int, Networks]] = collections.deque(maxlen=1)
        self._version = -1
        self._closed = False

    def append(self, version: int, networks: Networks) -> None:
        """Replace the staged networks, taken or not."""
        with self._changed:
            if version <= self._version:
                raise ValueError(
                    f"expected networks of a version after {self._version}, got {version}"
                )
            self._version = version
            self._staged.append((version, networks))
            self._changed.notify_all()

    def take(self, version: int) -> tuple[int, Networks]:
        """Return the newest version, waiting until it is *at least* `version`.

        The networks stay for the device's other actors.
        """
        with self._changed:
            while self._version < version and not self._closed:
                self._changed.wait(_MAX_WAIT_S)
            if self._closed:
                raise Closed
            return self._staged[0]

    def close(self) -> None:
        """End every wait. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class ReplayedNetworksDeque:
    """The staging deque of one actor device in a replayed schedule.

    It keeps each version until all its takers have it: as many versions as the recorded run's
    largest policy lag, plus one.
    """

    def __init__(self, num_takers: Mapping[int, int]):
        """Start empty.

        Args:
            num_takers: act cycles of the device's actors that use each version.
        """
        self._changed = threading.Condition()
        self._num_takers = dict(num_takers)
        self._staged: dict[int, Networks] = {}
        self._closed = False

    def append(self, version: int, networks: Networks) -> None:
        """Stage networks if an actor will take this version."""
        with self._changed:
            if self._num_takers.get(version, 0) > 0:
                self._staged[version] = networks
                self._changed.notify_all()

    def take(self, version: int) -> tuple[int, Networks]:
        """Return *exactly* `version`, waiting until it is staged; its last taker removes it."""
        with self._changed:
            while version not in self._staged and not self._closed:
                self._changed.wait(_MAX_WAIT_S)
            if self._closed:
                raise Closed
            networks = self._staged[version]
            self._num_takers[version] -= 1
            if self._num_takers[version] == 0:
                del self._staged[version]
            return version, networks

    def close(self) -> None:
        """End every wait. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
