"""Remote actors on a Ray that the command starts, with processes that are really killed."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import time
import uuid

import pytest

from sebulba.config import ActorConfig
from sebulba.errors import ConfigError
from sebulba.processes.ray_cluster import RayShare
from sebulba.remote.ray_processes import RayProcesses, ray_processes
from tests.remote.on_ray import (
    actors_of,
    arguments,
    check_ledger,
    crc_of_threads,
    processes_with,
    rows_of,
    summary_of,
    training,
)
from tests.subprocesses import run_python, wait_for

pytest.importorskip("ray", reason="needs the extra ray")


def kill_while_it_trains(
    config, directory, *flags, num_kills, pause_s=(0, 0), until=lambda rows: True
):
    """Train with remote actors, kill random ones of them, and end the run by Ctrl-C afterwards.

    So it takes as many env steps as the kills do, on a fast machine and on a busy one.

    Args:
        config: its name or path.
        directory: of the run.
        flags: more of the command's.
        num_kills: processes to kill, each after two more rows of metrics.
        pause_s: least and most seconds after each kill.
        until: takes all rows; the run ends when this is true of them after the last kill.

    Returns:
        The summary and the output.
    """
    mark, chosen = uuid.uuid4().hex, random.Random(0)
    rows = ("--run.log-interval-env-steps", "2000", "--run.total-env-steps", "1000000000")
    with training(config, directory, *flags, *rows, mark=mark) as (process, output):
        for num_killed in range(num_kills + 1):
            # On a busy machine a process takes long to start: let it act before the next kill. The
            # first row may be of trajectories that were acted before the last one.
            before = len(rows_of(directory))
            wait_for(
                lambda before=before: len(rows_of(directory)) >= before + 2 and actors_of(mark),
                process,
            )
            if num_killed < num_kills:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chosen.choice(actors_of(mark)), signal.SIGKILL)
                time.sleep(chosen.uniform(*pause_s))
        deadline = time.monotonic() + 600
        while not until(rows_of(directory)):
            assert process.poll() is None and time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT, output.read_text()
    wait_for(lambda: not processes_with(mark))
    return summary_of(directory), output.read_text()


def crc_of_threads_after(summary, config, directory, *flags):
    """Return the checksum of a run with threads at the learner cycle at which another ended."""
    length = ("--run.total-learner-cycles", summary["learner_cycles"])
    return crc_of_threads(config, directory, *flags, *length, "--run.total-env-steps", "1000000000")


def test_a_killed_actor_of_ray_changes_no_bit_and_leaves_no_process(tmp_path):
    summary, output = kill_while_it_trains(
        "impala_catch",
        tmp_path / "remote",
        *("--actor.threads-per-device", "1", "--actor.remote", "1"),
        num_kills=1,
    )
    assert "lost in cycle" in output
    assert "(raylet)" not in output  # Our line says it, in less than 1,200 characters.
    assert [each["restarts"] for each in summary["remote_actors"].values()] == [1]
    local = crc_of_threads_after(summary, "impala_catch", tmp_path / "local")
    assert summary["networks_crc32"] == local
    check_ledger(summary)


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


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_too_little_room_for_the_actors_is_said_and_without_a_cluster_refused(address, monkeypatch):
    import ray

    def joined(**options):
        return contextlib.nullcontext("Ray")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("sebulba.remote.ray_processes.ray_cluster", joined)
    node = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    room = "has room for 2 of 3 remote actors with 1 CPU and 1 GPU each"
    lines, actor = [], ActorConfig(remote=3, remote_gpus=1.0)
    refused = contextlib.nullcontext()
    if address is None:
        refused = pytest.raises(ConfigError, match=f"actor.remote_gpus: this machine {room}")
    with refused, ray_processes(actor, on_message=lines.append):
        assert lines[1] == f"the cluster {room}: the others wait until machines join"


def test_a_machine_that_is_gone_does_not_count_as_one_without_an_object_store(monkeypatch):
    import ray

    alive = {"Alive": True, "Resources": {"object_store_memory": 8e9}}
    gone = {"Alive": False, "Resources": {}}
    monkeypatch.setattr(ray, "nodes", lambda: [alive, gone])
    assert RayProcesses(RayShare(num_cpus=1, num_gpus=0.0)).num_store_bytes == 8e9


@pytest.mark.slow
@pytest.mark.parametrize("config", ["impala_catch", "impala_cartpole"])
def test_twenty_kills_change_no_bit(config, tmp_path):
    summary, output = kill_while_it_trains(
        config,
        tmp_path / "remote",
        *("--actor.threads-per-device", "0", "--actor.remote", "2"),
        num_kills=20,
        pause_s=(0, 0.3),
    )
    print(output, summary["ledger"])
    assert output.count("lost in cycle") >= 15  # A process may be killed before it acts.
    assert "new episodes" not in output
    local = crc_of_threads_after(summary, config, tmp_path / "local")
    assert summary["networks_crc32"] == local
    check_ledger(summary)


@pytest.mark.slow
def test_environments_that_cannot_be_repeated_begin_new_episodes_after_a_kill(tmp_path):
    clock = tmp_path / "clock.yaml"
    clock.write_text(
        "env: {suite: gymnasium, id: 'tests.remote.environments:ClockOfTests-v0'}\n"
        "agent: {name: impala}\n"
        "actor: {threads_per_device: 0, remote: 2, num_envs: 4}\n"
    )
    summary, output = kill_while_it_trains(
        clock,
        tmp_path / "run",
        num_kills=4,
        pause_s=(1, 4),
    )
    num_new = output.count("new episodes begin, since the stream cannot continue")
    # The process may be killed before its first cycle, or at one that begins a stream.
    assert 1 <= num_new <= sum(each["restarts"] for each in summary["remote_actors"].values()) <= 4
    assert summary["episodes_cut"] == 4 * num_new
    assert re.search(r"\(actor \d pid=\d+\) the clock ticks", output)
    check_ledger(summary)


@pytest.mark.slow
def test_a_free_running_run_solves_cartpole_under_twenty_kills(tmp_path):
    summary, output = kill_while_it_trains(
        "impala_cartpole",
        tmp_path / "run",
        *("--actor.threads-per-device", "0", "--actor.remote", "2"),
        *("--learner.policy-lag", "null"),
        num_kills=20,
        pause_s=(1, 4),
        until=lambda rows: any((row["episode_return_mean"] or 0.0) >= 475 for row in rows),
    )
    print(output, summary["ledger"])
    # A process may be killed before it answers.
    assert sum(each["restarts"] for each in summary["remote_actors"].values()) >= 7
    assert "new episodes" not in output
    assert summary["best_episode_return_mean"] >= 475
    check_ledger(summary)


# Counts the objects in Ray's store that this process keeps, at each row of metrics.
COUNTING = """
import json, sys
import ray
from ray._private.worker import global_worker
import sebulba
from sebulba.config.loading import load_config

