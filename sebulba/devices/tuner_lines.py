"""Drop the lines that XLA's tuner writes to stderr by the hundred."""

import os
import subprocess
import sys

# XLA logs this as an error, so a threshold of its log would hide all other errors, too.
_LINE = b"Delay kernel timed out"
_FILTER = f"""
import sys
for line in sys.stdin.buffer:
    if {_LINE!r} not in line:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


def drop_tuner_lines() -> None:
    """Drop XLA's complaints about the accuracy of its tuner's clock; every other line stays.

    Stderr of native code and of child processes goes through a process that ends when all of them
    have ended, so what XLA says before it aborts is not lost. Python's `sys.stderr` writes to the
    terminal as before.
    """
    try:
        terminal = os.dup(2)
    except OSError:  # closed: `2>&-`
        return
    read_end, write_end = os.pipe()
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FILTER],
        stdin=read_end,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C ends it after this process.
    )
    os.close(read_end)
    sys.stderr.flush()
    sys.stderr = open(  # noqa: SIM115 - for as long as the process lives
        terminal, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors
    )
    os.dup2(write_end, 2)
    os.close(write_end)
