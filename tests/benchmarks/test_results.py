"""The results page is a function of the records in the repository."""

import json
import pathlib
import re

import numpy as np
import pytest

from benchmarks import results
from benchmarks.records import add, read_records
from sebulba.config.loading import load_config, to_yaml
from sebulba.evaluation.statistics import interquartile_mean
from sebulba.figures.drawing import save

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_is_what_the_records_give():
    page = ROOT / "docs" / "results.md"
    assert page.read_text() == results.make_page(), "run python -m benchmarks.results"


@pytest.fixture(scope="module")
def figures():
    pytest.importorskip("matplotlib")
    return results.draw_curves()


@pytest.mark.slow
def test_the_curves_are_what_the_records_give(figures, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    assert sorted(figures) == sorted((ROOT / "docs" / "results").glob("*.svg"))
    for path, figure in figures.items():
        committed = path.read_text()
        if f">Matplotlib v{matplotlib.__version__}, " not in committed:
            pytest.skip("another version of matplotlib drew the curves, and gives other bytes")
        save(figure, tmp_path / path.name)
        drawn = (tmp_path / path.name).read_text()
        assert drawn == committed, f"run python -m benchmarks.results: {path.name}"


def test_every_row_was_trained_from_a_commit():
    for name, records in read_records().items():
        for record in records:
            assert re.fullmatch("[0-9a-f]{7,40}", record["commit"]), name


@pytest.mark.slow
def test_a_solved_config_ends_at_the_return_of_the_table(figures):
    figure = figures[ROOT / "docs" / "results" / "pendulum-v1.svg"]
    for axes in figure.axes[:2]:
        (thick,) = [line for line in axes.lines if line.get_linewidth() == 2.0]
        assert f"{thick.get_ydata()[-1]:.2f}" == "-146.31"


@pytest.mark.parametrize("config_argument", ["configs/pqn_bandit.yaml", "pqn_bandit"])
def test_a_record_holds_the_config_the_command_and_a_thin_curve(
    config_argument, tmp_path, monkeypatch
):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    names = ("updates", "wall_time_s", "steps_per_second", "episodes")
    summary = dict.fromkeys(names, 1) | {
        "status": "done",
        "env_steps": 5000,
        "best_episode_return_mean": 4.0,
        "final_episode_return_mean": 3.0,
    }
    argv = ["train.py", config_argument, "--seed", "7", "--run-dir", "elsewhere"]
    process = {"argv": argv, "versions": {"jax": "1"}, "platform": "Linux"}
    rows = [
        {"env_steps": 10 * i, "wall_time_s": i / 10, "episode_return_mean": i / 500 if i else None}
        for i in range(501)
    ]
    config = load_config(ROOT / "configs" / "pqn_bandit.yaml", ["--seed", "7"])
    (run_dir / "config.yaml").write_text(to_yaml(config))
    (run_dir / "summary.json").write_text(json.dumps(summary))
    (run_dir / "run.json").write_text(json.dumps(process))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("benchmarks.records.commit_of", lambda process: "abc1234")
    record = json.loads(add(run_dir, tmp_path).read_text())
    assert record["arguments"] == [config_argument, "--seed", "7"]
    assert record["config"]["agent.num_epochs"] == 4
    assert len(record["curve"]) == 60
    np.testing.assert_allclose(record["curve"][-1], [5000, 50.0, 1.0])
    add(run_dir, tmp_path, name="of_other_settings")
    page = results.make_page(tmp_path)
    assert "| `of_other_settings` | jax Bandit-v0 |" in page
    assert "| `pqn_bandit` | jax Bandit-v0 | 0 | 7 | 5,000 | 3.00 [–] | 4.00" in page
    assert "## Without a row" in page  # from the text by hand
    assert "## By suite" not in page
    assert "-dirty" not in page


def test_the_tasks_of_a_suite_are_beside_each_other():
    page = results.make_page()
    lines = [line.split(" | ") for line in page.splitlines()]
    (head,) = [line for line in lines if line[0] == "| MinAtar"]
    column = head.index("Freeway")
    of_ppo = next(line for line in lines[lines.index(head) :] if line[0] == "| `ppo`")
    records = read_records()["ppo_minatar_freeway"]
    finals = [each["summary"]["final_episode_return_mean"] for each in records]
    assert of_ppo[column].startswith(f"{interquartile_mean(np.array(finals)):.2f} [")


@pytest.mark.parametrize(
    "num_points", [(3, 5), (5, 3)], ids=["fastest longest", "fastest shortest"]
)
def test_all_seeds_of_a_row_take_the_time_of_the_fastest(num_points):
    speeds = (18.0, 10.0)  # seconds for each 100 env steps
    records = [
        {
            "curve": [[100 * i, seconds * i, 1.0] for i in range(1, num + 1)],
            "config": {"env.suite": "jax", "env.id": "Bandit-v0"},
            "summary": {"status": "done"},
        }
        for seconds, num in zip(speeds, num_points, strict=True)
    ]
    slow, fast = results._group("name", records).runs
    for run, num in zip((slow, fast), num_points, strict=True):
        np.testing.assert_allclose(run.column("wall_time_s"), 10.0 * np.arange(1, num + 1))


@pytest.mark.parametrize("summary", [None, {"status": "interrupted", "env_steps": 1}])
def test_a_run_that_is_not_done_is_refused(tmp_path, summary):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "metrics.jsonl").write_text("")
    if summary is not None:
        (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SystemExit, match="expected a run that is done, got one that is"):
        add(tmp_path, tmp_path)
