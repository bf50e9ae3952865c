"""Which remote actors have a process that is set up, and which are awaited."""

import threading


class Attendance:
    """Which remote actors of a host have joined its run. Thread-safe."""

    def __init__(self, *, has_local: bool):
        """Expect nobody yet; `has_local` says whether there are local actors too."""
        self._lock = threading.Lock()
        self._missing: dict[str, bool] = {}  # by the actor's name: whether it was reported
        self._has_actors = has_local

    @property
    def has_actors(self) -> bool:
        """Whether anybody has ever been able to act."""
        return self._has_actors

    def expect(self, name: str) -> None:
        """Note that an actor is to join."""
        with self._lock:
            self._missing[name] = False

    def join(self, name: str) -> bool:
        """Note that an actor can act; return whether it was reported as missing."""
        with self._lock:
            self._has_actors = True
            return self._missing.pop(name, False)

    def report(self, *names: str) -> list[str]:
        """Return the missing actors that were not reported yet, and note them as reported.

        Args:
            names: the actors to look for; empty: all.
        """
        with self._lock:
            new = [
                name
                for name, is_reported in self._missing.items()
                if not is_reported and (not names or name in names)
            ]
            self._missing |= dict.fromkeys(new, True)
            return new
