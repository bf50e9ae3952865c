"""A resume that failed does not advise the resume that has just failed."""

import dataclasses
import pathlib

import pytest

from sebulba.config import EnvConfig
from sebulba.run import training
from sebulba.run.last_lines import describe_failure, describe_unusable_checkpoint
from sebulba.run.result import error_before_start
from sebulba.storage.checkpoints.restore import CheckpointError, steps_in
from tests.evaluation.runs import tiny_config

ADVICE = "--resume latest"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A finished run, whose environment has made a file that must not exist when it is made."""
    directory = tmp_path_factory.mktemp("marking")
    options = {"directory": str(directory)}
    env = EnvConfig(suite="gymnasium", id="tests.envs.marking:Unaware", options=options)
    config = tiny_config("impala", directory / "run", env=env)
    config = dataclasses.replace(config, actor=dataclasses.replace(config.actor, num_envs=1))
    assert training.train_to_exit_code(config) == 0
    return config


def test_a_resume_that_cannot_begin_says_what_to_correct_first(config, capsys):
    resumed = dataclasses.replace(config, resume="latest")
    assert training.train_to_exit_code(resumed) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "EnvironmentFault: its constructor raised FileExistsError" in last
    assert "from which this run resumed: correct the cause before you resume again." in last
    assert ADVICE not in last
    message = str(
        error_before_start(RuntimeError("no"), pathlib.Path(resumed.run_dir), is_resume=True)
    )
    assert "correct the cause" in message
    assert ADVICE not in message


def test_a_run_that_failed_without_a_new_checkpoint_says_so(config):
    path = pathlib.Path(config.run_dir)
    last = max(steps_in(path / "checkpoints"))
    again = describe_failure(RuntimeError("no"), path, resumed_at=last)
    assert f"is of cycle {last}, from which this run resumed: correct the cause" in again
    assert ADVICE not in again
    for resumed_at in (None, last - 1):
        assert ADVICE in describe_failure(RuntimeError("no"), path, resumed_at=resumed_at)


def test_a_reason_before_a_table_is_a_sentence_in_the_last_line(config):
    path = pathlib.Path(config.run_dir)
    error = CheckpointError(
        "checkpoint 3 is of other networks than this run's:\na table", fits=False
    )
    line = describe_unusable_checkpoint(error, path)
    assert "CheckpointError: checkpoint 3 is of other networks than this run's. Results so" in line
