"""Disks that fill: small file systems, and errors in their place where mounting is not allowed."""

import contextlib
import dataclasses
import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from sebulba.run import training
from sebulba.storage.checkpoints import checkpointer
from sebulba.storage.checkpoints.restore import steps_in
from tests.disturbances import before
from tests.faults.runs import ENDLESS, last_line, make_config, summary_of
from tests.run.resuming import rows_in
from tests.storage.metrics.test_tensorboard import read_events
from tests.subprocesses import DEADLINE_S, started, wait_for
from tests.toys import ToyAgent

pytestmark = pytest.mark.shares_programs

ROOT = pathlib.Path(__file__).parents[2]


class FillingAgent(ToyAgent):
    """Calls what a test has set before its learner cycles."""

    before_cycle = staticmethod(lambda cycle: None)

    def num_updates_per_cycle(self, cycle):
        type(self).before_cycle(cycle)
        return 1


AGENT = f"{__name__}:FillingAgent"


@pytest.fixture
def mount(tmp_path):
    """Returns a function that mounts an empty file system with these options."""
    with contextlib.ExitStack() as mounted:

        def make(options):
            path = tmp_path / f"disk-{options}"
            path.mkdir()
            command = ("mount", "-t", "tmpfs", "-o", options, "tmpfs", path)
            if subprocess.run(command, capture_output=True).returncode:
                pytest.skip("mounting is not allowed")
            mounted.callback(subprocess.run, ("umount", "-l", path), check=True)
            return path

        yield make


def fill(disk):
    """Leaves no byte free; returns the file that fills the disk."""
    path = disk / "filler"
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return path


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_after_a_checkpoint(monkeypatch, run_dir, disk, at_cycle=8):
    def before_cycle(cycle):
        if cycle == at_cycle:
            while not steps_in(run_dir / "checkpoints"):
                time.sleep(0.01)
            fill(disk)

    monkeypatch.setattr(FillingAgent, "before_cycle", staticmethod(before_cycle))


def test_row_2_a_last_state_that_is_not_on_disk_is_not_done(tmp_path, monkeypatch, capsys):
    run_dir = tmp_path / "run"

    def before_cycle(cycle):
        if cycle == 8:
            while not steps_in(run_dir / "checkpoints"):
                time.sleep(0.01)
            monkeypatch.setattr(checkpointer, "_write_arrays", no_space)

    monkeypatch.setattr(FillingAgent, "before_cycle", staticmethod(before_cycle))
    config = make_config(run_dir, agent=AGENT, checkpoint={"interval_s": 0})
    assert training.train_to_exit_code(config) == 7
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith("sebulba: reached its goal, but the last state is not saved: ")
    assert "No space left on device" in last
    step = steps_in(run_dir / "checkpoints")[-1]
    assert f"The last checkpoint is of cycle {step}; to resume from it: " in last
    assert summary_of(run_dir)["status"] == "unsaved"
    assert error.count("training continues, and the next interval tries again") <= 1
    monkeypatch.undo()
    assert training.train_to_exit_code(dataclasses.replace(config, resume="latest")) == 0
    assert summary_of(run_dir)["status"] == "done"


@pytest.mark.slow
def test_row_2_the_last_save_counts_although_earlier_ones_failed(tmp_path, monkeypatch, capsys):
    write = checkpointer._write_arrays

    def before_cycle(cycle):
        is_full = 5 <= cycle < 15
        monkeypatch.setattr(checkpointer, "_write_arrays", no_space if is_full else write)

    monkeypatch.setattr(FillingAgent, "before_cycle", staticmethod(before_cycle))
    config = make_config(tmp_path / "run", agent=AGENT, checkpoint={"interval_s": 0})
    assert training.train_to_exit_code(config) == 0
    assert summary_of(tmp_path / "run")["status"] == "done"