ray.init(address="local", num_cpus=2, object_store_memory=80_000_000, include_dashboard=False)
counts = []

def count(event, row):
    counts.append(len(global_worker.core_worker.get_all_reference_counts()))

sebulba.train(load_config(sys.argv[1], sys.argv[2:]), callbacks=[count])
print(json.dumps([counts, ray._private.worker._global_node.get_session_dir_path()]))
"""


@pytest.mark.slow
def test_the_use_of_the_object_store_stays_flat_over_two_thousand_cycles(tmp_path):
    length = 2_000 * 64 * 20  # 600 MB of trajectories, through 80 MB
    flags = ("--actor.threads-per-device", 0, "--actor.remote", 2, "--actor.num-envs", 64)
    goal = ("--run.total-env-steps", length, "--run.stop-at-return", "null")
    rows = ("--run.log-interval-env-steps", length // 40, "--run-dir", tmp_path / "run")
    done = run_python("-c", COUNTING, "configs/impala_catch.yaml", *flags, *goal, *rows)
    assert done.returncode == 0, done.stderr
    counts, session = json.loads(done.stdout.splitlines()[-1])
    assert len(counts) >= 30
    # Networks of a few versions, handles of processes, and calls that are waited for.
    assert max(counts[-10:]) <= max(counts[:10]) and max(counts) <= 40, counts
    logs = pathlib.Path(session, "logs").glob("raylet*")
    assert not any("Spilled " in path.read_text(errors="replace") for path in logs)


@pytest.mark.slow
def test_seeds_with_remote_actors_evaluate_and_end_with_the_bits_of_threads(tmp_path):
    flags = (
        *("--run.total-env-steps", "30000", "--seeds", "0..1"),
        *("--evaluation.interval-env-steps", "10000", "--evaluation.episodes", "20"),
    )
    remote = ("--actor.threads-per-device", "1", "--actor.remote", "1")
    for name, of_actors in (("remote", remote), ("threads", ())):
        done = run_python(*arguments("impala_catch", tmp_path / name, *flags, *of_actors))
        assert done.returncode == 0, done.stderr
    for seed in ("seed-0", "seed-1"):
        of_threads, of_remote = (
            summary_of(tmp_path / name / seed) for name in ("threads", "remote")
        )
        assert of_remote["networks_crc32"] == of_threads["networks_crc32"]
        assert list(of_remote["remote_actors"]) == ["1"]
        # An evaluation that is due while another is played may be left out.
        one, other = (evaluated(tmp_path / name / seed) for name in ("threads", "remote"))
        common = one.keys() & other.keys()
        assert len(common) >= 2
        assert [one[each] for each in common] == [other[each] for each in common]


def evaluated(directory):
    lines = (directory / "evaluations.jsonl").read_text().splitlines()
    return {row["env_steps"]: row["return_mean"] for row in map(json.loads, lines)}
