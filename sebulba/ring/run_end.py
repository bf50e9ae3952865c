"""Why a run ends: its goal, a signal, or a failure. One object that everybody is given."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from sebulba.errors import ALSO, describe_error
from sebulba.process import end_interrupted, handled

_SECOND_REQUEST_AFTER_S = 1.0


class StoppedAtStart(Exception):
    """A stop signal came before the first act cycle; nothing was learned that could be saved.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int):
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name} before the first act cycle")


class StuckError(RuntimeError):
    """A thread did not end in time.

    The process has to end by `sebulba.process.end_process`.

    Attributes:
        threads: the names of those that are left.
        what: what they all do and nothing can interrupt, such as "compiling"; empty: something
            else.
    """

    def __init__(self, message: str, *, threads: Sequence[str], what: str = ""):
        self.threads = tuple(threads)
        self.what = what
        super().__init__(message)


class RunEnd:
    """Why a run ends; nothing is set while it trains.

    No field has two writers that disagree, so no lock is needed: the learner's thread or a callback
    of the user sets the goal, the signal handler or (on several hosts) the learner's thread the
    signal, the thread that called `run` the rest.
    """

    def __init__(self, *, hosts_agree: bool = False):
        """Starts without any reason to end.

        Args:
            hosts_agree: a signal that this process receives ends the run only once all hosts have
                agreed on it, after the same learner cycle: the others would wait for this one's
                collectives forever.
        """
        self.goal = False  # enough env steps or episodes, or the return to stop at
        self.signal: int | None = None  # that ends the run
        self.received: int | None = None  # the first signal that this process received
        self.failure: BaseException | None = None  # the first
        self.unsaved: str | None = None  # why the last state is not on the disk
        self.is_stuck = False  # some threads of the run have not ended, and never may
        self.is_learner_stuck = False  # the learner's is one of them: it may change its state
        self.is_closing = False  # a `close` of environments has not returned, and never may
        self.has_late_signal = False  # a signal came after `finalize`: wait for nothing
        self._is_final = False
        self._hosts_agree = hosts_agree
        self._received_at: float | None = None  # the first signal, on the monotonic clock

    @property
    def is_set(self) -> bool:
        """Whether the learner starts no further cycle."""
        return self.goal or self.signal is not None or self.failure is not None

    @property
    def closes_at_once(self) -> bool:
        """Whether the supervisor closes the deques now instead of waiting for the learner."""
        return self.signal is not None and not self._hosts_agree

    @property
    def stopped_by(self) -> int | None:
        """The signal that stopped the run or, on several hosts, this process; None: no signal."""
        return self.signal or self.received

    @property
    def is_interrupted(self) -> bool:
        """Whether the user asked this process or, on several hosts, any of them to stop."""
        return self.stopped_by is not None

    @property
    def interrupted_while(self) -> str:
        """What a signal ended the run in, such as "compiling", so that it could not be saved.

        Empty if it did not.
        """
        if self.is_interrupted and isinstance(self.failure, StuckError):
            return self.failure.what
        return ""

    @property
    def status(self) -> Literal["done", "interrupted", "failed", "unsaved"]:
        """The word for it in the summary."""
        if self.failure is not None and not self.interrupted_while:
            return "failed"
        if self.unsaved is not None:
            return "unsaved"
        return "interrupted" if self.is_interrupted else "done"

    def raise_if_received(self) -> None:
        """End a start that may wait for long.

        Raises:
            StoppedAtStart: this process has received a stop signal.
        """
        if self.received is not None:
            raise StoppedAtStart(self.received)

    def finalize(self) -> None:
        """Let later signals not change why the run ended, once everything is saved and says so."""
        self._is_final = True

    def fail(self, error: BaseException) -> None:
        """Record a failure: the first is the cause, later ones are notes on it."""
        if self.failure is None:
            self.failure = error
        elif error is not self.failure:
            self.failure.add_note(f"{ALSO} {describe_error(error)}.")

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record what is raised within as a failure, and continue after it."""
        try:
            yield
        # `BaseException`: code of the user may exit, and a `SystemExit` of a thread ends here too.
        except BaseException as error:
            self.fail(error)

    @contextmanager
    def listening(self) -> Iterator["RunEnd"]:
        """Receive stop signals; a second one, a second later or more, ends the process at once.

        Outside of the main thread nothing is received.
        """
        with handled(self.receive):
            yield self

    def receive(self, number: int, frame: Any) -> None:
        """Take a stop signal, as its handler; a second one ends the process at once."""
        now = time.monotonic()
        if self._received_at is not None:
            # One request may arrive twice: GNU `timeout` signals the process and then its group.
            if now < self._received_at + _SECOND_REQUEST_AFTER_S:
                return
            # A dying parent or terminal may send SIGHUP several times: that is no second request.
            if number == signal.SIGHUP:
                return
            end_interrupted("ended at once by a second signal", number)
        self._received_at = now
        if self._is_final:
            self.has_late_signal = True
            return
        self.received = number
        if not self._hosts_agree:
            self.signal = number


@contextmanager
def listening_together(ends: Sequence[RunEnd]) -> Iterator[None]:
    """Let several runs of this process receive stop signals; see `RunEnd.listening`."""

    def receive(number: int, frame: Any) -> None:
        for end in ends:
            end.receive(number, frame)

    with handled(receive):
        yield
