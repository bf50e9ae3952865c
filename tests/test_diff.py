"""Where two runs part, in pairs that differ in one known thing."""

import dataclasses
import json
import shutil

import pytest

from sebulba.config import LearnerConfig
from sebulba.diff import diff
from sebulba.process import EXIT_CONFIG, EXIT_DONE, EXIT_OTHER_RESULT
from sebulba.run import training
from tests.run.runs import make_config
from tests.toys import ToyConfig

TOTAL = 1500


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Returns the function that trains the toy agent with changed settings, once each."""
    directory, known = tmp_path_factory.mktemp("runs"), {}

    def train(*, learning_rate=0.1, seed=0, total_env_steps=TOTAL):
        key = (learning_rate, seed, total_env_steps)
        if key not in known:
            known[key] = directory / f"run-{len(known)}"
            config = make_config(
                known[key],
                learner=LearnerConfig(policy_lag=1),
                agent=ToyConfig(learning_rate=learning_rate),
                seed=seed,
            )
            run = dataclasses.replace(config.run, total_env_steps=total_env_steps)
            assert training.train_to_exit_code(dataclasses.replace(config, run=run)) == EXIT_DONE
        return known[key]

    return train


def compare(first, second, capsys):
    """Returns the exit code and the lines."""
    capsys.readouterr()
    code = diff(first, second)
    return code, capsys.readouterr().out.splitlines()


def changed(run, path, change):
    """Returns a copy of a run whose `run.json` is changed."""
    shutil.copytree(run, path)
    process = json.loads((path / "run.json").read_text())
    change(process)
    (path / "run.json").write_text(json.dumps(process))
    return path


def test_another_setting_parts_runs_at_its_first_update(train, capsys):
    code, lines = compare(train(), train(learning_rate=0.1000001), capsys)
    assert code == EXIT_OTHER_RESULT
    assert lines[2:4] == ["settings:", "  agent.learning_rate: 0.1 and 0.1000001"]
    assert lines[4:8] == [
        f"{kind}: no difference" for kind in ("code", "versions", "machine", "flags")
    ]
    (checksums,) = [line for line in lines if line.startswith("checksums:")]
    assert "after learner cycle 1 (the row before, of cycle 0, is equal)" in checksums
    assert "networks.weights, by" in checksums and "updates parted first" in checksums
    assert lines[-1].startswith("metrics: 0 equal rows, then ")


def test_another_seed_parts_runs_before_the_first_update(train, capsys):
    code, lines = compare(train(), train(seed=1), capsys)
    assert code == EXIT_OTHER_RESULT
    assert "  seed: 0 and 1" in lines
    assert any("after learner cycle 0: 1 of 1 leaves" in line for line in lines)


def test_a_longer_run_has_the_same_rows(train, capsys):
    code, lines = compare(train(), train(total_env_steps=2 * TOTAL), capsys)
    assert code == EXIT_DONE
    assert f"  run.total_env_steps: {TOTAL} and {2 * TOTAL}" in lines
    assert "checksums: 6 equal rows, up to learner cycle 20" in lines
    assert lines[-1] == "metrics: 1 equal rows"


def test_another_version_and_other_code_are_named_where_numbers_are_equal(train, tmp_path, capsys):
    first = train()
    upgraded = changed(first, tmp_path / "a", lambda run: run["versions"].update(jax="0.11.0"))
    code, lines = compare(first, upgraded, capsys)
    assert code == EXIT_DONE
    assert any(line.startswith("  jax: 0.") and line.endswith("and 0.11.0") for line in lines)
    edited = changed(
        first, tmp_path / "b", lambda run: run["code"]["sources"].update(sebulba="0000")
    )
    code, lines = compare(first, edited, capsys)
    assert code == EXIT_DONE
    assert any(line.startswith("  sebulba: ") and "and 0000 (" in line for line in lines)


def test_json_is_one_object(train, capsys):
    capsys.readouterr()
    assert diff(train(), train(learning_rate=0.1000001), as_json=True) == EXIT_OTHER_RESULT
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert [each["name"] for each in found["differences"]] == ["agent.learning_rate"]
    assert found["checksums"]["equal_rows"] == 1
    assert found["checksums"]["parting"]["first"] == "updates"
    assert found["checksums"]["parting"]["leaves"] == ["networks.weights"]
    assert found["metrics"]["equal_rows"] == 0


def test_runs_without_checksums_and_directories_without_a_run_are_told(train, tmp_path, capsys):
    shutil.copytree(train(), tmp_path / "old")
    (tmp_path / "old" / "checksums.jsonl").unlink()
    code, lines = compare(train(), tmp_path / "old", capsys)
    assert code == EXIT_DONE
    assert "checksums: B has none (run.checksums)" in lines
    (tmp_path / "old" / "checksums.jsonl").write_text('{"learner_cycles": 0}\n')
    assert (
        "checksums: damaged lines of B, which are left out: 1"
        in compare(train(), tmp_path / "old", capsys)[1]
    )
    assert diff(train(), tmp_path / "none") == EXIT_CONFIG
    assert "expected a run directory with a config.yaml, got none" in capsys.readouterr().err


def test_runs_without_a_row_in_common_are_not_called_equal(train, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    shutil.copy(train() / "config.yaml", tmp_path / "bare")
    code, lines = compare(train(), tmp_path / "bare", capsys)
    assert code == EXIT_CONFIG
    assert "versions: not recorded by B" in lines and "settings: no difference" in lines


@pytest.mark.parametrize("name", ["changes", pytest.param("goals", id="of an earlier version")])
def test_a_resume_is_told_with_its_changes_and_text_of_run_json_forges_no_line(
    name, train, tmp_path, capsys
):
    def change(process):
        goals = {"run.total_env_steps": 9000}
        process.update(resumed=[{"at": 7, "level": "exact", name: goals}])
        process["cpu"]["model"] = "\x1b[31mRED\nmetrics: 9 equal rows"

    run = changed(train(), tmp_path / "changed", change)
    lines = compare(train(), run, capsys)[1]
    assert "  resumed at learner cycle 7 with run.total_env_steps 9000" in lines
    assert not any(line.startswith("metrics: 9") or "\x1b" in line for line in lines)
