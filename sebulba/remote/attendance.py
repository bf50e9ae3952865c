"""Which remote actors have a process that is set up, and what the run does without the others."""

import threading

_MAX_NAMES = 8  # in a line


class Attendance:
    """Which remote actors of a host have joined its run. Thread-safe."""

    def __init__(self, *, has_local: bool, is_exact: bool):
        """Expect nobody yet.

        Args:
            has_local: whether there are local actors too.
            is_exact: whether nobody acts until all actors do. The run ends if an answer takes too
                long, and begins when all processes are set up. Otherwise the others continue, if
                there are any, and an actor joins when its process is set up.
        """
        self.is_exact = is_exact
        self._lock = threading.Lock()
        self._missing: dict[str, bool] = {}  # by the actor's name: whether it was said
        self._has_actors = has_local  # ever been able to act

    @property
    def run_continues(self) -> bool:
        """Whether others act while an actor does not."""
        return not self.is_exact and self._has_actors

    def expect(self, name: str) -> None:
        """Note that an actor is to join."""
        with self._lock:
            self._missing[name] = False

    def join(self, name: str) -> bool:
        """Note that an actor can act; return whether a line has said that it is missing."""
        with self._lock:
            self._has_actors = True
            return self._missing.pop(name, False)

    def report(self, name: str, timeout_s: float | None) -> str | None:
        """Return a line that says which actors are missing, and what the run does meanwhile.

        None: earlier lines have named all of them.

        Args:
            name: the actor that waits.
            timeout_s: how long it waits if the run does too; None: without a limit.
        """
        with self._lock:
            new = [
                each
                for each, is_said in self._missing.items()
                # Exact, the others are asked afterwards, and may have answered.
                if not is_said and (each == name or not self.is_exact)
            ]
            self._missing |= dict.fromkeys(new, True)
        if not new:
            return None
        more = f" and {len(new) - _MAX_NAMES} more" if len(new) > _MAX_NAMES else ""
        meanwhile = "The run continues without them, and they join when they have started"
        if self.is_exact:
            limit = "" if timeout_s is None else f", at most {timeout_s:g} s"
            meanwhile = f"The run waits for it{limit} (actor.remote_timeout_s)"
        elif not self.run_continues:
            meanwhile = "The run begins when one of them has started"
        return (
            f"no process yet for {', '.join(new[:_MAX_NAMES])}{more}: it starts slowly, or no"
            f" machine has room (actor.remote_cpus, actor.remote_gpus). {meanwhile}"
        )
