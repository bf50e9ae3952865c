"""A whole run: its directory, its exit code, and its last words."""

import csv
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from sebulba import training
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, RunConfig
from sebulba.config.loading import load_config
from tests.toys import ToyAgent, ToyConfig

ROOT = pathlib.Path(__file__).parent.parent


class FailingAgent(ToyAgent):
    """Fails when its loss is traced, in the learner's thread."""

    def loss(self, networks, experience, key, step):
        raise ArithmeticError("no such loss")


def make_config(run_dir, **changes):
    config = Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(num_envs=4),
        run=RunConfig(total_env_steps=3000, log_interval_env_steps=1000),
        agent=ToyConfig(),
        run_dir=str(run_dir),
    )
    return dataclasses.replace(config, **changes)


def test_a_run_leaves_everything_in_its_directory(tmp_path, capsys):
    config = make_config(tmp_path / "run")
    assert training.train(config) == 0
    path = tmp_path / "run"
    assert load_config(str(path / "config.yaml")) == config
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    table = list(csv.DictReader((path / "metrics.csv").read_text().splitlines()))
    assert [row["env_steps"] for row in rows] == [int(row["env_steps"]) for row in table]
    assert rows[-1]["env_steps"] >= 3000
    assert list(path.glob("events.*"))
    assert json.loads((path / "run.json").read_text())["versions"]["jax"]
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["env_steps"] == rows[-1]["env_steps"]
    assert summary["env_steps"] == sum(account["learned"] for account in summary["ledger"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"done: {summary['env_steps']:,} env steps")
    assert "compilation" in last and "excluded" in last


def test_steps_per_second_are_the_ledgers_over_the_time_after_start_up(tmp_path):
    assert training.train(make_config(tmp_path)) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    seconds = summary["wall_time_s"] - summary["startup_s"]
    # Start-up ends with the first cycles, which are not counted either.
    assert 0 < summary["steps_per_second"] * seconds < summary["env_steps"]


def test_a_directory_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    assert training.train(make_config(tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert "run_dir: expected a new or empty directory" in capsys.readouterr().err


def test_a_failure_ends_with_code_3_its_traceback_its_place_and_the_results(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sebulba.assembly.agent_factory", lambda name: FailingAgent, raising=True)
    assert training.train(make_config(tmp_path)) == 3
    error = capsys.readouterr().err
    assert "in loss" in error and 'ArithmeticError("no such loss")' in error
    last = error.splitlines()[-1]
    assert last.startswith("sebulba: ArithmeticError: no such loss")
    assert "in the learner, cycle 0" in last and str(tmp_path) in last
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_an_environment_that_is_not_there_ends_with_code_2(tmp_path, capsys):
    config = make_config(tmp_path, env=EnvConfig(suite="envpool", id="Pongg-v5"))
    assert training.train(config) == 2
    assert "Pong-v5" in capsys.readouterr().err.splitlines()[-1]
    assert not tmp_path.exists(), "the same command runs once the id is right"


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_ends_the_run_cleanly(tmp_path, number):
    config = tmp_path / "endless.yaml"
    config.write_text(
        "env: {suite: jax, id: Catch-v0}\n"
        "agent: {name: 'tests.toys:ToyAgent'}\n"
        "run: {total_env_steps: 1_000_000_000, log_interval_env_steps: 1_000}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "sebulba.train", str(config), "--run-dir", str(tmp_path / "run")],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
    )
    # The first row of metrics on the console says that the run is under way.
    while "env steps" not in (line := process.stderr.readline()):
        assert line, "the run ended by itself"
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.splitlines()[-1].startswith("interrupted: ")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert all(account["in_flight"] == account["queued"] == 0 for account in summary["ledger"])
