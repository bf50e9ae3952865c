"""`python -m tests.hosts.unshared_train DIRECTORY CONFIG …`: `sebulba.train` with an own DIRECTORY.

As on a machine whose disk the others do not see.
"""

import ctypes
import os
import sys

from sebulba.process import run_command
from sebulba.train import main

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_PRIVATE = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC


def hide(directory):
    """Mount an empty file system over a directory, which only this process sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = (
        lambda: libc.unshare(_NEW_MOUNTS),
        lambda: libc.mount(b"none", b"/", None, _PRIVATE, None),
        lambda: libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, None),
    )
    for step in steps:
        if step() != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    hide(sys.argv.pop(1))
    run_command(main)
