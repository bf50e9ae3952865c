"""Failures of Gymnasium's vector environments: which environment failed, and killing its workers.

The worker processes import this module, so it must not import jax.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import _async_worker

from sebulba.envs.gymnasium_results import ResultError
from sebulba.errors import ConfigError, describe_error
from sebulba.process import kill_group

_EXIT_WAIT_S = 1.0  # the exit code of a dead worker may arrive after its pipe has broken
_BLOCKED = {signal.SIGINT, signal.SIGTERM}  # while workers start
_NAME = "Worker<AsyncVectorEnv>"  # begins the names of Gymnasium's worker processes
_LONGEST_WAIT_S = 1.0  # at most this much of a stop counts towards the timeout


class WorkerError(RuntimeError):
    """An environment raised in a worker process; the message describes what and where.

    The error itself cannot always be sent: some errors cannot be pickled, others not be made of
    their message alone.
    """


class _DescribedErrors(gymnasium.Wrapper):
    """Raises every error of an environment as a `WorkerError` or, unchanged, a `ResultError`."""

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        with _describing():
            return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Take one step."""
        with _describing():
            return self.env.step(action)


@contextlib.contextmanager
def _describing() -> Iterator[None]:
    try:
        yield
    except ResultError:
        raise
    except Exception as error:
        raise WorkerError(describe_error(error)) from error


def wait_for_answers(
    pipes: Iterable[Connection | None],
    timeout_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until every worker has answered or ended.

    Time in which this process was stopped (Ctrl-Z, SIGSTOP, a frozen container) is not counted, as
    the workers are usually stopped with it.

    Args:
        pipes: to the workers; None for one that has failed.
        timeout_s: in seconds.
        now: seconds on a clock.

    Raises:
        TimeoutError: of `multiprocessing`, an answer is missing after `timeout_s`.
    """
    missing = {pipe for pipe in pipes if pipe is not None}
    left = timeout_s
    while missing:
        if left <= 0.0:
            raise multiprocessing.TimeoutError(f"no answer within {timeout_s:g} s")
        longest, began = min(left, _LONGEST_WAIT_S), now()
        missing.difference_update(wait(missing, longest))
        left -= min(now() - began, longest)


def describe_worker(vector_env: AsyncVectorEnv) -> str | None:
    """Return which worker failed and how; None if it is not known."""
    for env, pipe in enumerate(vector_env.parent_pipes):
        if pipe is None:  # Gymnasium closes the pipe of a worker that has reported an error.
            return f"env {env}"
    for process in vector_env.processes:
        process.join(_EXIT_WAIT_S / len(vector_env.processes))
    for env, process in enumerate(vector_env.processes):
        if process.exitcode is not None:
            return f"env {env}: its worker process ended with code {process.exitcode}"
    return None


def describe_unresponsive(vector_env: AsyncVectorEnv) -> str:
    """Return which workers have not answered."""
    envs = [
        env for env, pipe in enumerate(vector_env.parent_pipes) if pipe is None or not pipe.poll(0)
    ]
    return f"env {', '.join(map(str, envs))}"


@contextlib.contextmanager
def starting_workers() -> Iterator[None]:
    """Prepare this process for starting workers.

    Until a worker is in a process group of its own, Ctrl-C in a terminal reaches it as well, and
    SIGTERM ends it until it has a handler. So both are blocked in this thread, and with that in the
    workers. This process still receives them, in another thread or afterwards.
    """
    # First, since Python unblocks SIGINT when it has started this process, which removes the
    # workers' semaphores if this one is killed. It would warn of them after the run's last line.
    silence = "ignore:resource_tracker:UserWarning"
    sys.warnoptions.append(silence)  # which it inherits
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(silence)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def run_worker(
    index: int,
    make_env: Callable[[], gymnasium.Env],
    pipe: Connection,
    parent_pipe: Connection,
    shared_memory: Any,
    error_queue: "multiprocessing.Queue[Any]",
    *args: Any,
) -> None:
    """Run Gymnasium's worker in a process group of its own.

    So it can be killed together with the processes that its environment has started, such as game
    engines, and Ctrl-C in a terminal does not reach it. Nor does it end at SIGTERM, which Slurm and
    systemd send to all processes of a run: the run may need more steps, to save itself on all
    hosts. The worker ends when its pipe is closed, or is killed. An error of the environment's
    constructor is reported to the run, which would otherwise only learn that a pipe is broken.
    """
    os.setpgid(0, 0)
    # Processes that the environment starts inherit neither blocked signals, nor waiting ones, nor
    # this handler: they would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        env = make_env()
    except BaseException as error:
        is_wrapper = isinstance(error, ConfigError)
        kind = ConfigError if is_wrapper else WorkerError
        text = str(error) if is_wrapper else describe_error(error)
        error_queue.put((index, kind, text, traceback.format_exc()))
        pipe.recv()  # Gymnasium expects an answer to its first command.
        pipe.send((None, False))
        return
    _async_worker(
        index, lambda: _DescribedErrors(env), pipe, parent_pipe, shared_memory, error_queue, *args
    )


def kill(vector_env: AsyncVectorEnv) -> None:
    """Kill all workers at once; Gymnasium's `close` would wait for the answer of a dead one."""
    for process in vector_env.processes:
        kill_group(process)
    for process in vector_env.processes:
        process.join()
    for pipe in vector_env.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector_env.closed = True


@atexit.register
def _kill_all() -> None:
    """Kill workers that nobody has closed: `multiprocessing` would wait for them after SIGTERM."""
    for process in multiprocessing.active_children():
        if process.name.startswith(_NAME):
            kill_group(process)


def kill_left(vector_env: AsyncVectorEnv) -> None:
    """Kill what closed workers have left in their process groups, such as game engines."""
    for process in vector_env.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def describe_environment(error: Exception, vector_env: VectorEnv) -> str | None:
    """Return which environment of an in-process vector environment failed; None if not known."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # Gymnasium's exceptions do not name the environment, but the frame of its loop does: `i`.
        if frame.f_locals.get("self") is vector_env and "i" in frame.f_locals:
            return f"env {frame.f_locals['i']}"
    return None
