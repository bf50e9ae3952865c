"""Checkpoints that cannot be used, through the front door: exit code 4 and nothing changed."""

import dataclasses
import pathlib
import pickle
import shutil

import pytest

from sebulba.run import training
from sebulba.storage.checkpoints.restore import steps_in
from tests.faults.runs import last_line, make_config, summary_of
from tests.run.resuming import rows_in
from tests.subprocesses import run_python
from tests.toys import ToyConfig


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert training.train_to_exit_code(make_config(path, run={"total_env_steps": 100})) == 0
    return path


@pytest.fixture
def run_dir(finished, tmp_path):
    """A copy of the finished run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def resume(run_dir):
    """Resumes in the same directory; returns the exit code."""
    config = make_config(run_dir, run={"total_env_steps": 200})
    return training.train_to_exit_code(dataclasses.replace(config, resume="latest"))


def data_files(run_dir):
    """Return the files with the arrays."""
    (step,) = steps_in(run_dir / "checkpoints")
    return [run_dir / f"checkpoints/{step}/arrays.npz"]


def assert_refused(run_dir, capsys):
    """Asserts exit code 4, with what is where and nothing changed; returns stderr."""
    rows, summary, steps = rows_in(run_dir), summary_of(run_dir), steps_in(run_dir / "checkpoints")
    assert resume(run_dir) == 4
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith("sebulba: CheckpointError: checkpoint ")
    assert str(run_dir) in last
    assert (rows_in(run_dir), summary_of(run_dir)) == (rows, summary)
    assert steps_in(run_dir / "checkpoints") == steps
    return error


def flip(file):
    content = bytearray(file.read_bytes())
    # A single bit may hit what nothing refers to; every second byte does not.
    content[::2] = bytes(byte ^ 1 for byte in content[::2])
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove(file):
    file.unlink()


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self._path,)


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_damaged_checkpoint_is_refused(damage, run_dir, capsys):
    for file in data_files(run_dir):
        damage(file)
    assert "is damaged" in assert_refused(run_dir, capsys)


def test_pickle_in_a_checkpoint_is_not_executed(run_dir, tmp_path, capsys):
    trace = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists(), "it would have been seen"
    trace.unlink()
    (step,) = steps_in(run_dir / "checkpoints")
    for file in (run_dir / f"checkpoints/{step}").rglob("*"):
        if file.is_file():
            file.write_bytes(pickle.dumps(Bomb(trace)))
    assert_refused(run_dir, capsys)
    assert not trace.exists()


def test_checkpoint_of_other_networks_is_refused_with_a_table(run_dir, tmp_path, capsys):
    other = make_config(tmp_path / "other", actor={"num_envs": 2}, run={"total_env_steps": 100})
    assert training.train_to_exit_code(other) == 0
    shutil.rmtree(run_dir / "checkpoints")
    shutil.copytree(tmp_path / "other/checkpoints", run_dir / "checkpoints")
    error = assert_refused(run_dir, capsys)
    assert "to resume" not in error, "no other checkpoint of that run would fit"
    rows = [line for line in error.splitlines() if "actor_state.count" in line]
    assert len(rows) == 2
    assert all("int32[2]" in row and "int32[4]" in row for row in rows)


def test_foreign_directory_is_refused(run_dir, capsys):
    (step,) = steps_in(run_dir / "checkpoints")
    shutil.rmtree(run_dir / f"checkpoints/{step}")
    (run_dir / "checkpoints/7").mkdir()
    (run_dir / "checkpoints/7/model.pt").write_bytes(b"weights of something else")
    assert_refused(run_dir, capsys)


def test_row_20_the_newest_checkpoint_that_is_whole_is_recommended(run_dir, capsys):
    """Row 20: of three checkpoints the newest two are damaged."""
    first = steps_in(run_dir / "checkpoints")[-1]
    for env_steps in (200, 300):
        config = make_config(run_dir, run={"total_env_steps": env_steps}, checkpoint={"keep": 9})
        assert training.train_to_exit_code(dataclasses.replace(config, resume="latest")) == 0
    capsys.readouterr()
    _, second, third = steps_in(run_dir / "checkpoints")
    truncate(run_dir / f"checkpoints/{third}/arrays.npz")
    flip(run_dir / f"checkpoints/{second}/manifest.json")
    assert resume(run_dir) == 4
    last = last_line(capsys)
    assert f"CheckpointError: checkpoint {third} in " in last and "is damaged" in last
    assert f"The newest checkpoint that is whole is of cycle {first}; to resume" in last
    assert last.endswith(f"--run-dir {run_dir} --resume {first} --run.total-env-steps 200")
    config = make_config(run_dir, run={"total_env_steps": 200})
    assert training.train_to_exit_code(dataclasses.replace(config, resume=str(first))) == 0
    for step in steps_in(run_dir / "checkpoints"):
        remove(run_dir / f"checkpoints/{step}/arrays.npz")
    assert resume(run_dir) == 4
    assert last_line(capsys).endswith("No checkpoint is whole; start again with another run_dir.")


@pytest.mark.slow
def test_damaged_checkpoint_is_refused_on_the_command_line(run_dir):
    for file in data_files(run_dir):
        truncate(file)
    command = ("-m", "sebulba.train", run_dir / "config.yaml", "--run-dir", run_dir)
    process = run_python(*command, "--resume", "latest")
    assert process.returncode == 4
    assert "is damaged" in process.stderr.splitlines()[-1]


def test_another_agent_in_the_same_directory_is_refused_before_any_checkpoint(run_dir, capsys):
    config = dataclasses.replace(
        make_config(run_dir), agent=ToyConfig(learning_rate=0.5), resume="latest"
    )
    assert training.train_to_exit_code(config) == 2
    assert "agent.learning_rate (there 0.1, now 0.5)" in last_line(capsys)
