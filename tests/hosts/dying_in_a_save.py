"""`python -m tests.hosts.dying_in_a_save CONFIG …`: `sebulba.train`, whose second host is killed.

In its third save, when it has written the arrays and the first host its whole share.
"""

import itertools
import os
import signal
import time

import jax

from sebulba.process import run_command
from sebulba.storage.checkpoints import checkpointer
from sebulba.train import main

WRITE = checkpointer.write_text
NUMBERS = itertools.count(1)
LATER_S = 1.0


def write(path, text):
    if next(NUMBERS) == 3 and jax.process_index() == 1:
        time.sleep(LATER_S)
        os.kill(os.getpid(), signal.SIGKILL)
    WRITE(path, text)


if __name__ == "__main__":
    checkpointer.write_text = write
    run_command(main)
