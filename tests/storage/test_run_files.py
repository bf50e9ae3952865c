"""Runs as they are read from their directories."""

import json
import math

import pytest

from sebulba.errors import ConfigError
from sebulba.storage.run_files import read_run, read_runs
from tests.run_directories import SHARES, make_row, make_run


def test_read_run_gives_config_rows_and_status(tmp_path):
    run = read_run(make_run(tmp_path / "run", seed=3))
    assert run.config["env.id"] == "Catch-v0"
    assert run.config["seed"] == 3
    assert len(run.rows) == 4
    assert run.status == "done"


def test_column_is_nan_where_a_row_has_no_value(tmp_path):
    path = make_run(tmp_path / "run", returns=(None, 1.0, 2))
    column = read_run(path).column("episode_return_mean")
    assert [None if math.isnan(each) else each for each in column] == [None, 1.0, 2.0]


def test_read_run_ignores_a_line_that_is_being_written(tmp_path):
    path = make_run(tmp_path / "run", status=None)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 500, "upd')
    run = read_run(path)
    assert [row["env_steps"] for row in run.rows] == [100, 200, 300, 400]
    assert "running" in run.status


def test_read_run_ignores_a_summary_older_than_the_rows(tmp_path):
    path = make_run(tmp_path / "run", status="interrupted")
    assert read_run(path).status == "interrupted"
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(make_row(5, 5.0)) + "\n")
    assert "running" in read_run(path).status


def test_read_run_without_rows_has_empty_columns(tmp_path):
    run = read_run(make_run(tmp_path / "run", returns=(), status=None))
    assert run.column("env_steps") == []
    assert run.time_shares() == {}


def test_policy_lags_are_counted_over_all_rows(tmp_path):
    assert read_run(make_run(tmp_path / "run")).policy_lags() == {0: 4, 2: 12}


def test_time_shares_without_a_summary_weigh_rows_by_their_wall_time(tmp_path):
    path = make_run(tmp_path / "run", returns=(1.0,), status=None)
    waiting = make_row(4, 1.0) | {"time/actor/act": 0.0, "time/actor/wait for queue": 1.0}
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(waiting) + "\n")
    shares = read_run(path).time_shares()
    # 2 s of the first row with a share of 0.75, 6 s of the second with none.
    assert shares["actor"] == pytest.approx({"act": 0.1875, "wait for queue": 0.8125})


def test_time_shares_are_the_summarys_where_there_is_one(tmp_path):
    assert read_run(make_run(tmp_path / "run")).time_shares() == SHARES


def test_read_runs_finds_the_runs_below_a_directory_in_natural_order(tmp_path):
    for seed in (10, 9, 0):
        make_run(tmp_path / f"seed-{seed}", seed=seed)
    (tmp_path / "notes").mkdir()
    runs = read_runs([tmp_path, tmp_path / "seed-9"])
    assert [run.path.name for run in runs] == ["seed-0", "seed-9", "seed-10"]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_read_runs_names_the_missing_file(tmp_path, name):
    path = make_run(tmp_path / "run")
    (path / name).unlink()
    with pytest.raises(ConfigError, match=f"run: expected a run directory with a {name}"):
        read_runs([path])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", "{}\nnonsense\n{}\n", r"metrics\.jsonl:2: expected a JSON object"),
        ("metrics.jsonl", "[1]\n", r"metrics\.jsonl:1: expected a JSON object, got \[1\]"),
        ("metrics.jsonl", b"{}\n\xff\n", r"metrics\.jsonl:2: expected a JSON object"),
        ("summary.json", "{", r"summary\.json: expected a JSON object, got"),
        ("summary.json", "[]", r"summary\.json: expected a JSON object, got \[\]"),
        ("config.yaml", "env: [", r"config\.yaml:\d"),
    ],
)
def test_read_runs_names_the_broken_file(tmp_path, name, text, message):
    path = make_run(tmp_path / "run")
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_runs([path])


def test_read_runs_of_a_directory_without_a_run_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="got no such directory"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"expected a config\.yaml here or in a subdirectory"):
        read_runs([tmp_path])
