import math
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from sebulba.storage.metrics.tensorboard import TensorBoardWriter


def read_events(path) -> list[Event]:
    """Reads a file of records: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) >= length + 16
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[length + 16 :]
    return events


def scalars(event: Event) -> dict[str, float]:
    return {value.tag: value.simple_value for value in event.summary.value}


def test_tensorboard_row_is_one_event_at_its_env_steps(tmp_path):
    writer = TensorBoardWriter(tmp_path / "tensorboard")
    writer.write({"env_steps": 10, "updates": 2, "loss": 0.5, "return": None, "note": "text"})
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, event = read_events(path)  # before `close`: nothing is held back
    assert path.name.startswith("events.out.tfevents.")
    assert version.file_version == "brain.Event:2"
    assert event.step == 10
    assert event.wall_time > 0
    assert scalars(event) == {"ring/updates": 2.0, "loss/loss": 0.5}
    writer.close()
    writer.close()


def test_tensorboard_keeps_non_finite_numbers(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write({"env_steps": 1, "a": math.nan, "b": math.inf})
    writer.close()
    (path,) = tmp_path.iterdir()
    values = scalars(read_events(path)[1])
    assert math.isnan(values["loss/a"]) and values["loss/b"] == math.inf


def test_tensorboard_resume_hides_what_came_after_the_checkpoint(tmp_path):
    first = TensorBoardWriter(tmp_path)
    first.write({"env_steps": 30, "loss": 1.0})
    first.close()
    second = TensorBoardWriter(tmp_path, resume_env_steps=20)
    second.write({"env_steps": 25, "loss": 2.0})
    second.close()
    old, new = sorted(tmp_path.iterdir())  # TensorBoard reads files in the order of their names
    assert [event.step for event in read_events(old)] == [0, 30]
    _, restart, row = read_events(new)
    assert (restart.session_log.status, restart.step) == (SessionLog.START, 21)
    assert (row.step, scalars(row)) == (25, {"loss/loss": 2.0})


def test_tensorboard_full_disk_raises_and_later_rows_go_to_the_same_file(tmp_path, full_disk):
    writer = TensorBoardWriter(tmp_path)
    writer.write({"env_steps": 1, "loss": 1.0})
    (path,) = tmp_path.iterdir()
    with full_disk(path.stat().st_size + 5), pytest.raises(OSError):
        writer.write({"env_steps": 2, "loss": 1.0})
    writer.write({"env_steps": 3, "loss": 1.0})
    writer.close()
    assert list(tmp_path.iterdir()) == [path]
    assert [event.step for event in read_events(path)] == [0, 1, 3]


def test_tensorboard_has_the_hyper_parameters_of_a_new_run_alone(tmp_path):
    values = {"agent.learning_rate": 1e-3, "agent.hidden_sizes": (8,), "resume": None}
    TensorBoardWriter(tmp_path / "new", hyper_parameters=values).close()
    (path,) = (tmp_path / "new").iterdir()
    tags = [value.tag for event in read_events(path) for value in event.summary.value]
    assert tags[0] == "_hparams_/experiment"
    start = read_events(path)[2].summary.value[0].metadata.plugin_data.content
    assert b"agent.learning_rate" in start and b"[8]" in start
    TensorBoardWriter(tmp_path / "old", hyper_parameters=values, resume_env_steps=3).close()
    (path,) = (tmp_path / "old").iterdir()
    assert not [value for event in read_events(path) for value in event.summary.value]
