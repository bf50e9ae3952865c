"""Runs that stop at a chosen learner cycle and go on from a checkpoint, for tests."""

import contextlib
import json
import subprocess
import time

from sebulba.ring.queues import Closed
from sebulba.run.assembly import assemble
from sebulba.run.autosave import Autosave
from sebulba.run.modes import run
from sebulba.run.state import resume
from sebulba.run.supervision import start_daemon
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from tests.subprocesses import started


def run_ring(config, directory=None, *, which=None, stop_at_cycle=None, warnings=None):
    """Runs a config, from a checkpoint and to a learner cycle if these are given.

    Returns:
        The ring, its rows of metrics, and what it was resumed from.
    """
    rows, resumed = [], None
    ring = assemble(config, write_row=rows.append)
    if which is not None:
        resumed = resume(ring, directory, which)
    autosave, after_cycle = None, lambda items: None
    if directory is not None:
        autosave = Autosave(
            ring,
            Checkpointer(directory, keep=config.checkpoint.keep, start_thread=start_daemon),
            interval_s=config.checkpoint.interval_s,
            on_warning=[].append if warnings is None else warnings.append,
        )
        after_cycle = autosave.after_cycle

    def stopping(items):
        after_cycle(items)
        if ring.learner.num_cycles == stop_at_cycle:
            while config.run.mode == "threads" and not is_ahead(ring):
                time.sleep(0.001)
            raise Closed

    try:
        with contextlib.suppress(Closed):
            run(
                ring,
                mode=config.run.mode,
                after_cycle=stopping,
                on_poll=autosave.poll if autosave else lambda: None,
            )
    finally:
        if autosave is not None:
            autosave.finish(threads_have_ended=True)
        ring.close_environments()
    return ring, rows, resumed


def is_ahead(ring):
    """Whether something has been acted that is not learned from."""
    return ring.ledger.total("acted") > ring.ledger.total("learned")


def comparable(rows):
    """Returns rows without what depends on timing."""
    return [
        {
            key: value
            for key, value in row.items()
            if key not in ("wall_time_s", "steps_per_second", "queue_depth")
            and not key.startswith(("time/", "all_reduce/"))
        }
        for row in rows
    ]


def rows_in(run_dir):
    """Returns the rows of `metrics.jsonl`."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def training(config_path, run_dir, *arguments):
    """Starts a training run in a process of its own, to be used in a `with`."""
    command = ("-m", "sebulba.train", config_path, "--run-dir", run_dir)
    return started(*command, *arguments, stderr=subprocess.PIPE)
