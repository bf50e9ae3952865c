"""Training runs in processes of their own, and the rows of metrics that runs leave."""

import json
import subprocess

from tests.subprocesses import started


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
