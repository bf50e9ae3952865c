"""Several seeds of one config; most tests use a stand-in for Python."""

import json
import pathlib
import re
import sys

import pytest

import sebulba
from tests.subprocesses import ROOT, run_python

CATCH = str(ROOT / "configs" / "impala_catch.yaml")


def make_interpreter(path, script):
    """Write a stand-in for Python that logs its arguments."""
    path.write_text(f'#!/bin/sh\necho "$@" >> {path}.calls\n{script}\n')
    path.chmod(0o755)
    return str(path)


def calls_of(interpreter):
    return pathlib.Path(f"{interpreter}.calls").read_text().splitlines()


def train_seeds(*arguments, **options):
    # An import of the module would bind the name of the function to it.
    return sys.modules[sebulba.train.__module__].train_seeds(*arguments, **options)


def run_train(*arguments):
    return run_python("-m", "sebulba.train", *arguments)


def run_seeds(interpreter, numbers):
    """Train with seeds in a separate process, so that signals reach no other."""
    code = (
        "import sys; from sebulba.train import train_seeds; "
        f"sys.executable = {interpreter!r}; sys.exit(train_seeds([], {numbers}, run_dir='r'))"
    )
    return run_python("-c", code)


def report(*lines):
    """Return the command that reports runs: `0` begins the run of seed 0, `0 3` ends it with 3."""
    text = "".join(f"{line}\\n" for line in lines)
    return f"printf '{text}' > /proc/self/fd/$SEBULBA_REPORTS"


def test_seeds_train_in_one_process(tmp_path, monkeypatch, capfd):
    interpreter = make_interpreter(tmp_path / "python", report(3, "3 0", 0, "0 0"))
    monkeypatch.setattr(sys, "executable", interpreter)
    assert train_seeds(["x.yaml", "--run-dir", "r"], [3, 0], run_dir="r") == 0
    assert calls_of(interpreter) == [
        "-u -m sebulba.train x.yaml --run-dir r --seeds 3,0 --run-dir r"
    ]
    assert capfd.readouterr().err == "seed 3 done; seed 0 done\n"


def test_seeds_that_cannot_share_a_process_train_in_one_each(tmp_path, monkeypatch):
    interpreter = make_interpreter(tmp_path / "python", "exit 0")
    monkeypatch.setattr(sys, "executable", interpreter)
    assert train_seeds(["x.yaml"], [3, 0], run_dir="r", share_process=False) == 0
    assert calls_of(interpreter) == [
        f"-u -m sebulba.train x.yaml --seeds {seed} --run-dir r" for seed in (3, 0)
    ]


def test_seeds_after_a_failed_one_train_and_the_first_exit_code_is_returned(
    tmp_path, monkeypatch, capfd
):
    script = f"""
        case "$*" in
            *"--seeds 0,1,2,3 "*) {report(0, "0 0", 1, "1 3")}; exit 3;;
            *"--seeds 2,3 "*) {report(2)}; kill -KILL $$;;
        esac"""
    interpreter = make_interpreter(tmp_path / "python", script)
    monkeypatch.setattr(sys, "executable", interpreter)
    assert train_seeds([], [0, 1, 2, 3], run_dir="r") == 3
    assert len(calls_of(interpreter)) == 3
    assert capfd.readouterr().err.splitlines()[-1] == (
        "seed 0 done; seed 1 ended with 3; seed 2 ended with 137; seed 3 done"
    )


def test_seeds_of_one_program_end_each_with_its_own_code(tmp_path, monkeypatch, capfd):
    script = f"{report(0, 1, 2, 3, '2 0', '0 6')}; kill -KILL $$"
    interpreter = make_interpreter(tmp_path / "python", script)
    monkeypatch.setattr(sys, "executable", interpreter)
    assert train_seeds([], [0, 1, 2, 3], run_dir="r") == 6
    assert len(calls_of(interpreter)) == 1
    assert capfd.readouterr().err.splitlines()[-1] == (
        "seed 0 ended with 6; seed 1 ended with 137; seed 2 done; seed 3 ended with 137"
    )


