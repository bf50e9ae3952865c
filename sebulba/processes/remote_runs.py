"""Train runs that processes on other machines hold, each with its own. Imports no jax."""

import collections
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.errors import ConfigError
from sebulba.process import EXIT_SIGNAL_BASE, handled
from sebulba.processes.remote_process import ProcessGone, ProcessLost, RemoteProcess
from sebulba.processes.run_holder import Order
from sebulba.processes.runs import TrainingRun

EXIT_LOST = EXIT_SIGNAL_BASE + signal.SIGKILL
"""Exit code of a run whose process or machine is gone: that of a process which was killed."""
_POLL_S = 0.2


class RemoteRun:
    """A run elsewhere, which is started again where there is room when it is lost."""

    def __init__(
        self,
        name: str,
        order: Order,
        holder: RemoteProcess,
        *,
        on_line: Callable[[str], None],
        on_message: Callable[[str], None],
        is_again: bool = False,
    ):
        """Ask for the run to be started.

        Args:
            name: the run's, in messages.
            order: what to run.
            holder: a `RunHolder` elsewhere, once there is room.
            on_line: takes each line of its output, if `order` has no log.
            on_message: takes a line of text when it is lost, and when it continues.
            is_again: another process began it and was lost.
        """
        self.machine: str | None = None  # where it runs; None: it waits for a machine
        self.num_starts = 0
        self.code: int | None = None  # of its end, as a shell gives it
        self.is_lost = False  # its end is that of its holder
        self._name, self._order, self._holder = name, order, holder
        self._on_line, self._on_message = on_line, on_message
        self._is_again = is_again
        self._incomplete = b""  # the unfinished last line
        self._signals: list[int] = []  # since the last call
        self._last_signal: int | None = None
        self._ask()

    def send_signal(self, number: int) -> None:
        """Hand a signal to the run. One that waits for a machine has ended then."""
        self._last_signal = number
        if self.machine is not None:
            self._signals.append(number)
        elif self.code is None:
            self.end(EXIT_SIGNAL_BASE + number)

    def end(self, code: int) -> None:
        """End the run at once with an exit code; a machine may still save it."""
        self.code = code
        self._holder.kill()

    def look(self) -> None:
        """Take note of what has happened; returns at once.

        Raises:
            ConfigError: a machine cannot run it. It has ended then.
        """
        if self.code is not None:
            return
        try:
            returned = self._holder.wait(0.0)
        except ProcessLost:
            if self._last_signal is not None:
                self.end(EXIT_SIGNAL_BASE + self._last_signal)
                return
            if self.machine is not None:
                place = f"its process on {self.machine}"
                self._on_message(f"{self._name}: {place} is lost or cannot be reached")
            self.machine = None
            self._ask()
            return
        except ProcessGone as gone:
            self._on_message(f"{self._name}: lost: {gone}")
            self.is_lost = True
            self.end(EXIT_LOST)
            return
        except ConfigError:
            self.end(EXIT_LOST)
            raise
        if returned is not None:
            self._take(*returned)

    def _take(self, answer: dict[str, Any]) -> None:
        if answer["problem"] is not None:
            self.end(EXIT_LOST)
            raise ConfigError(answer["problem"])
        if self.machine is None and self.num_starts:
            self._on_message(f"{self._name}: continues on {answer['machine']}")
        self.num_starts += answer["is_start"]
        self.machine = answer["machine"]
        *lines, self._incomplete = (self._incomplete + answer["output"]).split(b"\n")
        if answer["code"] is not None and self._incomplete:
            lines.append(self._incomplete)
        for line in lines:
            self._on_line(line.decode(errors="replace"))
        if answer["code"] is None:
            self._ask()
        else:
            self.end(answer["code"])

    def _ask(self) -> None:
        signals, self._signals = self._signals, []
        self._holder.call("follow", self._order, self._is_again or self.num_starts > 0, signals)


def train_elsewhere(
    runs: Sequence[TrainingRun],
    *,
    start: Callable[[TrainingRun], RemoteRun],
    num_jobs: int,
    on_start: Callable[[TrainingRun, str], None],
    on_end: Callable[[TrainingRun, int], None],
) -> int:
    """Train runs in their order, each on a machine that has room for it.

    As `train_runs` in all that can be seen: the next run starts even if one fails, and a signal
    ends the current runs, which save.

    Args:
        runs: the runs.
        start: asks for a run to be started.
        num_jobs: the number of runs that are asked for at a time.
        on_start: called with each run that has started, and its machine's name.
        on_end: called with each run that has ended, and its exit code.

    Returns:
        The exit code, as `train_runs` returns it.

    Raises:
        ConfigError: a machine cannot run them. Runs that had started have saved.
    """
    waiting = collections.deque(runs)
    running: list[tuple[TrainingRun, RemoteRun]] = []
    failures: list[int] = []
    signals: list[int] = []
    refusal: ConfigError | None = None
    with handled(lambda number, frame: signals.append(number)):
        num_sent = 0
        while running or (waiting and not signals):
            while waiting and len(running) < num_jobs and not signals:
                run = waiting.popleft()
                running.append((run, start(run)))
            time.sleep(_POLL_S)
            new, num_sent = signals[num_sent:], len(signals)
            for run, remote in list(running):
                had_started = remote.num_starts > 0
                try:
                    for number in new:
                        remote.send_signal(number)
                    remote.look()
                except ConfigError as error:
                    if refusal is None:
                        refusal = error
                        signals.append(signal.SIGTERM)
                if remote.num_starts and not had_started and remote.machine is not None:
                    on_start(run, remote.machine)
                if remote.code is None:
                    continue
                running.remove((run, remote))
                if signals and not remote.num_starts:  # It ended because of the signal.
                    waiting.append(run)
                    continue
                failures += [remote.code] if remote.code else []
                on_end(run, remote.code)
    if refusal is not None:
        raise refusal
    if not failures and waiting and signals:
        return EXIT_SIGNAL_BASE + signals[-1]
    return failures[0] if failures else 0
