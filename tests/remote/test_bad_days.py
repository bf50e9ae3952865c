"""Remote actors on a real Ray: late machines, signals, stopped processes, and a head that is gone.

What these tests show stands in the table of `docs/clusters.md`.
"""

import contextlib
import os
import signal
import time
import uuid

import pytest

from tests.remote.on_ray import (
    actors_of,
    check_ledger,
    checkpoints_of,
    cluster,
    crc_of_threads,
    processes_with,
    rows_of,
    summary_of,
    training,
)
from tests.subprocesses import run_python, wait_for

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.slow

ALL_REMOTE = ("--actor.threads-per-device", "0", "--actor.remote")
ROWS = ("--run.log-interval-env-steps", "1000")


def test_actors_join_a_free_running_run_when_machines_do(tmp_path):
    directory, mark = tmp_path / "run", uuid.uuid4().hex
    flags = (*ALL_REMOTE, "4", *ROWS, "--learner.policy-lag", "null")
    endless = ("--run.total-env-steps", "1000000000")
    with cluster(2) as nodes:
        address = nodes.address
        with training(
            "impala_catch", directory, *flags, *endless, mark=mark, RAY_ADDRESS=address
        ) as (process, output):
            awaited = "no process yet for actor 2, actor 3"
            wait_for(lambda: awaited in output.read_text() and rows_of(directory), process)
            assert "the cluster has room for 2 of 4 remote actors" in output.read_text()
            assert rows_of(directory)[-1]["remote_actor/3/machine"] is None
            for num_nodes in (1, 2):
                nodes.add()
                wait_for(lambda num=num_nodes: output.read_text().count(": joins ") == num, process)
            for actor in (2, 3):
                name = f"remote_actor/{actor}/env_steps"
                wait_for(lambda name=name: rows_of(directory)[-1][name] > 0, process)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130, output.read_text()
        wait_for(lambda: not actors_of(nodes.mark))
    print(output.read_text())
    summary = summary_of(directory)
    check_ledger(summary)
    assert all(each["env_steps"] > 0 for each in summary["remote_actors"].values())


@pytest.mark.parametrize("lag", ["1", "null"])
def test_a_process_that_is_stopped_for_half_a_minute_goes_on(lag, tmp_path):
    """Exact, all wait for it, and the networks are those of threads; else the others act."""
    directory, mark = tmp_path / "run", uuid.uuid4().hex
    length = "400000" if lag == "1" else "1000000000"
    steps = ("--run.total-env-steps", length, *ROWS)
    flags = (*ALL_REMOTE, "2", *steps, "--learner.policy-lag", lag)
    with training("impala_catch", directory, *flags, mark=mark) as (process, output):
        wait_for(lambda: rows_of(directory), process)
        stopped = actors_of(mark)[0]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(5)  # Trajectories that have been acted are still learned from.
        before = rows_of(directory)[-1]
        time.sleep(25)
        after = rows_of(directory)[-1]
        os.kill(stopped, signal.SIGCONT)
        if lag == "1":
            assert after["env_steps"] == before["env_steps"]
            assert process.wait(240) == 0, output.read_text()
        else:
            names = [f"remote_actor/{actor}/env_steps" for actor in (0, 1)]
            gone = min(names, key=lambda name: after[name] - before[name])
            assert after[gone] == before[gone] and after["env_steps"] > before["env_steps"]
            wait_for(lambda: rows_of(directory)[-1][gone] > after[gone], process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143, output.read_text()
    print(output.read_text())
    wait_for(lambda: not processes_with(mark))
    summary = summary_of(directory)
    assert [each["restarts"] for each in summary["remote_actors"].values()] == [0, 0]
    check_ledger(summary)
    if lag == "1":
        assert summary["networks_crc32"] == crc_of_threads(
            "impala_catch", tmp_path / "threads", *steps
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_whose_actor_repeats_its_stream_and_leaves_no_process(number, tmp_path):
    config = tmp_path / "slow.yaml"
    config.write_text(
        "env: {suite: gymnasium, id: 'tests.remote.environments:SlowOfTests-v0'}\n"
        "agent: {name: impala}\n"
        "actor: {threads_per_device: 0, remote: 1, num_envs: 1}\n"
        "run: {total_env_steps: 1000000, log_interval_env_steps: 20}\n"
    )
    directory, mark = tmp_path / "run", uuid.uuid4().hex
    with training(config, directory, mark=mark, RAY_DEDUP_LOGS="0") as (process, output):
        wait_for(lambda: len(rows_of(directory)) >= 15, process)
        (actor,) = actors_of(mark)
        os.kill(actor, signal.SIGKILL)
        # Each process says its fifth step. The next one has some 300 to repeat, of 20 ms each.
        wait_for(lambda: output.read_text().count("the fifth step") == 2, process)
        began = time.monotonic()
        os.killpg(process.pid, number)  # as a terminal does
        assert process.wait(60) == 128 + number, output.read_text()
        print(f"ended after {time.monotonic() - began:.1f} s")
    print(output.read_text())
    last = output.read_text().rstrip().splitlines()[-1]
    assert "--resume latest" in last
    wait_for(lambda: not processes_with(mark))
    check_ledger(summary_of(directory))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_a_run_whose_ray_has_lost_its_head_ends_and_leaves_no_process(number, tmp_path):
    directory, mark = tmp_path / "run", uuid.uuid4().hex
    flags = (*ALL_REMOTE, "2", *ROWS, "--run.total-env-steps", "1000000000")
    saving = ("--checkpoint.interval-s", "1")
    with training("impala_catch", directory, *flags, *saving, mark=mark) as (process, output):
        wait_for(lambda: checkpoints_of(directory), process)
        (head,) = [pid for pid, line in processes_with(mark).items() if "gcs_server" in line]
        os.kill(head, signal.SIGKILL)
        began = time.monotonic()
        if number is not None:
            time.sleep(1.0)
            process.send_signal(number)
        code = process.wait(150)
        print(f"code {code} after {time.monotonic() - began:.1f} s")
    print(output.read_text())
    assert code == (1 if number is None else 128 + number)
    wait_for(lambda: not processes_with(mark))
    resumed = run_python(
        *("-m", "sebulba.train", "--run-dir", directory, "--resume", "latest"),
        *("--run.total-learner-cycles", "1"),
    )
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("why", ["no machine has room", "an environment is slow"])
def test_a_signal_ends_a_start_that_waits_and_leaves_no_process(why, number, tmp_path):
    config, mark, others = "impala_catch", uuid.uuid4().hex, {}
    flags = (*ALL_REMOTE, "2")
    with contextlib.ExitStack() as stack:
        if why == "no machine has room":
            others["RAY_ADDRESS"] = stack.enter_context(cluster()).address
            flags = (*flags, "--actor.remote-cpus", "8")
            shown = "remote actors: 2"
        else:
            config = tmp_path / "sleeping.yaml"
            config.write_text(
                "env: {suite: gymnasium, id: 'tests.remote.environments:SleepingOfTests-v0'}\n"
                "agent: {name: impala}\n"
            )
            shown = ") the clock ticks"  # in a process of Ray
        process, output = stack.enter_context(
            training(config, tmp_path / "run", *flags, mark=mark, **others)
        )
        wait_for(lambda: shown in output.read_text(), process)
        os.killpg(process.pid, number)  # as a terminal does
        began = time.monotonic()
        assert process.wait(60) == 128 + number, output.read_text()
        print(f"ended after {time.monotonic() - began:.1f} s")
        assert output.read_text().rstrip().endswith("Nothing was learned yet.")
        wait_for(lambda: not processes_with(mark))
