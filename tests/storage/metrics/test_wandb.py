import importlib.util
import pathlib
import struct
import sys

import pytest

from sebulba.errors import ConfigError
from sebulba.storage.metrics.base import VIDEO
from sebulba.storage.metrics.wandb import WandbWriter
from tests.subprocesses import wait_for


def read_records(path):
    """Reads W&B's log: a header of 7 bytes, then records of checksum (4), length (2), part (1)."""
    data, position, content, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        length, part = struct.unpack("<HB", data[position + 4 : position + 7])
        if position + 7 + length > len(data):
            break  # W&B is still writing
        content += data[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):  # a complete record, or the last part of one
            records.append(content)
            content = b""
    return records


def history_of(directory):
    """Reads the rows that W&B logged, which its own process writes, also after `finish`."""
    from wandb.proto.wandb_internal_pb2 import Record

    (log,) = pathlib.Path(directory).rglob("*.wandb")

    def read():
        return [Record.FromString(data) for data in read_records(log)]

    wait_for(lambda: any(each.HasField("exit") for each in read()))
    rows = [each.history for each in read() if each.HasField("history")]
    return [
        {"/".join(item.nested_key) or item.key: item.value_json for item in row.item}
        for row in rows
    ]


def test_wandb_that_is_not_installed_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"run.wandb_project: .*sebulba\[wandb\]"):
        WandbWriter(tmp_path, project="project", name="name", config={})


def test_wandb_row_is_logged_at_its_env_steps(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    writer = WandbWriter(tmp_path, project="project", name="a-run", config={"seed": 3})
    writer.write({"env_steps": 10, "updates": 2, "loss": 0.5, "return": None, "note": "text"})
    writer.close()
    writer.close()
    assert wandb.run is None
    (logged,) = history_of(tmp_path)
    assert (logged["_step"], logged["ring/updates"], logged["loss/loss"]) == ("10", "2", "0.5")
    assert logged["env_steps"] == "10"  # the x-axis
    assert not {"return", "note"} & set(logged)


def test_runs_of_one_name_are_apart_and_a_resumed_run_is_the_same(tmp_path, monkeypatch):
    ids = []

    class Run:
        def init(self, **settings):
            ids.append(settings["id"])
            return self

        def __getattr__(self, name):
            return lambda *args, **kwargs: None

    monkeypatch.setitem(sys.modules, "wandb", Run())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    for parent in ("a", "b", "a"):
        directory = tmp_path / parent / "seed-0"
        directory.mkdir(parents=True, exist_ok=True)
        writer = WandbWriter(directory, project="project", name="seed-0", config={})
        writer.write({"env_steps": 10})
        writer.close()
    (tmp_path / "earlier" / "wandb").mkdir(parents=True)
    writer = WandbWriter(tmp_path / "earlier", project="project", name="seed-0", config={})
    writer.write({"env_steps": 10})
    assert ids[0] == ids[2] != ids[1]
    assert ids[3] == "seed-0"  # a run that an earlier version began


def test_wandb_keeps_an_evaluation_that_comes_late_and_its_video(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    writer = WandbWriter(tmp_path, project="project", name="a-run", config={})
    (tmp_path / "videos").mkdir()
    for env_steps in (10, 20):
        (tmp_path / "videos" / f"{env_steps}.gif").write_bytes(b"GIF89a" + bytes([env_steps]))
    writer.write({"env_steps": 20, "loss": 0.5})
    for env_steps, mean in ((10, 1.0), (20, 2.0)):
        video = f"videos/{env_steps}.gif"
        writer.write({"env_steps": env_steps, "evaluation/return_mean": mean, VIDEO: video})
    writer.close()
    late, last = history_of(tmp_path)[1:]
    assert (late["env_steps"], late["evaluation/return_mean"]) == ("10", "1")
    assert (last["env_steps"], last["evaluation/return_mean"]) == ("20", "2")
    assert late[f"{VIDEO}/path"] != last[f"{VIDEO}/path"]
    assert len(list(tmp_path.rglob("media/**/*.gif"))) == 2
