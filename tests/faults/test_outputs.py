"""Disks that are full, writers that break, and agents that misplace their state."""

import errno
import json
import os
import threading

import pytest

from sebulba.run import ending, rows, training
from sebulba.storage.metrics.csv import CsvWriter
from sebulba.storage.metrics.files import LineFile
from sebulba.storage.metrics.tensorboard import TensorBoardWriter
from tests.faults.runs import BREAKING, last_line, make_config, summary_of
from tests.run.resuming import rows_in

pytestmark = pytest.mark.shares_programs


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_stops_neither_training_nor_the_checkpoints_that_still_fit(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(LineFile, "append", no_space)
    monkeypatch.setattr(ending, "write_json", no_space)
    config = make_config(tmp_path)
    assert training.train_to_exit_code(config) == 0
    error = capsys.readouterr().err
    for what in ("metrics: JsonlWriter", "metrics: checksums.jsonl", "summary: not written"):
        assert error.count(what) == 1
    assert "No space left on device" in error
    assert any(tmp_path.glob("checkpoints/*"))


def test_writer_that_raises_costs_one_warning_and_its_own_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(CsvWriter, "write", no_space)
    assert training.train_to_exit_code(make_config(tmp_path)) == 0
    assert capsys.readouterr().err.count("metrics: CsvWriter failed") == 1
    assert rows_in(tmp_path)[-1]["env_steps"] == summary_of(tmp_path)["env_steps"] >= 400
    assert summary_of(tmp_path)["dropped_rows"] == {"CsvWriter": len(rows_in(tmp_path))}


def test_writer_that_blocks_is_given_up_at_the_end(tmp_path, monkeypatch, capsys):
    release = threading.Event()
    monkeypatch.setattr(TensorBoardWriter, "write", lambda self, row: release.wait(60.0))
    monkeypatch.setattr(rows, "_WRITERS_DEADLINE_S", 0.2)
    try:
        assert training.train_to_exit_code(make_config(tmp_path)) == 0
    finally:
        release.set()
    error = capsys.readouterr().err
    assert error.count("metrics: TensorBoardWriter did not finish in time") == 1
    assert summary_of(tmp_path)["status"] == "done"


@pytest.mark.parametrize(
    ("agent", "got"),
    [("DroppingAgent", "no such leaf"), ("MisplacingAgent", "int32[1,4]")],
)
def test_actor_state_that_is_sharded_wrongly_ends_with_code_3_and_the_leaf(
    agent, got, tmp_path, capsys
):
    assert training.train_to_exit_code(make_config(tmp_path, agent=f"{BREAKING}:{agent}")) == 3
    last = last_line(capsys)
    assert "AgentError: shard_actor_state: count: expected int32[4], got" in last and got in last
    assert "in actor " in last and ", cycle 0" in last
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
