"""Free-running runs that are recorded, and repeated to the last bit."""

import dataclasses
import json
import pathlib

import chex
import pytest

from sebulba.run import lifecycle
from sebulba.run.assembly import assemble
from sebulba.run.state import resume
from sebulba_agents.config import ImpalaConfig
from tests.faults.runs import last_line, make_config
from tests.run.resuming import comparable, rows_in
from tests.toys import ToyConfig

TOY = ToyConfig()
IMPALA = ImpalaConfig(hidden_sizes=(8,), lstm_size=8)


def make_run(run_dir, *, agent=TOY, **run):
    config = make_config(run_dir, learner={"max_policy_lag": None}, run=run)
    return dataclasses.replace(config, agent=agent)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(TOY, id="toy"),
        pytest.param(IMPALA, id="impala", marks=pytest.mark.slow),
    ],
)
def recorded(request, tmp_path_factory):
    """A free-running run with its schedule, of two actors."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    config = make_run(path, agent=request.param, record_schedule=True)
    assert lifecycle.train(config) == 0
    return config, learner_state(config)


def learner_state(config):
    ring = assemble(config, write_row=lambda row: None)
    resume(ring, f"{config.run_dir}/checkpoints", "latest")
    ring.close_environments()
    return ring.learner.state


def lines_of(config):
    with open(f"{config.run_dir}/schedule.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_record_has_every_trajectory_once_and_a_lag(recorded):
    config, _ = recorded
    header, *cycles = lines_of(config)
    assert header == {"num_actors": 2, "trajectories_per_cycle": 1}
    for actor_id in (0, 1):
        numbers = [number for ((actor, number, _),) in cycles if actor == actor_id]
        assert numbers == list(range(len(numbers)))
    lags = [cycle - version for cycle, ((_, _, version),) in enumerate(cycles)]
    assert min(lags) >= 0 and max(lags) > 0


def test_replayed_schedule_repeats_the_run_bitwise(recorded, tmp_path):
    config, state = recorded
    replay = make_run(
        tmp_path / "replay",
        agent=config.agent,
        record_schedule=True,
        replay_schedule=f"{config.run_dir}/schedule.jsonl",
    )
    assert lifecycle.train(replay) == 0
    chex.assert_trees_all_equal(learner_state(replay), state)
    assert lines_of(replay) == lines_of(config)
    rows = [comparable(rows_in(pathlib.Path(each.run_dir))) for each in (config, replay)]
    assert rows[0] == rows[1]


def test_resumed_run_goes_on_with_its_record_and_the_whole_can_be_replayed(tmp_path):
    config = make_run(tmp_path / "run", record_schedule=True, total_env_steps=200)
    assert lifecycle.train(config) == 0
    longer = dataclasses.replace(config.run, total_env_steps=400)
    resumed = dataclasses.replace(config, run=longer, resume="latest")
    assert lifecycle.train(resumed) == 0
    assert len(lines_of(config)) > 1 + 400 // 20
    replay = make_run(tmp_path / "replay", replay_schedule=str(tmp_path / "run/schedule.jsonl"))
    assert lifecycle.train(replay) == 0
    chex.assert_trees_all_equal(learner_state(replay), learner_state(resumed))


def test_run_longer_than_its_schedule_ends_with_code_3(recorded, tmp_path, capsys):
    config, _ = recorded
    path = f"{config.run_dir}/schedule.jsonl"
    assert lifecycle.train(make_run(tmp_path, replay_schedule=path, total_env_steps=800)) == 3
    last = last_line(capsys)
    assert "ScheduleError: run.replay_schedule: the schedule ends after" in last
    assert "Set run.total_env_steps as in the recorded run" in last


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not enough values to unpack"),
        ("no json", "Expecting value"),
        ('{"num_actors": 3, "trajectories_per_cycle": 1}\n', "'num_actors': 3"),
        ('{"num_actors": 2, "trajectories_per_cycle": 1}\n[[0, 0]]\n', "shorter"),
    ],
)
def test_schedule_of_another_run_or_of_none_ends_with_code_2(text, message, tmp_path, capsys):
    path = tmp_path / "schedule.jsonl"
    path.write_text(text)
    assert lifecycle.train(make_run(tmp_path / "run", replay_schedule=str(path))) == 2
    last = last_line(capsys)
    assert "run.replay_schedule: expected" in last and message in last
    assert not (tmp_path / "run").exists()


def test_record_that_lacks_cycles_of_the_checkpoint_ends_with_code_2(tmp_path, capsys):
    config = make_run(tmp_path / "run", record_schedule=True, total_env_steps=100)
    assert lifecycle.train(config) == 0
    path = tmp_path / "run/schedule.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    rows = rows_in(tmp_path / "run")
    assert lifecycle.train(dataclasses.replace(config, resume="latest")) == 2
    assert "run.record_schedule: expected" in last_line(capsys)
    assert rows_in(tmp_path / "run") == rows
