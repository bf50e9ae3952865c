"""The scores of bsuite; those that need the extra bsuite are skipped without it."""

import numpy as np
import pytest

import sebulba
from benchmarks import bsuite as benchmark
from benchmarks import harness

RECORDS = {
    "ppo": {
        "catch": {"score": 0.914, "runs": [{"bsuite_id": "catch/0"}], "commit": "abc"},
        "memory_len": {
            "score": 0.0,
            "runs": [{"bsuite_id": "memory_len/0"}, {"bsuite_id": "memory_len/3"}],
            "commit": "abc",
        },
    },
    "ddqn": {"catch": {"score": 0.5, "runs": [{"bsuite_id": "catch/3"}], "commit": "def"}},
}


def test_the_table_has_the_score_of_each_agent_and_the_settings_that_were_run():
    assert benchmark.table(RECORDS).splitlines() == [
        "| measures | experiment | `ppo` | `ddqn` |",
        "|---|---|---|---|",
        "| basic | `catch` | 0.91 (0) | 0.50 (3) |",
        "| memory | `memory_len` | 0.00 (0, 3) | – |",
        "",
        "Measured at `abc`, `def`.",
    ]


def test_a_kind_that_was_run_as_a_whole_has_a_mean():
    both = RECORDS["ppo"] | {"memory_size": RECORDS["ppo"]["memory_len"] | {"score": 1.0}}
    lines = benchmark.table({"ppo": both, "ddqn": RECORDS["ddqn"]}).splitlines()
    assert "| **memory** | mean | **0.50** | – |" in lines
    assert not any("**basic**" in line for line in lines)


def test_the_page_keeps_what_is_around_the_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{benchmark.BEGIN}\nold\n{benchmark.END}\nafter\n")
    harness.replace_between(page, benchmark.BEGIN, benchmark.END, benchmark.table(RECORDS))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| basic | `catch` |" in text


@pytest.mark.parametrize("agent", benchmark.AGENTS)
def test_each_agent_is_a_valid_config_of_one_environment(agent):
    config = sebulba.load_config(None, benchmark.AGENTS[agent])
    assert (config.actor.threads_per_device, config.actor.num_envs) == (1, 1)


@pytest.fixture
def bsuite():
    return pytest.importorskip("bsuite")


def test_every_experiment_but_mnist_is_in_the_table(bsuite):
    from bsuite.sweep import SWEEP

    names = {each.partition("/")[0] for each in SWEEP}
    listed = [name for group in benchmark.EXPERIMENTS.values() for name in group]
    assert sorted(listed) == sorted(name for name in names if not name.startswith("mnist"))


def test_only_an_environment_for_training_logs_its_episodes(bsuite, tmp_path):
    for purpose in ("inspect", "evaluate", "train"):
        environment = benchmark.make("catch/0", str(tmp_path), purpose=purpose)
        environment.reset()
        for _ in range(9):
            environment.step(0)
        assert len(list(tmp_path.iterdir())) == (purpose == "train")


def test_an_open_seed_is_that_of_the_run(bsuite):
    def contexts(seed):
        environment = benchmark.make("memory_size/3", seed=seed)
        return np.array([environment.reset().observation for _ in range(8)])

    np.testing.assert_array_equal(contexts(1), contexts(1))
    assert not np.array_equal(contexts(1), contexts(2))


@pytest.mark.parametrize("number", [0, -1])
def test_no_episode_is_longer_than_its_bound(bsuite, number):
    from bsuite.sweep import SWEEP

    for name in (each for group in benchmark.EXPERIMENTS.values() for each in group):
        bsuite_id = [each for each in SWEEP if each.partition("/")[0] == name][number]
        environment, steps = benchmark.make(bsuite_id), 0
        time_step = environment.reset()
        while not time_step.last():
            time_step, steps = environment.step(0), steps + 1
        assert steps <= benchmark.longest_episode(bsuite_id), bsuite_id


@pytest.mark.filterwarnings("ignore")  # bsuite's own calls of pandas and plotnine are deprecated
def test_a_run_is_scored_by_bsuite(bsuite, tmp_path):
    environment = benchmark.make("deep_sea/0", str(tmp_path), purpose="train")
    for _ in range(20):
        time_step = environment.reset()
        while not time_step.last():
            time_step = environment.step(0)
    assert benchmark.score(str(tmp_path)) == {"deep_sea": 0.0}


@pytest.mark.filterwarnings("ignore")
def test_the_radar_has_the_agents_that_were_trained_on_all_experiments(bsuite, tmp_path):
    pytest.importorskip("matplotlib")
    names = [name for group in benchmark.EXPERIMENTS.values() for name in group]
    of_ppo = {name: {"score": 0.5} for name in names}
    records = {"ppo": of_ppo, "ddqn": {"catch": {"score": 1.0}}}
    benchmark.radar(records, tmp_path / "radar.svg")
    drawn = (tmp_path / "radar.svg").read_text()
    assert "credit assignment" in drawn and "ppo" in drawn and "ddqn" not in drawn
