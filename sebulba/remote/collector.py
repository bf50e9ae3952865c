"""A collector whose cycles are acted by another process, which may die at any moment.

A process that died has lost nothing that the run needs: the same point is asked for again, of the
process that replaces it. So killing it changes no bit.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax

from sebulba.devices.memory import num_bytes
from sebulba.processes.remote_process import ProcessGone, ProcessLost, RemoteProcess
from sebulba.remote import failures, wire
from sebulba.remote.attendance import Attendance
from sebulba.remote.counts import RemoteCounter
from sebulba.remote.failures import RemoteError
from sebulba.remote.wire import Arrays, Record
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.clocks import ACT, WallClock
from sebulba.ring.collectors import CollectorLost
from sebulba.ring.deques import Closed
from sebulba.ring.records import NOTHING_BEFORE, ActCarry, Collected, Point
from sebulba.ring.threads import WatchdogError
from sebulba.storage.fingerprint import describe_cpu
from sebulba.types import EnvironmentSpec, Networks

_POLL_S = 0.2
# A start on a busy machine takes several seconds.
_SILENT_S = 10.0
# The process sets up since the start; there is none that is set up; it is set up; it knows the
# shapes of networks, and has acted no cycle yet; it has its environments where it left them after
# the last cycle.
_SETTING_UP, _LOST, _SET_UP, _NEW, _ACTING = "setting up", "lost", "set up", "new", "acting"


class RemoteTimeout(WatchdogError):
    """A process that acts has not answered for `actor.remote_timeout_s`."""


class RemoteCollector:
    """Has the cycles of one actor acted by another process."""

    def __init__(
        self,
        remote: RemoteProcess,
        functions: ActFunctions,
        *,
        name: str,
        settings: Record,
        share: Callable[[Networks], Any],
        shapes: Callable[[Networks], Collected],
        first_carry: Callable[[Networks], ActCarry],
        clock: WallClock,
        on_warning: Callable[[str], None],
        max_replayed_cycles: int,
        timeout_s: float | None,
        compile_timeout_s: float | None,
        attendance: Attendance,
        check: Callable[[], None],
    ):
        """Begin to set the process up.

        Args:
            remote: an `ActingProcess`, which acts.
            functions: of the device that trajectories come to.
            name: the actor's, for messages.
            settings: see `ActingProcess.set_up`.
            share: takes networks; returns what stands for their arrays in a call.
            shapes: takes networks; returns the shapes of what is collected.
            first_carry: takes networks; returns an actor's first carry with any environments.
            clock: the clock of the thread that calls `collect`.
            on_warning: takes one line of text.
            max_replayed_cycles: act cycles that a process repeats to return to a point in
                environments that cannot be stored.
            timeout_s: how long a start or a cycle may take; None: as long as it takes.
            compile_timeout_s: how long the first cycle of a process may take.
            attendance: of all remote actors.
            check: called while `begin` waits; what it raises ends the wait.
        """
        self._remote = remote
        self._functions = functions
        self._name = name
        self._settings = settings
        self._share = share
        self._shapes = shapes
        self._first_carry = first_carry
        self._clock = clock
        self._on_warning = on_warning
        self._timeout_s = timeout_s
        self._compile_timeout_s = compile_timeout_s
        self._attendance = attendance
        attendance.expect(name)
        self._check = check
        self._is_running = False  # the run, which has its first point
        self.has_joined = False  # it
        # Processes in turn that died before they could act, and since when.
        self._num_dead = 0
        self._dead_since: float | None = None
        self._longest_s = 0.0  # of the cycles so far
        self._where = name  # with machine and process, once they have answered
        self.counter = RemoteCounter()
        self._is_interrupted = False
        self.max_kept_cycles = max_replayed_cycles
        remote.call("set_up", settings)  # All processes do it at the same time.
        self._stage = _SETTING_UP

    @property
    def spec(self) -> EnvironmentSpec:
        """The spaces of a single environment."""
        return self._functions.run_spec.environment

    def begin(self, networks: Networks) -> Point:
        """Return the first point of a new run; see `Collector`.

        It waits for the process if the lag is exact.
        """
        carry = self._begin(networks) if self._attendance.is_exact else self._first_carry(networks)
        self._is_running = True
        if carry.env_state is not None:
            self.max_kept_cycles = 0  # They are in the point.
        boundary = None if self._attendance.is_exact else NOTHING_BEFORE
        return Point(cycle=0, carry=self._placed(carry), boundary=boundary)

    def wait(self) -> None:
        """Wait until a process is set up; see `Collector`."""
        while self._stage in (_SETTING_UP, _LOST):
            self._check_stop()
            try:
                if self._stage == _LOST:
                    self._remote.call("set_up", self._settings)
                self._stage = _LOST  # unless it answers
                record, _, _ = self._answer(self._timeout_s, is_start=True)
            except ProcessLost as lost:
                self._start_again(lost)
                continue
            self._compare_cpu(record)
            if self.has_joined:
                self._clock.lap(ACT)
            else:
                self._clock.restart()
            self._stage, self.has_joined = _SET_UP, True
            if self._attendance.join(self._name):
                self._on_warning(f"{self._where}: joins the run")

    def collect(self, networks: Networks, point: Point) -> Collected:
        """Have the cycle of a point acted; see `Collector`."""
        began_cpu_s = time.thread_time()
        try:
            collected = self._collect(networks, point)
            self.counter.add(num_cycles=1)
            return collected
        finally:
            self.counter.add(thread_cpu_s=time.thread_time() - began_cpu_s)

    def _collect(self, networks: Networks, point: Point) -> Collected:
        timeout_s = self._timeout_s
        self.wait()
        if self._stage == _SET_UP:
            self._begin(networks)
        is_new = self._stage == _NEW
        if is_new and timeout_s is not None:
            # It compiles, and repeats the stream's cycles.
            num_repeated = len(point.actions or ())
            timeout_s = self._compile_timeout_s
            if timeout_s is not None:
                timeout_s += num_repeated * self._longest_s
        like = self._shapes(networks)
        # The process that acted the last cycle has its environments at the point already.
        sent = point if is_new else dataclasses.replace(point, actions=None)
        numbers, packed, actions = wire.pack_point(sent)
        self.counter.add(bytes_sent=num_bytes((packed, actions)))
        arguments = self._share(networks), numbers, packed, actions
        began = time.monotonic()
        try:
            record, carry, trajectory = self._call("collect", *arguments, timeout_s=timeout_s)
        except ProcessLost as lost:
            self._stage = _LOST
            self._on_warning(f"{self._where}: lost in cycle {point.cycle}: {lost}")
            raise CollectorLost(f"{self._where}: {lost}") from lost
        assert carry is not None and trajectory is not None
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        self._stage = _ACTING
        collected = wire.unpack_collected(record["tally"], carry, trajectory, like=like)
        self._clock.lap(ACT)
        placed: Collected = self._placed(collected)
        return placed

    def interrupt(self) -> None:
        """End a wait for the process with `Closed`; see `Collector`."""
        self._is_interrupted = True

    def close(self) -> None:
        """Kill the process, whose environments are not closed."""
        self._remote.kill()

    def _placed(self, tree: Any) -> Any:
        return jax.device_put(tree, self._functions.device)

    def _begin(self, networks: Networks) -> ActCarry:
        """Tell the process the shapes of networks; return its first carry in a new run."""
        like = self._shapes(networks).carry
        carry: Arrays | None = None
        while carry is None:
            self.wait()
            try:
                shared = self._share(networks)
                _, carry, _ = self._call("begin", shared, timeout_s=self._compile_timeout_s)
            except ProcessLost as lost:
                self._stage = _LOST
                self._start_again(lost)
        self._stage = _NEW
        self._num_dead, self._dead_since = 0, None
        unpacked: ActCarry = wire.unpack(carry, like=like, what=f"the carry of {self._name}")
        return unpacked

    def _start_again(self, lost: ProcessLost) -> None:
        """Count a process that died before it could act, and pause.

        Raises:
            RemoteTimeout: they have died for too long.
        """
        now = time.monotonic()
        self._num_dead += 1
        if self._dead_since is None:
            self._dead_since = now
        elif self._timeout_s is not None and now - self._dead_since > self._timeout_s:
            self._dead_since = math.inf  # Says so once.
            self._be_late(
                f"{self._where}: {self._num_dead} processes in turn died before they were set up,"
                f" within actor.remote_timeout_s, {self._timeout_s:g} s: {lost}"
            )
        time.sleep(_POLL_S)  # A process that cannot be reached says so at once.

    def _be_late(self, text: str) -> None:
        """Say that the run continues without the actor, or raise if it does not."""
        if not self._attendance.run_continues:
            raise RemoteTimeout(text)
        self._on_warning(f"{text}. The run continues without it")

    def _call(
        self, method: str, *arguments: Any, timeout_s: float | None
    ) -> tuple[Record, Arrays | None, Arrays | None]:
        """Call a method of the process, and return what it returned; see `_answer`."""
        self._remote.call(method, *arguments)
        return self._answer(timeout_s)

    def _answer(
        self, timeout_s: float | None, *, is_start: bool = False
    ) -> tuple[Record, Arrays | None, Arrays | None]:
        """Return what the last call has returned, waiting for it up to `timeout_s`.

        If the process is being set up (`is_start`), a line says after a while who is awaited.

        Raises:
            ProcessLost: it died, or the call reached one that has replaced it.
            Closed: the run is stopping.
            EnvironmentFault: as `Collector.collect` raises it, like StreamLost.
            ConfigError: the process cannot act in this run.
            RemoteError: it failed, or will not be started again.
            RemoteTimeout: it has not answered in time, and is waited for.
        """
        began = time.monotonic()
        is_told, is_late = not is_start, False
        while (answer := self._look()) is None:
            self._check_stop()
            seconds = time.monotonic() - began
            if not is_told and seconds > _SILENT_S:
                is_told = True
                self._say_who_is_missing()
            if not is_late and timeout_s is not None and seconds > timeout_s:
                is_late = True
                if self._attendance.run_continues and not self.has_joined:
                    self._say_who_is_missing()
                    continue
                self._be_late(
                    f"{self._where}: expected an answer within {timeout_s:g} s"
                    " (actor.remote_timeout_s, and run.compile_timeout_s for its first cycle), got"
                    " none. Either no machine has room for it (actor.remote_cpus,"
                    " actor.remote_gpus), or its process hangs"
                )
        record = answer[0]
        self.counter.add_answer(answer)
        self._where = f"{self._name} on {record['machine']}, process {record['pid']}"
        for line in record.get("warnings", ()):
            self._on_warning(f"{self._name}: {line}")
        failures.raise_of(record, self._where)
        return answer

    def _look(self) -> tuple[Any, ...] | None:
        try:
            return self._remote.wait(_POLL_S)
        except ProcessGone as gone:
            raise RemoteError(f"{self._where}: no process will act again: {gone}") from gone

    def _say_who_is_missing(self) -> None:
        line = self._attendance.report(self._name, self._timeout_s)
        if line is not None:
            self._on_warning(line)

    def _compare_cpu(self, record: Record) -> None:
        if self._attendance.is_exact and record["cpu"] != (own := describe_cpu()):
            self._on_warning(
                f"remote actors on {record['machine']}: its kind of CPU, {record['cpu']['model']},"
                f" differs from that of the learner's host, {own['model']}: the networks may differ"
                " in some bits from those of threads"
            )

    def _check_stop(self) -> None:
        if self._is_interrupted:
            raise Closed
        if not self._is_running:
            self._check()
