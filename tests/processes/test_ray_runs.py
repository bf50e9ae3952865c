"""Sweeps and seeds on a Ray that the command starts, with processes that are really killed."""

import json
import os
import signal
import subprocess
import uuid

import pytest

from sebulba.sweep import sweep
from tests.remote.on_ray import MARK, processes_with
from tests.subprocesses import ROOT, environment, run_python, started, wait_for

CATCH = str(ROOT / "configs" / "impala_catch.yaml")


def files_of(directory):
    """Returns the files of a sweep; the name of an event file has a time in it."""
    paths = {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}
    return {str(path.parent / path.name.partition(".tfevents")[0]) for path in paths}


def networks_of(directory):
    paths = sorted(directory.glob("*/summary.json"))
    return [json.loads(path.read_text())["networks_crc32"] for path in paths]


@pytest.mark.parametrize(
    ("module", "flags"), [("sebulba.sweep", ()), ("sebulba.train", ("--seeds", "0..1"))]
)
def test_without_ray_the_error_says_which_command_installs_it(module, flags, tmp_path):
    hide = f"import sys, runpy; sys.modules['ray'] = None; sys.argv = {['x', CATCH, *flags]!r}"
    hide += f" + ['--ray', '--run-dir', {str(tmp_path / 'run')!r}]"
    code = f"{hide}; runpy.run_module({module!r}, run_name='__main__')"
    done = run_python("-c", code)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "sebulba: --ray: expected Ray, which is not installed. Run pip install 'sebulba[ray]'"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cpus", "2"], "--cpus: expected --ray beside it"),
        (["--ray", "--gpus", "1.5"], "--gpus: expected an integer or a part of 1, got '1.5'"),
        (["--ray", "--cpus", "0"], "--cpus: expected an integer of at least 1"),
    ],
)
def test_wrong_flags_of_ray_end_with_2_before_anything_is_trained(flags, message, tmp_path, capsys):
    assert sweep([CATCH, *flags, "--run-dir", str(tmp_path / "sweep")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_nobody_at_the_address_ends_with_2(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert sweep([CATCH, "--ray", "--run-dir", str(tmp_path / "sweep")]) == 2
    assert "RAY_ADDRESS: expected the address of a Ray cluster" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_on_ray_leaves_the_files_and_networks_of_a_local_one(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    mark, ray, local = uuid.uuid4().hex, tmp_path / "far", tmp_path / "own"
    steps = ("--run.total-env-steps", "5000", "--seeds", "0..1")
    command = ("-m", "sebulba.sweep", "impala_catch", *steps, "--run-dir")
    done = run_python(*command, ray, "--ray", variables=environment(**{MARK: mark}))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not processes_with(mark))
    here = run_python(*command, local)
    assert here.returncode == 0, here.stderr
    assert files_of(ray) == files_of(local)
    assert len(networks_of(local)) == 2
    assert networks_of(ray) == networks_of(local)
    assert (ray / "sweep.json").read_text() == (local / "sweep.json").read_text()
    table = done.stdout.replace("/far", "/own").splitlines()
    assert table == here.stdout.splitlines()
    assert "[1/2] seed-" in done.stderr


def seeds_on_ray(directory, mark, *flags, **pipes):
    """Starts training with two seeds, for use in a `with`."""
    command = ("-m", "sebulba.train", "impala_catch", "--seeds", "0..1", "--ray", *flags)
    flags = ("--run.stop-at-return", "null", "--checkpoint.interval-s", "0.5")
    variables = environment(**{MARK: mark})
    return started(*command, *flags, "--run-dir", directory, variables=variables, **pipes)


def have_checkpoints(directory):
    return all(
        any(each.name.isdecimal() for each in (directory / f"seed-{i}").glob("checkpoints/*"))
        for i in range(2)
    )


@pytest.mark.slow
def test_a_run_whose_process_of_ray_is_killed_ends_with_the_networks_of_a_local_one(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    mark, directory = uuid.uuid4().hex, tmp_path / "ray"
    steps = ("--run.total-env-steps", "1000000", "--learner.policy-lag", "1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with seeds_on_ray(directory, mark, *steps, **pipes) as process:
        wait_for(lambda: have_checkpoints(directory), process)
        holders = [pid for pid, line in processes_with(mark).items() if "RunHolder" in line]
        os.kill(holders[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "is lost or cannot be reached" in output
    assert "resumes at cycle" in output
    assert "seed 0 done; seed 1 done" in output
    wait_for(lambda: not processes_with(mark))
    local = tmp_path / "local"
    command = ("-m", "sebulba.train", "impala_catch", "--seeds", "0..1", *steps)
    here = run_python(*command, "--run.stop-at-return", "null", "--run-dir", local)
    assert here.returncode == 0, here.stderr
    assert networks_of(directory) == networks_of(local)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_runs_on_ray_which_save_and_leaves_no_process(number, tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    mark, directory = uuid.uuid4().hex, tmp_path / "ray"
    endless = ("--run.total-env-steps", "2000000000")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with seeds_on_ray(directory, mark, *endless, **pipes) as process:
        wait_for(lambda: have_checkpoints(directory), process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 128 + number, output
    assert output.splitlines()[-1] == "; ".join(
        f"seed {i} ended with {128 + number}" for i in range(2)
    )
    summaries = [json.loads(path.read_text()) for path in directory.glob("*/summary.json")]
    assert [each["status"] for each in summaries] == ["interrupted"] * 2
    wait_for(lambda: not processes_with(mark))
