"""Which rows of checksums a run writes, and that they are those of any run of the same numbers."""

import dataclasses
import json

import pytest

from sebulba.config import LearnerConfig, RunConfig
from sebulba.run import training
from sebulba.storage.checksums import checksums_of
from tests.evaluation.runs import tiny_config
from tests.run.runs import make_config

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

CYCLES = [0, 1, 2, 5, 10, 20, 21]


def rows_of(path, *, resume=None, checksums=True, **run):
    """Trains for 21 learner cycles, and returns the rows."""
    config = make_config(path, learner=LearnerConfig(policy_lag=1), resume=resume)
    run = {"total_env_steps": 1500, "checksums": checksums, **run}
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, **run))
    assert training.train_to_exit_code(config) == 0
    return checksums_of(path) if checksums else []


def networks_of(path):
    return json.loads((path / "summary.json").read_text())["networks_crc32"]


def parts_of(row):
    return {name.partition(".")[0] for name in row.leaves}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "threads"


@pytest.fixture(scope="module")
def threads(run_dir):
    return rows_of(run_dir)


def test_a_run_writes_rows_before_its_first_cycle_at_the_due_ones_and_after_its_last(threads):
    assert [row.num_cycles for row in threads] == CYCLES
    assert parts_of(threads[0]) == {"networks"}  # the toy agent's optimizer has no state
    assert all(parts_of(row) == {"networks", "trajectories"} for row in threads[1:])
    assert len({row.leaves["trajectories.action"] for row in threads[1:]}) > 1


def test_one_thread_gives_the_same_rows(threads, tmp_path):
    assert rows_of(tmp_path / "run", mode="serial") == threads


def test_a_run_that_was_resumed_has_the_same_rows(threads, tmp_path):
    rows_of(tmp_path / "run", total_env_steps=900)
    rows = rows_of(tmp_path / "run", resume="latest")
    # The end of the first part is a row, too.
    assert [row for row in rows if row.num_cycles in CYCLES] == threads


@pytest.mark.usefixtures("threads")
def test_a_run_without_checksums_learns_the_same_and_writes_none(run_dir, tmp_path):
    rows_of(tmp_path / "run", checksums=False)
    assert networks_of(tmp_path / "run") == networks_of(run_dir)
    assert not (tmp_path / "run" / "checksums.jsonl").exists()


def test_a_leaf_without_a_checksum_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    def fail(arrays):
        raise TypeError("no bytes")

    monkeypatch.setattr("sebulba.storage.sketches.leaf_sum", fail)
    assert rows_of(tmp_path / "run") == []
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "checksums:" in line]
    assert line.startswith("checksums: TypeError: no bytes (")
    assert line.endswith("; training continues without them")


def test_one_program_ends_its_calls_at_the_due_cycles(tmp_path):
    found = {}
    for mode in ("anakin", "threads"):
        config = tiny_config("impala", tmp_path / mode)
        run = RunConfig(total_env_steps=2000, log_interval_env_steps=2000, mode=mode)
        assert training.train_to_exit_code(dataclasses.replace(config, run=run)) == 0
        found[mode] = checksums_of(tmp_path / mode)
    numbers = [row.num_cycles for row in found["anakin"]]
    assert numbers[:-1] == [0, 1, 2, 5, 10, 20, 50]
    assert numbers == [row.num_cycles for row in found["threads"]]
    for ours, theirs in zip(found["anakin"], found["threads"], strict=True):
        assert parts_of(ours) == {"networks", "opt_state"}
        assert {name: theirs.leaves[name] for name in ours.leaves} == ours.leaves
