"""`python -m tests.hosts.slow_save CONFIG …`: `sebulba.train`, whose second host saves slowly."""

import time

import jax

from sebulba.process import run_command
from sebulba.storage.checkpoints import checkpointer
from sebulba.train import main

WRITE = checkpointer.write_text
LATER_S = 1.0


def write(path, text):
    if jax.process_index() == 1:
        time.sleep(LATER_S)
    WRITE(path, text)


if __name__ == "__main__":
    checkpointer.write_text = write
    run_command(main)
