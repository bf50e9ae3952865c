"""Networks of remote actors on a real Ray are those of threads, whatever is lost."""

import signal
import time
import uuid

import pytest

from tests.remote.on_ray import (
    actors_of,
    arguments,
    check_ledger,
    checkpoints_of,
    cluster,
    crc_of_threads,
    rows_of,
    summary_of,
    training,
    variables_with,
)
from tests.subprocesses import run_python, wait_for

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("config", "env_steps", "others"),
    [
        ("impala_catch", 40_000, ()),
        ("ppo_cartpole", 40_000, ()),
        ("r2d2_recall", 6_000, ("--agent.min-replay-rows", 2_000)),
    ],
    ids=["impala on catch", "ppo on cartpole", "r2d2 on recall"],
)
def test_four_actors_have_the_networks_of_threads_wherever_they_act(
    config, env_steps, others, tmp_path
):
    flags = ("--run.total-env-steps", env_steps, "--learner.policy-lag", "1", *others)
    checksums = []
    for num_remote in (0, 4, 2):
        directory = tmp_path / str(num_remote)
        actors = ("--actor.threads-per-device", 4 - num_remote, "--actor.remote", num_remote)
        done = run_python(*arguments(config, directory, *flags, *actors))
        assert done.returncode == 0, done.stderr
        check_ledger(summary_of(directory))
        checksums.append(summary_of(directory)["networks_crc32"])
    print(config, checksums)
    assert checksums == checksums[:1] * 3


STEPS = ("--run.total-env-steps", "600000", "--run.log-interval-env-steps", "1000")
FOUR_REMOTE = ("--actor.threads-per-device", "0", "--actor.remote", "4")


def crc_of_four_threads(tmp_path):
    flags = (*STEPS, "--actor.threads-per-device", "4")
    return crc_of_threads("impala_catch", tmp_path / "threads", *flags)


def test_a_node_that_is_killed_with_two_actors_changes_no_bit(tmp_path):
    directory, mark = tmp_path / "run", uuid.uuid4().hex
    with cluster(2, cpus_of_each=2) as nodes:
        others = {"RAY_ADDRESS": nodes.address}
        with training("impala_catch", directory, *FOUR_REMOTE, *STEPS, mark=mark, **others) as (
            process,
            output,
        ):
            wait_for(lambda: rows_of(directory), process)
            assert len(actors_of(nodes.mark)) == 4
            nodes.kill(1)
            assert len(actors_of(nodes.mark)) == 2
            time.sleep(5)  # All wait, and nobody has room for the two.
            nodes.add()
            assert process.wait(240) == 0, output.read_text()
    print(output.read_text())
    summary = summary_of(directory)
    restarts = [each["restarts"] for each in summary["remote_actors"].values()]
    assert sorted(restarts)[:2] == [0, 0] and min(sorted(restarts)[2:]) >= 1
    check_ledger(summary)
    assert summary["networks_crc32"] == crc_of_four_threads(tmp_path)


def test_a_learner_that_is_killed_resumes_with_new_actors_on_its_cluster_and_the_same_bits(
    tmp_path,
):
    directory, mark = tmp_path / "run", uuid.uuid4().hex
    saving = ("--checkpoint.interval-s", "1")
    with cluster(2, cpus_of_each=2) as nodes:
        others = {"RAY_ADDRESS": nodes.address}
        with training(
            "impala_catch", directory, *FOUR_REMOTE, *STEPS, *saving, mark=mark, **others
        ) as (process, _):
            wait_for(lambda: checkpoints_of(directory), process)
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        wait_for(lambda: not actors_of(nodes.mark))
        done = run_python(
            *("-m", "sebulba.train", "--run-dir", directory, "--resume", "latest"),
            variables=variables_with(mark, **others),
        )
        assert done.returncode == 0, done.stderr
    assert "resumes at cycle" in done.stderr
    summary = summary_of(directory)
    check_ledger(summary)
    assert summary["networks_crc32"] == crc_of_four_threads(tmp_path)


def test_two_runs_share_a_cluster(tmp_path):
    flags = ("--run.total-env-steps", "100000")
    remote = ("--actor.threads-per-device", "0", "--actor.remote", "1")
    with cluster(2) as nodes:
        others = {"RAY_ADDRESS": nodes.address}
        mark = uuid.uuid4().hex
        with (
            training(
                "impala_catch", tmp_path / "a" / "run", *flags, *remote, mark=mark, **others
            ) as (one, of_one),
            training(
                "impala_catch", tmp_path / "b" / "run", *flags, *remote, mark=mark, **others
            ) as (other, of_other),
        ):
            assert one.wait(200) == 0, of_one.read_text()
            assert other.wait(200) == 0, of_other.read_text()
    checksums = [summary_of(tmp_path / each / "run")["networks_crc32"] for each in ("a", "b")]
    threads = ("--actor.threads-per-device", "1")
    expected = crc_of_threads("impala_catch", tmp_path / "threads", *flags, *threads)
    assert checksums == [expected, expected]
