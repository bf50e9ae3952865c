"""What every command does with its process: exit codes, streams, signals, threads, its end.

Imports no jax.
"""

import atexit
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # The package imports this file before a command handles signals.
    import multiprocessing.process

_LIBRARIES_DEADLINE_S = 2.0
_before_end: list[Callable[[], None]] = []

CALLER_VARIABLE = "SEBULBA_CALLER"
"""Environment variable: how the command `sebulba` was called; inherited by its processes."""

EXIT_DONE = 0
EXIT_CONFIG = 2
"""The config or the command line is wrong; nothing ran."""
EXIT_FAILED = 3
"""A component failed; the run can be resumed from its last checkpoint."""
EXIT_CHECKPOINT = 4
"""The checkpoint is damaged or does not fit the run."""
EXIT_STUCK = 5
"""A timeout ended the run: an environment, the learner or the start hangs."""
EXIT_NON_FINITE = 6
"""The loss or the gradients were not finite."""
EXIT_UNSAVED = 7
"""The last state of a run that its goal or a signal ended could not be saved, or the run directory
is gone."""
EXIT_NOT_JOINED = 8
"""The hosts of the run did not find each other at the start; nothing ran."""
EXIT_ROUNDING = 9
"""`sebulba verify`: the repetition has other bits, which are consistent with rounding."""
EXIT_OTHER_RESULT = 10
"""`sebulba verify` and `sebulba diff`: the runs have other numbers."""
EXIT_SIGNAL_BASE = 128
"""Plus the number of the signal that stopped the run: 129 SIGHUP, 130 SIGINT, 143 SIGTERM."""


def open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, on the null device.

    After `2>&-` the next file that the run opens would become descriptor 2, and C++ libraries would
    write their logs into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - open for good
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def program(name: str) -> str:
    """Return how the user calls a command: `sebulba train` or `python -m sebulba.train`."""
    caller = os.environ.get(CALLER_VARIABLE)
    return f"{caller} {name}" if caller else f"python -m sebulba.{name}"


def is_command() -> bool:
    """Return whether this process is a command: `sebulba` or `python -m sebulba.NAME`."""
    script = sys.argv[0] if sys.argv else ""
    if script == "-m":  # Python looks for the module.
        modules = (argument.removeprefix("-m") for argument in sys.orig_argv[1:])
        return any(module.partition(".")[0] == "sebulba" for module in modules)
    # A worker process has the `sys.argv` of the command that started it.
    return os.path.basename(script) == "sebulba" and script in sys.orig_argv


def end_on_stop_signals(text: str) -> None:
    """Let a stop signal end the process at once, with one line of text and the signal's code."""
    _receive_stop_signals(lambda number, frame: end_interrupted(text, number))


def run_command(main: Callable[[], None], *, interrupted: str = "interrupted") -> None:
    """Run the `main` of a command line, the last thing that this process does.

    A stop signal that `main` does not handle itself ends the process with one line that says
    `interrupted`, and as a shell reports the signal.

    If nobody reads the output any more, as after `| head -1`, the process ends without a traceback:
    with the exit code of `main`, or as a shell reports the signal SIGPIPE.
    """
    open_standard_streams()
    end_on_stop_signals(interrupted)
    # Nearly all objects of a start live as long as the process. Passes over them, to its end, took
    # 0.4 of the 2.9 s of the shortest run.
    gc.set_threshold(50_000, 20, 10)
    atexit.register(gc.freeze)
    # The last of all exit functions. After them the interpreter takes its modules apart, which with
    # JAX takes a while, and a signal would end the process as if it had interrupted `main`.
    atexit.register(_receive_stop_signals, signal.SIG_IGN)
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        unread = [stream for stream in (1, 2) if _is_unread(stream)]
        if not unread:
            raise
        # The interpreter writes what is left in the buffers at its end.
        for stream in unread:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        code = error.__context__.code if isinstance(error.__context__, SystemExit) else None
        sys.exit(code or EXIT_SIGNAL_BASE + signal.SIGPIPE)


def end_interrupted(text: str, number: int) -> NoReturn:
    """End the process at once, in the handler of a stop signal, with one line of text."""
    with suppress(OSError):  # Nobody may be reading.
        # Not by `print`, which the signal may have interrupted, and which then raises.
        os.write(2, f"sebulba: {text}\n".encode())
    end_process(EXIT_SIGNAL_BASE + number)


def _is_unread(stream: int) -> bool:
    poll = select.poll()
    poll.register(stream, 0)
    return bool(poll.poll(0))


def leave(code: int) -> NoReturn:
    """End the process of a run that has ended, also if threads of libraries do not end.

    The interpreter would join them for as long as they run: with no inodes left on the disk, those
    of a checkpoint library kept a process for more than five minutes.
    """
    _receive_stop_signals(lambda number, frame: end_at_once(code))  # Nothing is interrupted.
    deadline = time.monotonic() + _LIBRARIES_DEADLINE_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                end_at_once(code)
    sys.exit(code)


def start_daemon(target: Callable[[], None], name: str) -> threading.Thread:
    """Start and return a thread that does not keep the process alive; nothing else creates one."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def kill_group(process: "multiprocessing.process.BaseProcess") -> None:
    """Kill a process that has started, and those of its process group if it leads one."""
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def call_before_end(function: Callable[[], None]) -> Callable[[], None]:
    """Have `end_process` call a function; return another that takes it back."""
    _before_end.append(function)
    return lambda: _before_end.remove(function)


def end_process(code: int) -> NoReturn:
    """End the process without waiting for threads that cannot be joined.

    Interpreter shutdown would destroy state that these threads still use, and crash. Worker
    processes of environments are killed: one that hangs would outlive the run.
    """
    for function in _before_end:
        start_daemon(function, "end").join(_LIBRARIES_DEADLINE_S)
    processes = sys.modules.get("multiprocessing.process")  # None: it has started no worker
    for child in getattr(processes, "active_children", list)():
        kill_group(child)
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        # Whoever read them may be gone, or a signal has come within a write: the code still counts.
        with suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    os._exit(code)


@contextmanager
def handled(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Hand stop signals to `receive`, as a handler; in the main thread only.

    Python installs no handlers in other threads, which receive nothing.
    """
    previous = _receive_stop_signals(receive)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _receive_stop_signals(
    receive: Callable[[int, Any], None] | signal.Handlers,
) -> dict[int, Any]:
    """Make `receive` the handler of all stop signals; return the previous handlers.

    Does nothing outside of the main thread.

    SIGHUP is one, since a terminal or ssh connection that closes sends it; under `nohup`, which has
    it ignored, it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, receive) for number in numbers}
