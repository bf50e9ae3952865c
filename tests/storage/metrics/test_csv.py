import math

import pytest

from sebulba.storage.metrics.csv import CsvWriter


def write_rows(path, *rows, **kwargs):
    writer = CsvWriter(path, **kwargs)
    for row in rows:
        writer.write(row)
    writer.close()


def test_csv_row_is_on_disk_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write({"env_steps": 1, "loss": 0.25, "return": None, "note": "a,b", "bad": math.nan})
    assert path.read_text() == 'env_steps,loss,return,note,bad\n1,0.25,,"a,b",nan\n'
    writer.close()
    writer.close()


def test_csv_late_key_gets_a_new_last_column(tmp_path):
    path = tmp_path / "metrics.csv"
    write_rows(
        path,
        {"env_steps": 1, "loss": 0.5},
        {"late": 7, "env_steps": 2, "loss": 0.25},
        {"env_steps": 3},
    )
    assert path.read_text() == "env_steps,loss,late\n1,0.5,\n2,0.25,7\n3,,\n"
    assert list(tmp_path.iterdir()) == [path]


def test_csv_existing_file_is_appended_to_under_its_header(tmp_path):
    path = tmp_path / "metrics.csv"
    write_rows(path, {"env_steps": 1, "loss": 0.5})
    write_rows(path, {"loss": 0.25, "env_steps": 2}, {"loss": 0.1, "env_steps": 3, "late": 1})
    assert path.read_text() == "env_steps,loss,late\n1,0.5,\n2,0.25,\n3,0.1,1\n"


def test_csv_torn_last_line_is_removed_on_opening(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("env_steps,loss\n1,0.5\n2,0.")
    write_rows(path, {"env_steps": 2, "loss": 0.25})
    assert path.read_text() == "env_steps,loss\n1,0.5\n2,0.25\n"


def test_csv_resume_removes_rows_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("env_steps,loss\n10,0.5\n20,0.4\n,0.3\n30,0.3\n")
    write_rows(path, {"env_steps": 25, "loss": 0.1}, resume_env_steps=20)
    assert path.read_text() == "env_steps,loss\n10,0.5\n20,0.4\n25,0.1\n"


def test_csv_full_disk_leaves_complete_rows_under_the_old_header(tmp_path, full_disk):
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write({"env_steps": 1})
    with full_disk(path.stat().st_size + 1):
        with pytest.raises(OSError):
            writer.write({"env_steps": 222})
        with pytest.raises(OSError):
            writer.write({"env_steps": 3, "late": 1})
    assert path.read_text() == "env_steps\n1\n"
    writer.write({"env_steps": 4, "late": 1})
    writer.close()
    assert path.read_text() == "env_steps,late\n1,\n4,1\n"
    assert list(tmp_path.iterdir()) == [path]
