"""Remote actors on a Ray that the command starts, with processes that are really killed."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import time
import uuid

import pytest

from sebulba.config import ActorConfig
from sebulba.errors import ConfigError
from sebulba.remote.ray_processes import ray_processes
from tests.subprocesses import environment, run_python, started, wait_for

pytest.importorskip("ray", reason="needs the extra ray")

_MARK = "SEBULBA_TEST_RUN"


def processes_with(mark):
    """Returns `{pid: command line}` of the processes that inherited an environment variable."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and f"{_MARK}={mark}".encode() in (
                (folder / "environ").read_bytes()
            ):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode()
    return found


def actors_of(mark):
    return [pid for pid, line in processes_with(mark).items() if "ActingProcess" in line]


def arguments(config, directory, *flags):
    flags = ("--run.stop-at-return", "null", "--checkpoint.interval-s", "null", *flags)
    return "-m", "sebulba.train", config, "--run-dir", directory, *flags


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


def crc_of_threads(config, directory, *flags):
    done = run_python(*arguments(config, directory, *flags))
    assert done.returncode == 0, done.stderr
    return summary_of(directory)["networks_crc32"]


def kill_while_it_trains(config, directory, *flags, num_kills, pause_s):
    """Trains with remote actors, kills random ones of them, and returns summary and output."""
    mark = uuid.uuid4().hex
    chosen = random.Random(0)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    variables = environment(**{_MARK: mark})
    with started(*arguments(config, directory, *flags), variables=variables, **pipes) as process:
        metrics = directory / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
        for _ in range(num_kills):
            wait_for(lambda: actors_of(mark), process)
            with contextlib.suppress(ProcessLookupError):
                os.kill(chosen.choice(actors_of(mark)), signal.SIGKILL)
            time.sleep(chosen.uniform(*pause_s))
        stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    wait_for(lambda: not processes_with(mark))
    return summary_of(directory), stdout + stderr


def test_a_killed_actor_of_ray_changes_no_bit_and_leaves_no_process(tmp_path):
    steps = ("--run.total-env-steps", "40000", "--run.log-interval-env-steps", "1000")
    summary, output = kill_while_it_trains(
        "impala_catch",
        tmp_path / "remote",
        *("--actor.threads-per-device", "1", "--actor.remote", "1", *steps),
        num_kills=1,
        pause_s=(0, 0),
    )
    assert "lost in cycle" in output
    assert "(raylet)" not in output  # Our line says it, in less than 1,200 characters.
    assert [each["restarts"] for each in summary["remote_actors"].values()] == [1]
    assert summary["networks_crc32"] == crc_of_threads("impala_catch", tmp_path / "local", *steps)
    for account in summary["ledger"]:
        assert account["acted"] == account["learned"] + account["discarded"]


def test_a_ray_of_our_own_is_started_although_another_runs_on_this_machine(monkeypatch):
    import ray

    options = {}

    def init(**given):
        options.update(given)
        raise ConnectionError("no more")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(ConfigError, match="no more"),
        ray_processes(ActorConfig(remote=3), on_message=print),
    ):
        pass
    assert options["address"] == "local" and options["num_cpus"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "env_steps"), [("impala_catch", 1_000_000), ("impala_cartpole", 600_000)]
)
def test_twenty_kills_change_no_bit(config, env_steps, tmp_path):
    steps = ("--run.total-env-steps", str(env_steps))
    summary, output = kill_while_it_trains(
        config,
        tmp_path / "remote",
        *("--actor.threads-per-device", "0", "--actor.remote", "2", *steps),
        num_kills=20,
        pause_s=(1, 6),
    )
    assert output.count("lost in cycle") >= 15  # A process may be killed before it acts.
    assert "new episodes" not in output
    assert summary["networks_crc32"] == crc_of_threads(config, tmp_path / "local", *steps)
    for account in summary["ledger"]:
        assert account["acted"] == account["learned"] + account["discarded"]