def test_row_2_a_failure_keeps_its_code_and_says_that_its_state_is_not_saved(
    tmp_path, monkeypatch, capsys
):
    def before_cycle(cycle):
        if cycle == 5:
            monkeypatch.setattr(checkpointer, "_write_arrays", no_space)
            before("act", no_space, setattr=monkeypatch.setattr)

    monkeypatch.setattr(FillingAgent, "before_cycle", staticmethod(before_cycle))
    assert training.train_to_exit_code(make_config(tmp_path / "run", agent=AGENT)) == 3
    last = last_line(capsys)
    assert "in actor 0, cycle " in last
    assert "The last state was not saved: the checkpoint of step " in last


def test_row_2_and_13_on_a_full_disk(mount, monkeypatch, capsys):
    disk = mount("size=2m")
    run_dir = disk / "run"
    fill_after_a_checkpoint(monkeypatch, run_dir, disk)
    config = make_config(
        run_dir,
        agent=AGENT,
        run={"log_interval_env_steps": 20},
        checkpoint={"interval_s": 0},
    )
    assert training.train_to_exit_code(config) == 7
    error = capsys.readouterr().err
    assert "No space left on device" in error.splitlines()[-1]
    assert error.count("TensorBoardWriter") == 1
    assert len(list(run_dir.glob("events.*"))) == 1
    (disk / "filler").unlink()
    monkeypatch.undo()
    assert training.train_to_exit_code(dataclasses.replace(config, resume="latest")) == 0


def test_row_13_tensorboard_continues_in_the_same_file_once_there_is_room(
    mount, monkeypatch, capsys
):
    disk = mount("size=2m")
    run_dir = disk / "run"

    def before_cycle(cycle):
        if cycle == 5:
            fill(disk)
        if cycle == 10:
            (disk / "filler").unlink()

    monkeypatch.setattr(FillingAgent, "before_cycle", staticmethod(before_cycle))
    config = make_config(run_dir, agent=AGENT, run={"log_interval_env_steps": 20})
    assert training.train_to_exit_code(config) == 0
    (path,) = run_dir.glob("events.*")
    assert read_events(path)[-1].step == rows_in(run_dir)[-1]["env_steps"]
    assert capsys.readouterr().err.count("TensorBoardWriter") <= 1


@pytest.mark.parametrize("options", ["size=8k", "nr_inodes=2"])
def test_row_15_a_disk_that_is_full_at_the_start_ends_with_2(options, mount, capsys):
    disk = mount(options)
    fill(disk) if options.startswith("size") else (disk / "other").touch()
    assert training.train_to_exit_code(make_config(disk / "run")) == 2
    assert "No space left on device" in last_line(capsys)
    assert not (disk / "run").exists()


@pytest.mark.parametrize("num_inodes", [4, 5, 6, 7, 8, 9])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_row_15_few_inodes_at_the_start_end_with_a_documented_code(num_inodes, mount, capsys):
    code = training.train_to_exit_code(make_config(mount(f"nr_inodes={num_inodes}") / "run"))
    last = capsys.readouterr().err.splitlines()[-1]
    assert code in (2, 3, 7), last
    assert last.startswith("sebulba: ") and "No space left on device" in last


@pytest.mark.slow
@pytest.mark.parametrize("options", ["size=2m", "nr_inodes=12"])
def test_rows_2_and_4_a_process_on_a_full_disk_ends_within_the_stop_deadline(
    options, mount, tmp_path
):
    disk = mount(options)
    config, run_dir = tmp_path / "config.yaml", disk / "run"
    config.write_text(ENDLESS)
    command = ("-m", "sebulba.train", config, "--run-dir", run_dir)
    with started(*command, stderr=subprocess.PIPE) as process:
        wait_for(lambda: steps_in(run_dir / "checkpoints"), process)
        if options.startswith("size"):
            fill(disk)
        else:
            with contextlib.suppress(OSError):
                for number in range(100):
                    (disk / f"file-{number}").touch()
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        _, error = process.communicate(timeout=DEADLINE_S)
    print(f"{options}: ended {time.monotonic() - told:.1f} s after the signal", file=sys.stderr)
    assert process.returncode == 7, error
    last = error.splitlines()[-1]
    assert last.startswith("sebulba: stopped by SIGTERM, but the last state is not saved: ")
    assert "No space left on device" in last
