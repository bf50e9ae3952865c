"""The results page is a function of the records in the repository."""

import json
import pathlib

import numpy as np
import pytest

from benchmarks import results

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_and_its_pictures_are_what_the_records_give():
    for path, text in results.write_page().items():
        assert path.read_text() == text, f"run python -m benchmarks.results: {path.name}"


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
    config = (ROOT / "configs" / "pqn_bandit.yaml").read_text() + "\nseed: 7\n"
    (run_dir / "config.yaml").write_text(config)
    (run_dir / "summary.json").write_text(json.dumps(summary))
    (run_dir / "run.json").write_text(json.dumps(process))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(results, "_commit", lambda: "abc1234")
    record = json.loads(results.add(run_dir, tmp_path).read_text())
    assert record["arguments"] == [config_argument, "--seed", "7"]
    assert record["config"]["agent.num_epochs"] == 4
    assert len(record["curve"]) == 60
    np.testing.assert_allclose(record["curve"][-1], [5000, 50.0, 1.0])
    results.add(run_dir, tmp_path, name="of_other_settings")
    files = results.write_page(tmp_path)
    assert "| `of_other_settings` | jax Bandit-v0 |" in files[tmp_path / "results.md"]
    assert files == results.write_page(tmp_path)
    page = files[tmp_path / "results.md"]
    assert "| `pqn_bandit` | jax Bandit-v0 | 7 | 5,000 | 3.00 [3.00, 3.00] | 4.00" in page
    assert (
        "written by hand" in page and "<polyline" in files[tmp_path / "results" / "bandit-v0.svg"]
    )


@pytest.mark.parametrize("summary", [None, {"status": "interrupted", "env_steps": 1}])
def test_a_run_that_is_not_done_is_refused(tmp_path, summary):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "metrics.jsonl").write_text("")
    if summary is not None:
        (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SystemExit, match="expected a run that is done, got one that is"):
        results.add(tmp_path, tmp_path)
