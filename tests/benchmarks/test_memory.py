"""The benchmark of memory: its settings, its records and its table."""

import itertools
import json
import sys

import pytest

from benchmarks import learning, memory
from sebulba.config.loading import load_config

COMBINATIONS = [
    (name, agent, core)
    for name, task in memory.TASKS.items()
    for agent, core in itertools.product(task.env_steps, memory.CORES)
]


@pytest.mark.parametrize(("name", "agent", "core"), COMBINATIONS)
def test_every_core_has_the_settings_of_one_config_and_sees_more_rows_than_the_delay(
    name, agent, core
):
    task = memory.TASKS[name]
    config = load_config(memory.CONFIGS[agent], memory.overrides(task, agent, core))
    same = load_config(memory.CONFIGS[agent], memory.overrides(task, agent, "lstm"))
    assert (config.agent.core, config.agent.lstm_size) == (core, same.agent.lstm_size)
    assert config.run == same.run and config.actor == same.actor
    delay = task.memory_length - 4
    rows = config.actor.trajectory_length if agent == "ppo" else config.agent.learn_length
    assert rows > delay
    if core == "gtrxl":
        assert config.agent.core_options == {"memory_length": delay + 4, "layers": 1}


def summaries_of(seeds, env_steps, best):
    return [
        {
            "env_steps": steps,
            "best_episode_return_mean": each,
            "final_episode_return_mean": each,
        }
        for _, steps, each in zip(seeds, env_steps, best, strict=True)
    ]


def test_a_run_that_the_records_have_is_not_repeated(tmp_path, monkeypatch, capsys):
    trained = []

    def train(config, seeds, arguments):
        trained.append(config)
        return summaries_of(seeds, (20_512, 500_736, 30_000), (0.96, -0.456, 0.95))

    monkeypatch.setattr(learning, "train", train)
    path = tmp_path / "memory.json"
    flags = ["--agents", "ppo", "--tasks", "Recall, 10 steps", "--cores", "lru"]
    monkeypatch.setattr(sys, "argv", ["memory", *flags, "--json", str(path)])
    memory.main()
    memory.main()
    assert trained == ["ppo_recall"]
    row = "| Recall, 10 steps | `ppo` | 500,000 | – | – | 20,512 · (−0.46) · 30,000 | – |"
    assert capsys.readouterr().out.splitlines()[-1] == row
    found = json.loads(path.read_text())["Recall, 10 steps"]["ppo"]["lru"]
    assert (found["seeds"], found["solved"]) == (list(memory.SEEDS), [True, False, True])


def test_a_task_without_a_goal_is_never_solved(monkeypatch):
    monkeypatch.setattr(
        learning, "train", lambda config, seeds, arguments: summaries_of(seeds, (300_032,), (1.0,))
    )
    task = memory.TASKS["RepeatPreviousEasy"]
    assert memory.measure(task, "ppo", "gru", [1])["solved"] == [False]


@pytest.mark.slow
def test_seeds_are_trained_and_what_each_reached_is_read():
    task = memory.TASKS["Recall, 10 steps"]
    changes = memory.overrides(task, "ppo", "gru") | {"run.total_env_steps": 2_000}
    summaries = learning.train("ppo_recall", (1, 2), memory.as_flags(changes))
    assert [each["env_steps"] >= 2_000 for each in summaries] == [True, True]


def test_the_page_has_the_table_of_the_records():
    records = json.loads(memory.RECORDS.read_text())
    page = memory.RECORDS.parent.parent / "docs" / "memory.md"
    assert memory.table(records) in page.read_text()
    seeds = {
        tuple(run["seeds"])
        for task in records.values()
        for agent in task.values()
        for run in agent.values()
    }
    assert seeds == {memory.SEEDS}
