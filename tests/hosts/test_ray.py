"""Hosts that `sebulba.launch --ray` starts, on a cluster of nodes on this machine."""

import contextlib
import random
import re
import signal
import subprocess

import pytest

from tests.docs.blocks import ROOT
from tests.hosts.losing_nodes import (
    DEADLINE_S,
    HEARTBEAT,
    NUM_ENV_STEPS,
    NUM_KILLS,
    SLOW,
    check_end,
    variables,
)
from tests.hosts.processes import checkpoints, summaries
from tests.subprocesses import started, wait_for

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

CATCH = ROOT / "configs" / "impala_catch.yaml"
CARTPOLE = ROOT / "configs" / "impala_cartpole.yaml"


class Cluster:
    """Nodes with one CPU each; the last two are alive."""

    def __init__(self, process):
        self._process = process
        self.address = process.stdout.readline().strip()
        self._alive = [0, 1]

    def kill(self, which):
        """End one of the nodes that are alive, as if its machine were gone."""
        self._tell(f"kill {self._alive.pop(which)}")

    def replace(self, which):
        """Kill a node, and start another one."""
        self.kill(which)
        self._alive.append(self._tell("add") - 1)

    def _tell(self, command):
        print(command, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def cluster(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with started("-m", "tests.hosts.ray_cluster", 2, variables=variables(), **pipes) as process:
        yield Cluster(process)
        process.stdin.close()
        process.wait(60)


@contextlib.contextmanager
def launched(nodes, tmp_path, config, *flags):
    """Launch two hosts, for use in a `with`; yields the command's process and its output file."""
    output = tmp_path / "output"
    command = ("-m", "sebulba.launch", "--ray", 2, config, "--run-dir", tmp_path / "run")
    own = variables(RAY_ADDRESS=nodes.address)
    with output.open("a") as file:
        pipes = {"stdout": file, "stderr": subprocess.STDOUT}
        with started(*command, *HEARTBEAT, *flags, variables=own, **pipes) as process:
            yield process, output


def num_restarts_in(output):
    return len(re.findall(r"\(restart \d+ of at most", output.read_text()))


def test_cartpole_is_solved_after_a_node_was_killed(tmp_path):
    run_dir, flags = tmp_path / "run", ("--actor.num-envs", 8, "--checkpoint.interval-s", 2)
    with (
        cluster(tmp_path) as nodes,
        launched(nodes, tmp_path, CARTPOLE, *flags) as (process, output),
    ):
        wait_for(lambda: len(checkpoints(run_dir)) > 1, process)
        nodes.replace(1)
        assert process.wait(DEADLINE_S) == 0, output.read_text()
    print(output.read_text())
    assert num_restarts_in(output) == 1
    assert "resumes at cycle" in output.read_text()
    assert check_end(tmp_path)["final_episode_return_mean"] >= 475.0


def test_a_run_reaches_its_goal_although_ten_nodes_are_killed(tmp_path):
    run_dir, draw = tmp_path / "run", random.Random(0)
    with cluster(tmp_path) as nodes, launched(nodes, tmp_path, *SLOW) as (process, output):
        for num_killed in range(NUM_KILLS):
            before = checkpoints(run_dir)[-1:]
            wait_for(lambda before=before: checkpoints(run_dir)[-1:] > before, process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.0, 1.0))
            nodes.replace(draw.randrange(2))
            wait_for(lambda ended=num_killed: num_restarts_in(output) > ended, process)
        assert process.wait(DEADLINE_S) == 0, output.read_text()
    print(output.read_text())
    assert num_restarts_in(output) == NUM_KILLS
    assert check_end(tmp_path)["env_steps"] >= NUM_ENV_STEPS


def test_a_run_continues_on_the_node_that_is_left(tmp_path):
    run_dir = tmp_path / "run"
    flags = ("--wait-s", 5, "--checkpoint.interval-s", 1)
    goal = ("--run.total-env-steps", 60_000, "--run.stop-at-return", "null")
    with cluster(tmp_path) as nodes:
        with launched(nodes, tmp_path, CATCH, *flags, *goal) as (process, output):
            wait_for(lambda: checkpoints(run_dir), process)
            nodes.kill(0)
            assert process.wait(DEADLINE_S) == 0, output.read_text()
        assert "hosts: 1 instead of 2" in output.read_text()
        assert num_restarts_in(output) == 1


def test_a_run_that_fails_ends_with_its_code_and_is_not_started_again(tmp_path):
    wrong = ("--env.options", "{rows: 0}")
    with (
        cluster(tmp_path) as nodes,
        launched(nodes, tmp_path, CATCH, *wrong) as (process, output),
    ):
        assert process.wait(DEADLINE_S) == 2
    assert num_restarts_in(output) == 0


def test_ctrl_c_saves_all_hosts_and_without_a_cluster_they_are_here(tmp_path):
    command = ("-m", "sebulba.launch", "--ray", 2, CATCH, "--run-dir", tmp_path / "run")
    endless = ("--run.total-env-steps", 2_000_000_000, "--run.stop-at-return", "null")
    flags = ("--checkpoint.interval-s", 1, *endless)
    own, output = variables(), tmp_path / "output"
    with (
        output.open("w") as file,
        started(*command, *flags, variables=own, stderr=file) as process,
    ):
        wait_for(lambda: checkpoints(tmp_path / "run"), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130, output.read_text()
    first, second = summaries(tmp_path / "run")
    assert first["status"] == second["status"] == "interrupted"
    assert first["learner_cycles"] == second["learner_cycles"]
    assert "[1] " in output.read_text()
