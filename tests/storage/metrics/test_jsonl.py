import json
import math

import pytest

from sebulba.storage.metrics.jsonl import JsonlWriter


def read_strictly(path):
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    lines = path.read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def write_rows(path, *rows, **kwargs):
    writer = JsonlWriter(path, **kwargs)
    for row in rows:
        writer.write(row)
    writer.close()


def test_jsonl_row_is_on_disk_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write({"env_steps": 1, "loss": 0.25, "status": "ok", "episode_return_mean": None})
    assert path.read_text() == (
        '{"env_steps": 1, "loss": 0.25, "status": "ok", "episode_return_mean": null}\n'
    )
    writer.close()
    writer.close()


def test_jsonl_non_finite_numbers_are_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5})
    (row,) = read_strictly(path)
    assert row == {"a": None, "b": None, "c": None, "d": 1.5}


def test_jsonl_existing_file_is_appended_to(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, {"env_steps": 1})
    write_rows(path, {"env_steps": 2})
    assert read_strictly(path) == [{"env_steps": 1}, {"env_steps": 2}]


def test_jsonl_torn_last_line_is_removed_on_opening(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 1}\n{"env_st')
    write_rows(path, {"env_steps": 2})
    assert read_strictly(path) == [{"env_steps": 1}, {"env_steps": 2}]


def test_jsonl_resume_removes_rows_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, {"env_steps": 10}, {"env_steps": 20, "loss": math.nan})
    with path.open("a") as file:
        file.write('not a row\n{"env_steps": 30}\n{"env')
    write_rows(path, {"env_steps": 25}, resume_env_steps=20)
    assert read_strictly(path) == [
        {"env_steps": 10},
        {"env_steps": 20, "loss": None},
        {"env_steps": 25},
    ]


def test_jsonl_resume_without_a_file_starts_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, {"env_steps": 25}, resume_env_steps=20)
    assert read_strictly(path) == [{"env_steps": 25}]


def test_jsonl_full_disk_raises_and_leaves_no_part_of_a_row(tmp_path, full_disk):
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write({"env_steps": 1})
    with full_disk(path.stat().st_size + 5), pytest.raises(OSError):
        writer.write({"env_steps": 2})
    writer.write({"env_steps": 3})
    writer.close()
    assert read_strictly(path) == [{"env_steps": 1}, {"env_steps": 3}]
