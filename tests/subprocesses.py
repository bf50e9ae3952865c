"""Processes that tests start: none outlives the test that started it, even if that is killed."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from tests.conftest import CACHE

ROOT = pathlib.Path(__file__).parent.parent
NUM_CPU_DEVICES = 4  # as in conftest: XLA divides the cores among them
# Generous: it bounds how long a test hangs, not how long it takes.
DEADLINE_S = 240.0
# The kernel kills the process when the thread that started it ends. Not by `preexec_fn`: JAX warns
# of a fork in a process with threads. A run's own children listen for its end themselves.
_SETPRIV = shutil.which("setpriv")
_END_WITH_PARENT = (_SETPRIV, "--pdeathsig", "KILL", "--") if _SETPRIV else ()


def environment(**variables):
    """Returns the variables of a process that compiles as the tests do, and these."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(NUM_CPU_DEVICES),
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **variables,
    }


@contextlib.contextmanager
def started(*arguments, variables=None, cwd=ROOT, **pipes):
    """Starts Python with arguments; kills what is left of it, and of what it started, at the end.

    Args:
        variables: all environment variables; `environment()` if there are none.
        cwd: where.
        pipes: `stdout` and `stderr`, as `subprocess.Popen` takes them.
    """
    with subprocess.Popen(
        [*_END_WITH_PARENT, sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment() if variables is None else variables,
        text=True,
        start_new_session=True,
        **pipes,
    ) as process:
        try:
            yield process
        finally:
            _kill_session(process.pid)


def run_python(*arguments, **options):
    """Runs Python with arguments to its end, and returns it with what it wrote."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(*arguments, **pipes, **options) as process:
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def wait_for(condition, *processes):
    """Waits until the condition holds, while the processes run."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pids_in_session(leader):
    """Returns the numbers of a session's processes, its leader's included."""
    pids = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                pids.append(pid)
    return pids


def _kill_session(leader):
    # A process group is not enough: runs of several seeds are in groups of their own.
    for pid in pids_in_session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
