"""Starts programs that print the env steps they have learned from, and measures their speed."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from benchmarks.harness import Timed

PREFIX = "env steps: "
"""What each program prints before the number of env steps so far."""


class EndedError(Exception):
    """A program ended before it was measured."""


class Program:
    """A running program, and the counts that it prints."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]):
        self.process = process
        self._errors = errors

    def counts(self) -> Iterator[tuple[float, int]]:
        """Yield the time of each further count, in seconds, and the env steps so far."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(PREFIX):
                yield time.perf_counter(), int(line.removeprefix(PREFIX))

    def measure(self, warm_up_s: float, seconds: float) -> Timed:
        """Return the env steps of `seconds`, which begin after the warm-up.

        Raises:
            EndedError: the program has ended.
        """
        ticks: list[tuple[float, int]] = []
        begin = 0.0
        for now, env_steps in self.counts():
            begin = begin or now + warm_up_s
            if now >= begin:
                ticks.append((now, env_steps))
            if now >= begin + seconds and len(ticks) >= 3:
                (first_s, first), (last_s, last) = ticks[0], ticks[-1]
                return Timed(amount=last - first, seconds=last_s - first_s)
        raise EndedError(f"expected at least 3 counts of env steps, got {len(ticks)}")

    def wait_for_count(self) -> float:
        """Return the time of the first count that is not 0, in seconds.

        Raises:
            EndedError: the program has ended.
        """
        for now, env_steps in self.counts():
            if env_steps > 0:
                return now
        raise EndedError("expected a count of env steps, got none")

    def error_output(self) -> str:
        """Return what the program has written to stderr so far."""
        # Not `seek`: the program writes at the position of the same open file.
        return os.pread(self._errors.fileno(), 1 << 24, 0).decode(errors="replace")


@contextlib.contextmanager
def started(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Start a program, kill it at the end, and remove its temporary files.

    Args:
        command: the program.
        variables: of its environment, besides those of this process and those that name the
            directory of temporary files.

    Raises:
        SystemExit: an `EndedError` was raised meanwhile; with what the program wrote to stderr.
    """
    # `import sebulba` adds flags that older versions of jaxlib abort at; ours adds them again.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with (
        # A process that Ray has started may still write, until it notices that the program is gone.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
            env=environment | temporary_variables(directory) | dict(variables or {}),
        ) as process,
    ):
        program = Program(process, errors)
        try:
            yield program
        except EndedError as error:
            process.wait()
            sys.exit(f"{program.error_output()}\n{error}: {' '.join(command)}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def temporary_variables(directory: str) -> dict[str, str]:
    """Return the environment variables that make a directory that of temporary files."""
    return {"TMPDIR": directory, "RAY_TMPDIR": directory}


def bytecode_variables(directory: str) -> dict[str, str]:
    """Return the environment variables that make Python keep bytecode, in a directory.

    The bytecode of packages may be missing or out of date, and a start would compile it.
    """
    return {"PYTHONPYCACHEPREFIX": directory, "PYTHONDONTWRITEBYTECODE": ""}


def cache_variables(directory: str) -> dict[str, str]:
    """Return the environment variables of JAX's compilation cache in a directory."""
    return {
        "JAX_COMPILATION_CACHE_DIR": directory,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
