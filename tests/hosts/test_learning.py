"""Shipped configs learn over two hosts."""

import json
import subprocess
import sys

import pytest

from tests.conftest import HASTE
from tests.extras import needs_search
from tests.hosts.processes import environment, summaries
from tests.subprocesses import ROOT

DEADLINE_S = 1800.0


def learn(name, flags, run_dir):
    """Run a shipped config on two hosts; return both summaries."""
    command = ["-m", "sebulba.launch", "--local", "2", "--virtual-devices", "1"]
    variables = environment(1)
    # The run takes minutes, so optimised code is worth its compilation.
    for variable in HASTE:
        variables.pop(variable, None)
    subprocess.run(
        [sys.executable, *command, f"configs/{name}.yaml", *flags, "--run-dir", str(run_dir)],
        cwd=ROOT,
        env=variables,
        timeout=DEADLINE_S,
        check=True,
    )
    return summaries(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "threshold"),
    [
        # The batch of an update is that of both hosts: as large as one host's with 16.
        pytest.param("impala_cartpole", ("--actor.num-envs", "8"), 475.0, id="impala"),
        pytest.param("r2d2_recall", (), 0.9, id="r2d2"),
        pytest.param("gumbel_muzero_catch", (), 0.9, id="gumbel_muzero", marks=needs_search),
    ],
)
def test_two_hosts_learn_with_the_same_networks(name, flags, threshold, tmp_path):
    first, second = learn(name, flags, tmp_path / "run")
    assert first["final_episode_return_mean"] >= threshold, json.dumps(first)
    assert first["networks_crc32"] == second["networks_crc32"]
