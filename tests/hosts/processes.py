"""Runs with two hosts, as processes on this machine with two virtual devices each."""

import contextlib
import json
import signal
import socket
import subprocess

from tests import subprocesses
from tests.subprocesses import DEADLINE_S

NUM_DEVICES = 2
HEARTBEAT_S = 6

ENDLESS = ("--run.total-env-steps", "1000000000")
CONFIG = """
env: {suite: jax, id: Catch-v0}
devices: {actor: [0], learner: [0, 1]}
actor: {num_envs: 4, trajectory_length: 5}
learner: {policy_lag: 0}
agent: {name: 'tests.toys:ToyAgent', updates_per_cycle: 2}
checkpoint: {interval_s: 0.5}
run: {log_interval_env_steps: 400, total_env_steps: 1600}
"""


def environment(num_devices=NUM_DEVICES):
    """Return the environment variables of a process with virtual devices."""
    return subprocesses.environment(
        JAX_NUM_CPU_DEVICES=str(num_devices), SEBULBA_JOIN_TOKEN="a secret"
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, num_devices=NUM_DEVICES):
    """Start Python with virtual devices, for use in a `with`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocesses.started(*command, variables=environment(num_devices), **pipes)


def launch(config, run_dir, *arguments, num_hosts=2, num_devices=NUM_DEVICES):
    """Run a config on some hosts with the launcher; return its exit code and output."""
    command = ["-m", "sebulba.launch", "--local", num_hosts, "--virtual-devices", num_devices]
    command += [config]
    with start([*command, "--run-dir", run_dir, *arguments]) as process:
        return end_of(process)


@contextlib.contextmanager
def hosts(
    config,
    run_dir,
    *arguments,
    by_host=None,
    devices=(NUM_DEVICES,) * 2,
    train=("sebulba.train",),
    port=None,
    before_host_1=lambda: None,
):
    """Start two hosts without the launcher, which would end both if one fails; yield them.

    Args:
        by_host: additional arguments by host.
        devices: number of each host's virtual devices.
        train: the module to run and its first arguments.
        port: the coordinator's; default: a free one.
        before_host_1: called when host 0 has been started, and host 1 not yet.
    """
    port = port or free_port()
    place = ["--distributed.mode", "manual", "--distributed.coordinator", f"127.0.0.1:{port}"]
    place += ["--distributed.num-processes", 2, "--distributed.heartbeat-timeout-s", HEARTBEAT_S]
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(2):
            if number == 1:
                before_host_1()
            own = [*place, "--distributed.process-id", number, *(by_host or {}).get(number, ())]
            command = ["-m", *train, config, "--run-dir", run_dir]
            processes.append(
                stack.enter_context(start([*command, *arguments, *own], devices[number]))
            )
        yield processes


def end_of(process):
    """Wait for a process; return its exit code and output."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output


def directories(run_dir):
    """Return the directories of both hosts."""
    return run_dir, run_dir / "hosts" / "1"


def checkpoints(run_dir):
    """Return the steps of the checkpoints that both hosts have."""
    steps = [
        {int(path.name) for path in (directory / "checkpoints").glob("*") if path.name.isdecimal()}
        for directory in directories(run_dir)
    ]
    return sorted(set.intersection(*steps))


def summaries(run_dir):
    return [json.loads((path / "summary.json").read_text()) for path in directories(run_dir)]


def last_line(output):
    return output.strip().splitlines()[-1]


TERMINATED = 128 + signal.SIGTERM
