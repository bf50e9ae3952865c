"""The deque of trajectories to the learner, and the staging deques of networks to the actors.

The supervisor closes them when the run stops. Every waiting and every later call then raises
`Closed`, so no thread waits for one that has died.
"""

import collections
import threading
from collections.abc import Sequence

from sebulba.ring.ledger import Ledger
from sebulba.ring.records import Delivery, UnrollInfo
from sebulba.types import Networks

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
        self._deliveries: collections.deque[Delivery] = collections.deque()
        self._num_queued = [0] * num_actors
        self._next_sequence_number = [0] * num_actors
        self._closed = False

    def __len__(self) -> int:
        return len(self._deliveries)

    def restore(self, next_sequence_numbers: Sequence[int]) -> None:
        """Set the sequence number that each actor's next delivery must have."""
        self._next_sequence_number = list(next_sequence_numbers)

    def put(self, delivery: Delivery) -> None:
        """Append a delivery; wait while its actor has no free slot.

        Raises:
            Closed: the run is stopping; the delivery's env steps count as discarded.
        """
        info = delivery.info
        with self._changed:
            while self._num_queued[info.actor_id] >= self._slots_per_actor and not self._closed:
                self._changed.wait(_MAX_WAIT_S)
            if self._closed:
                self._ledger.move(info.actor_id, info.env_steps, "in_flight", "discarded")
                raise Closed
            self._deliveries.append(delivery)
            self._num_queued[info.actor_id] += 1
            self._ledger.move(info.actor_id, info.env_steps, "in_flight", "queued")
            self._changed.notify_all()

    def get(self, actor_id: int | None = None) -> Delivery:
        """Take the oldest delivery, of one actor if `actor_id` is given; wait until there is one.

        Raises:
            Closed: the run is stopping.
            SequenceError: the actor's deliveries are not contiguous.
        """
        with self._changed:
            while (delivery := self._oldest(actor_id)) is None and not self._closed:
                self._changed.wait(_MAX_WAIT_S)
            if delivery is None or self._closed:
                raise Closed
            info = delivery.info
            self._deliveries.remove(delivery)
            self._num_queued[info.actor_id] -= 1
            self._check_sequence(info)
            self._ledger.move(info.actor_id, info.env_steps, "queued", "in_flight")
            self._changed.notify_all()
            return delivery

    def close(self) -> None:
        """End every wait and discard all deliveries. Idempotent."""
        with self._changed:
            self._closed = True
            for info in (delivery.info for delivery in self._deliveries):
                self._ledger.move(info.actor_id, info.env_steps, "queued", "discarded")
            self._deliveries.clear()
            self._changed.notify_all()

    def _oldest(self, actor_id: int | None) -> Delivery | None:
        wanted = (
            each for each in self._deliveries if actor_id is None or each.info.actor_id == actor_id
        )
        return next(wanted, None)

    def _check_sequence(self, info: UnrollInfo) -> None:
        actor_id, number = info.actor_id, info.sequence_number
        expected = self._next_sequence_number[actor_id]
        if number != expected:
            raise SequenceError(f"actor {actor_id}: expected trajectory {expected}, got {number}")
        self._next_sequence_number[actor_id] += 1


class NetworksDeque:
    """The staging deque of one actor device: the newest `maxlen` versions of the networks.

    A version is the number of learner cycles that made the networks. The learner appends, the
    device's actors take; the networks stay for the other actors. They are copies that the learner
    never donates.
    """

    def __init__(self, maxlen: int) -> None:
        self._changed = threading.Condition()
        self._staged: collections.deque[tuple[int, Networks]] = collections.deque(maxlen=maxlen)
        self._closed = False

    def append(self, version: int, networks: Networks) -> None:
        """Stage networks that are on the device, in place of the oldest, taken or not."""
        with self._changed:
            if self._staged and version <= self._staged[-1][0]:
                raise ValueError(
                    f"expected networks of a version after {self._staged[-1][0]}, got {version}"
                )
            self._staged.append((version, networks))
            self._changed.notify_all()

    def take(self, version: int | None) -> tuple[int, Networks]:
        """Return exactly this version and its networks, waiting until it is staged.

        None: return the newest version.

        Raises:
            Closed: the run is stopping.
            SequenceError: the version was staged before those that are left.
        """
        with self._changed:
            while not self._closed and not self._is_staged(version):
                self._changed.wait(_MAX_WAIT_S)
            if self._closed:
                raise Closed
            if version is None:
                return self._staged[-1]
            for staged in self._staged:
                if staged[0] == version:
                    return staged
            raise SequenceError(
                f"expected networks of version {version} on the device, got versions"
                f" {self._staged[0][0]} to {self._staged[-1][0]}"
            )

    @property
    def newest_version(self) -> int:
        """The version that was staged last; -1: none."""
        with self._changed:
            return self._staged[-1][0] if self._staged else -1

    @property
    def staged(self) -> list[tuple[int, Networks]]:
        """The versions and their networks, the oldest first."""
        with self._changed:
            return list(self._staged)

    def close(self) -> None:
        """End every wait. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_staged(self, version: int | None) -> bool:
        return bool(self._staged) and (version is None or version <= self._staged[-1][0])
