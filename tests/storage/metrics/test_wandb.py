import importlib.util
import pathlib
import struct
import sys

import pytest

from sebulba.errors import ConfigError
from sebulba.storage.metrics.wandb import WandbWriter


def read_records(path):
    """Reads W&B's log: a header of 7 bytes, then records of checksum (4), length (2), part (1)."""
    data, position, content, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        length, part = struct.unpack("<HB", data[position + 4 : position + 7])
        content += data[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):  # a complete record, or the last part of one
            records.append(content)
            content = b""
    return records


def test_wandb_that_is_not_installed_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"run.wandb_project: .*sebulba\[wandb\]"):
        WandbWriter(tmp_path, project="project", name="name", config={})


def test_wandb_row_is_logged_at_its_env_steps(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    writer = WandbWriter(tmp_path, project="project", name="a-run", config={"seed": 3})
    writer.write({"env_steps": 10, "updates": 2, "loss": 0.5, "return": None, "note": "text"})
    writer.close()
    writer.close()
    assert wandb.run is None
    (log,) = pathlib.Path(tmp_path).rglob("*.wandb")
    records = [Record.FromString(data) for data in read_records(log)]
    (history,) = [
        record.history for record in records if record.WhichOneof("record_type") == "history"
    ]
    logged = {"/".join(item.nested_key) or item.key: item.value_json for item in history.item}
    assert (logged["_step"], logged["updates"], logged["loss"]) == ("10", "2", "0.5")
    assert logged["env_steps"] == "10"  # the x-axis
    assert not {"return", "note"} & set(logged)