def test_a_signal_is_forwarded_to_the_run_and_prevents_the_next(tmp_path):
    script = """
        trap 'echo received >> "$0.calls"; exit 143' TERM
        kill -TERM $PPID
        while :; do sleep 0.05; done"""
    interpreter = make_interpreter(tmp_path / "python", script)
    result = run_seeds(interpreter, [0, 1])
    assert result.returncode == 143
    assert [line.split()[-1] for line in calls_of(interpreter)] == ["r", "received"]
    assert result.stderr.splitlines()[-1] == "seed 0 ended with 143; seed 1 not started"


def test_seeds_that_a_signal_stopped_are_resumed_together(tmp_path, monkeypatch, capfd):
    interpreter = make_interpreter(tmp_path / "python", report(0, 1, "0 143", "1 143"))
    monkeypatch.setattr(sys, "executable", interpreter)
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "config.yaml").touch()
    assert train_seeds([], [0, 1], run_dir=str(tmp_path)) == 143
    command = capfd.readouterr().err.splitlines()[-1]
    assert command.startswith("to resume all seeds: ")
    assert command.endswith(f"--seeds 0,1 --run-dir {tmp_path} --resume latest")


def test_ctrl_c_does_not_reach_the_process_group_of_a_run(tmp_path):
    compare = f'{sys.executable} -c "import os; print(os.getpgrp() == $$)"'
    interpreter = make_interpreter(tmp_path / "python", f'{compare} >> "$0.calls"')
    run_seeds(interpreter, [0])
    assert calls_of(interpreter)[-1] == "True"


def test_the_signal_is_the_exit_code_if_the_run_succeeds(tmp_path):
    interpreter = make_interpreter(tmp_path / "python", "trap '' INT; kill -INT $PPID; exit 0")
    result = run_seeds(interpreter, [0, 1, 2])
    assert result.returncode == 130
    assert len(calls_of(interpreter)) < 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CATCH, "--seeds", "4..0"), "--seeds: expected seeds as"),
        ((CATCH, "--seeds", "0..3000000000"), "--seeds: expected at most 1000 seeds"),
        ((CATCH, "--seeds", "0,3000000000"), "--seed: expected int in [0, 2147483647]"),
        (("--seeds", "0..1"), "expected a config file, or --env.id"),
        ((CATCH, "--ray"), "--ray: expected --seeds beside it"),
        ((CATCH, "--seeds", "0..1", "--gpus", "1"), "--gpus: expected --ray beside it"),
        (
            (CATCH, "--seeds", "0..1", "--ray", "--distributed.mode", "auto"),
            "--ray: cannot be combined with distributed.mode",
        ),
    ],
)
def test_train_with_wrong_seeds_exits_2_before_any_run(arguments, message):
    result = run_train(*arguments)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]


def test_seeds_in_the_directory_of_one_run_are_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    result = run_train(CATCH, "--seeds", "0..1", "--run-dir", tmp_path)
    assert result.returncode == 2
    assert "which is that of one run" in result.stderr.splitlines()[-1]


def test_train_help_mentions_seeds():
    result = run_train("--help")
    assert result.returncode == 0
    assert "--seeds 0..4" in result.stdout


@pytest.mark.slow
def test_seeds_are_trained_and_plotted(tmp_path):
    for name in ("impala_bandit", "r2d2_recall", "sac_bandit"):
        config = str(ROOT / "configs" / f"{name}.yaml")
        length = ("--run.total-env-steps", "3000", "--run.log-interval-env-steps", "500")
        devices = ("--devices.actor", "[0]", "--devices.learner", "[0]")
        result = run_train(
            config, *devices, *length, "--seeds", "0..1", "--run-dir", str(tmp_path / name)
        )
        assert result.returncode == 0, result.stderr
        for seed in (0, 1):
            path = tmp_path / name / f"seed-{seed}"
            assert json.loads((path / "summary.json").read_text())["status"] == "done"
            assert re.search(rf"^seed: {seed}$", (path / "config.yaml").read_text(), re.MULTILINE)
    directories = sorted(map(str, tmp_path.iterdir()))
    command = ("-m", "sebulba.plot", *directories, "-o", "curves.svg")
    result = run_python(*command, cwd=tmp_path, variables={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "curves.svg").stat().st_size > 10_000
