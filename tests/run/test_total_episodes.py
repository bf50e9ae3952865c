"""A run ends after the learner cycle that reaches `run.total_episodes`, or their number."""

import json

import pytest

from sebulba.config import RunConfig
from sebulba.run import training
from tests.evaluation.runs import tiny_config
from tests.run.resuming import rows_in
from tests.toys import ToyConfig


def train(run_dir, *, resume=None, **run):
    """Trains on Catch, whose episodes have 9 steps; returns the summary."""
    run = RunConfig(**{"total_env_steps": 2000, "log_interval_env_steps": 100_000} | run)
    config = tiny_config("impala", run_dir, run=run, resume=resume, agent=ToyConfig())
    assert training.train_to_exit_code(config) == 0
    return json.loads((run_dir / "summary.json").read_text())


@pytest.fixture(scope="module")
def cycles(tmp_path_factory):
    """Env steps and episodes after each learner cycle of a run of 500 env steps."""
    run_dir = tmp_path_factory.mktemp("cycles") / "run"
    train(run_dir, total_env_steps=500, log_interval_env_steps=1)
    return [(row["env_steps"], row["episodes"]) for row in rows_in(run_dir)]


@pytest.mark.parametrize("mode", ["threads", "serial", "anakin"])
def test_a_run_ends_with_the_cycle_that_reaches_its_episodes(cycles, tmp_path, mode):
    expected = next(cycle for cycle in cycles if cycle[1] >= 30)
    assert expected != cycles[-1]
    summary = train(tmp_path / "run", total_episodes=30, mode=mode)
    assert (summary["env_steps"], summary["episodes"]) == expected
    assert summary["reason"] == "the episodes reached 30"


def test_a_resumed_run_counts_the_episodes_before(cycles, tmp_path, capsys):
    first, second = (next(cycle for cycle in cycles if cycle[1] >= number) for number in (10, 30))
    summary = train(tmp_path / "parts", total_episodes=10)
    assert (summary["env_steps"], summary["episodes"]) == first
    assert "--resume latest --run.total-episodes 20" in capsys.readouterr().err
    # It has reached its end already.
    again = train(tmp_path / "parts", resume="latest", total_episodes=10)
    assert again["env_steps"] == first[0]
    summary = train(tmp_path / "parts", resume="latest", total_episodes=30)
    assert (summary["env_steps"], summary["episodes"]) == second
    whole = train(tmp_path / "whole", total_episodes=30)
    assert whole["networks_crc32"] == summary["networks_crc32"]


def test_the_start_names_the_episodes_and_env_steps_are_a_limit_too(tmp_path, capsys):
    summary = train(tmp_path / "run", total_env_steps=100, total_episodes=10_000)
    assert summary["reason"] == "the env steps reached 100"
    assert "goal: 10,000 episodes, or 100 env steps" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["threads", "anakin"])
def test_a_run_ends_after_its_learner_cycles_and_continues_as_if_it_had_not(
    cycles, tmp_path, mode, capsys
):
    summary = train(tmp_path / "run", total_env_steps=500, total_learner_cycles=7, mode=mode)
    assert (summary["learner_cycles"], summary["env_steps"]) == (7, cycles[6][0])
    assert summary["reason"] == "the learner cycles reached 7"
    shown = capsys.readouterr().err
    assert "goal: 7 learner cycles, or 500 env steps" in shown
    assert "--resume latest --run.total-learner-cycles null" in shown
    longer = train(tmp_path / "run", total_env_steps=500, resume="latest", mode=mode)
    whole = train(tmp_path / "whole", total_env_steps=500, mode=mode)
    assert longer["networks_crc32"] == whole["networks_crc32"]
