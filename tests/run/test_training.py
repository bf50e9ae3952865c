"""A whole run: its directory, its exit code, and its last words."""

import csv
import json
import threading

import jax

from sebulba.config import EnvConfig, LearnerConfig
from sebulba.config.loading import load_config
from sebulba.devices.memory import describe_full_memory
from sebulba.envs.base import EnvironmentFault
from sebulba.run import training
from tests.rings import make_ring, run_ring, set_time
from tests.run.runs import make_config
from tests.toys import ToyAgent, ToyConfig


class FailingAgent(ToyAgent):
    """Fails when its loss is traced, in the learner's thread."""

    def loss(self, networks, experience, key, clock):
        if threading.current_thread() is not threading.main_thread():
            raise ArithmeticError("no such loss")
        return super().loss(networks, experience, key, clock)


class LargeAgent(FailingAgent):
    """Fails as XLA does if the learner device is full."""

    def loss(self, *arguments):
        try:
            return super().loss(*arguments)
        except ArithmeticError:
            raise jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 81.2GiB.\nmore"
            ) from None


def test_a_run_leaves_everything_in_its_directory(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The actors take turns: a run may end before another actor has compiled, and has no rate then.
    config = make_config(tmp_path / "run", learner=LearnerConfig(policy_lag=1))
    assert training.train_to_exit_code(config) == 0
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
    assert 0 < summary["startup_s"] < summary["wall_time_s"]
    assert summary["env_steps"] == sum(account["learned"] for account in summary["ledger"])
    assert summary["reason"] == "the env steps reached 3,000"
    assert summary["memory_plan"].startswith("learner device ")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        f"agent: {config.agent.name} on jax Catch-v0",
        "devices: cpu 0 for acting (2 actors × 4 environments) and learning",
        "goal: 3,000 env steps",
        "run directory: run",
    ]
    done, result, speed, *commands = lines[-6:]
    assert done == "done: the env steps reached 3,000"
    assert result.startswith("result: mean return ")
    assert speed.startswith(f"speed: {summary['env_steps']:,} env steps in ")
    resume = "python -m sebulba.train --run-dir run --resume latest"
    assert commands == [
        "evaluate: python -m sebulba.evaluate run",
        "plot: python -m sebulba.plot run -o run/plot.png",
        f"continue: {resume} --run.total-env-steps 6000",
    ]


def test_steps_per_second_count_from_when_every_actor_has_been_learned_from(tmp_path):
    ring = make_ring(make_config(tmp_path))
    set_time(ring, lambda: float(ring.learner.num_cycles))  # A cycle takes a second.
    env_steps = []
    run_ring(ring, mode="serial", on_cycle=lambda infos: env_steps.append(ring.progress.env_steps))
    assert len(ring.actors) == 2
    expected = (env_steps[-1] - env_steps[1]) / (len(env_steps) - 2)
    assert ring.progress.steps_per_second == expected > 0


def test_a_directory_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    assert training.train_to_exit_code(make_config(tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert "run_dir: expected a new or empty directory" in capsys.readouterr().err


def test_a_failure_ends_with_code_3_its_traceback_its_place_and_the_results(tmp_path, capsys):
    agent = ToyConfig(name=f"{__name__}:FailingAgent")
    assert training.train_to_exit_code(make_config(tmp_path, agent=agent)) == 3
    error = capsys.readouterr().err
    assert "in loss" in error and 'ArithmeticError("no such loss")' in error
    last = error.splitlines()[-1]
    assert last.startswith("sebulba: ArithmeticError: no such loss")
    assert "in the learner, cycle 0" in last and str(tmp_path) in last
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_a_full_device_ends_with_code_3_and_the_settings_that_need_less(tmp_path, capsys):
    agent = ToyConfig(name=f"{__name__}:LargeAgent")
    assert training.train_to_exit_code(make_config(tmp_path, agent=agent)) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("sebulba: JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory")
    for key in ("actor.num_envs", "agent.batch_size", "agent.num_minibatches", "MEM_FRACTION"):
        assert key in last


def test_a_full_device_is_found_behind_an_error_that_it_caused():
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    fault = EnvironmentFault("reset raised JaxRuntimeError")
    fault.__cause__ = full
    assert describe_full_memory(fault) == describe_full_memory(full) is not None
    assert describe_full_memory(jax.errors.JaxRuntimeError("INTERNAL: no kernel")) is None
    assert describe_full_memory(MemoryError("RESOURCE_EXHAUSTED")) is None


def test_an_environment_that_is_not_there_ends_with_code_2(tmp_path, capsys):
    config = make_config(tmp_path / "run", env=EnvConfig(suite="envpool", id="Pongg-v5"))
    assert training.train_to_exit_code(config) == 2
    assert "Pong-v5" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists(), "the same command runs once the id is right"
