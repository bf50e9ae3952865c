"""Runs under Slurm, by the scripts of docs/clusters.md, on a cluster of nodes on this machine."""

import random
import re
import time

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.hosts.losing_nodes import (
    DEADLINE_S,
    HEARTBEAT,
    NUM_ENV_STEPS,
    NUM_KILLS,
    SLOW,
    check_end,
    variables,
)
from tests.hosts.processes import checkpoints, free_port
from tests.hosts.slurm_cluster import IS_HERE, Cluster
from tests.subprocesses import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_HERE, reason="needs Slurm: apt-get install slurm-wlm"),
]


def write_scripts(path, config, *flags):
    """Write the page's scripts, for two nodes without GPUs; return that of the job."""
    texts = [each.text for each in blocks_of(ROOT / "docs" / "clusters.md")]
    (start,) = [text for text in texts if "# start.sh CONFIG RUN_DIR FLAGS" in text]
    (job,) = [text for text in texts if "#SBATCH --nodes=4" in text]
    changes = {
        r"--nodes=4": "--nodes=2",
        r"#SBATCH --gpus-per-node=.*\n": "",
        r"--cpus-per-task=\d+": "--cpus-per-task=1",
        r"config\.yaml /shared/runs/x": " ".join(map(str, (config, path / "run", *flags))),
    }
    for old, new in changes.items():
        job, count = re.subn(old, new, job)
        assert count == 1, old
    for name, text in {"start.sh": start, "job.sh": job}.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    return path / "job.sh"


def test_a_requeued_job_reaches_its_goal_although_ten_nodes_are_killed(tmp_path, monkeypatch):
    run_dir, output, draw = tmp_path / "run", tmp_path / "output", random.Random(0)
    config, *flags = SLOW
    script = write_scripts(tmp_path, config, *flags, *HEARTBEAT)
    # Names of nodes resolve on a cluster, but not here.
    own = variables(JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{free_port()}")
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    with Cluster(tmp_path / "slurm", 3) as nodes:
        job = nodes.submit(script, "--output", output)
        for num_killed in range(NUM_KILLS):
            before = checkpoints(run_dir)[-1:]
            wait_for(lambda before=before: checkpoints(run_dir)[-1:] > before)
            time.sleep(draw.uniform(0.0, 1.0))
            victim = draw.choice(nodes.nodes_of(job))
            print(f"{time.monotonic() - began:.0f} s: {victim} of {nodes.nodes_of(job)} is killed")
            nodes.kill(victim)
            wait_for(lambda ended=num_killed: int(nodes.job(job)["Restarts"]) > ended)
            wait_for(lambda: nodes.job(job)["JobState"] == "RUNNING")
            nodes.start(victim)
        deadline = time.monotonic() + DEADLINE_S
        while nodes.job(job)["JobState"] in ("RUNNING", "COMPLETING"):
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(1.0)
        end = nodes.job(job)
        print(output.read_text(), nodes.log("slurmctld"))
    print(f"{time.monotonic() - began:.0f} s: {end['JobState']}, {end['Restarts']} restarts")
    assert (end["JobState"], end["ExitCode"]) == ("COMPLETED", "0:0")
    assert int(end["Restarts"]) == NUM_KILLS
    assert check_end(tmp_path)["env_steps"] >= NUM_ENV_STEPS
