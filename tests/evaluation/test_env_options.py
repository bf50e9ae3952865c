"""A policy is evaluated, loaded and exported with other arguments of its environment."""

import dataclasses
import json
import sys

import numpy as np
import pytest

import sebulba
from sebulba.config import EnvConfig
from sebulba.export.__main__ import main as export_main
from sebulba.rerun import main as rerun_main
from sebulba.run import training
from tests.evaluation.runs import tiny_config

command = sys.modules[sebulba.evaluate.__module__]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose environment has made a file that must not exist when it is made."""
    directory = tmp_path_factory.mktemp("marking")
    config = tiny_config(
        "impala",
        directory / "run",
        env=EnvConfig(
            suite="gymnasium",
            id="tests.envs.marking:Unaware",
            options={"directory": str(directory), "length": 3},
        ),
    )
    config = dataclasses.replace(config, actor=dataclasses.replace(config.actor, num_envs=1))
    assert training.train_to_exit_code(config) == 0
    return directory / "run"


def evaluate(*arguments):
    return command.evaluate_to_exit_code(command.parse([str(each) for each in arguments]))


def test_the_error_of_an_environment_names_its_line_and_the_flag(run, capsys):
    assert evaluate(run, "--episodes", 2) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "EnvironmentFault: its constructor raised FileExistsError" in last
    assert "(marking.py:" in last
    assert "--env.options.NAME VALUE" in last


def test_an_evaluation_has_arguments_of_its_own_and_the_run_s_others(run, tmp_path):
    file = tmp_path / "results.json"
    arguments = ("--episodes", 2, "--parallel-envs", 1, "--json", file)
    assert evaluate(run, *arguments, "--env.options.directory", "null") == 0
    results = json.loads(file.read_text())
    assert [each["length"] for each in results["episodes"]] == [3, 3]
    assert results["protocol"]["settings"]["directory"] is None
    options = "--env.options={directory: null, length: 5}"
    assert evaluate(run, *arguments, options) == 0
    results = json.loads(file.read_text())
    assert [each["length"] for each in results["episodes"]] == [5, 5]


def test_python_gives_an_evaluation_and_a_policy_the_same_arguments(run):
    options = {"directory": None, "length": 4}
    assert sebulba.evaluate(run, episodes=1, env_options=options).lengths == (4,)
    policy = sebulba.load_policy(run, env_options=options)
    policy(np.zeros(2, np.float32))
    assert sebulba.evaluate(policy, episodes=1).lengths == (4,)
    longer = sebulba.evaluate(policy, episodes=1, env_options={"length": 6})
    assert longer.lengths == (6,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--env.options.lenght", "3"],
            "env.options.lenght: its constructor has no parameter lenght; did you mean",
        ),
        (["--env.option.length", "3"], "--env.option.length: unknown flag; did you mean"),
        (["--env.id", "NoSuch-v0"], "Gymnasium has no 'NoSuch-v0'"),
    ],
)
def test_a_wrong_flag_of_the_environment_is_a_usage_error(run, capsys, flags, message):
    assert evaluate(run, "--env.options.directory", "null", *flags) == 2
    assert message in capsys.readouterr().err


def test_a_flag_of_the_environment_without_a_value_is_a_usage_error(run, capsys):
    with pytest.raises(SystemExit) as caught:
        evaluate(run, "--env.options.directory")
    assert caught.value.code == 2
    assert "--env.options.directory: expected a value, got none" in capsys.readouterr().err


@pytest.mark.parametrize("main", [export_main, rerun_main])
def test_other_commands_name_the_line_and_the_flag_too(run, monkeypatch, capsys, main):
    more = ["--to-cycle", "1"] if main is rerun_main else []
    monkeypatch.setattr(sys, "argv", ["command", str(run), *more])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "its constructor raised FileExistsError" in last
    assert "(marking.py:" in last
    assert "--env.options.NAME VALUE" in last


def test_a_rerun_makes_environments_with_other_arguments(run, monkeypatch, capsys):
    flags = ["--to-cycle", "1", "--env.options.directory", "null"]
    monkeypatch.setattr(sys, "argv", ["rerun", str(run), *flags])
    with pytest.raises(SystemExit) as caught:
        rerun_main()
    assert caught.value.code == 0


def test_an_export_reads_the_spaces_of_an_environment_with_other_arguments(
    run, tmp_path, monkeypatch
):
    pytest.importorskip("flatbuffers")
    arguments = [run, "-o", tmp_path / "export", "--platforms", "cpu"]
    flags = ["--env.options.directory", "null"]
    monkeypatch.setattr(sys, "argv", ["export", *map(str, arguments), *flags])
    with pytest.raises(SystemExit) as caught:
        export_main()
    assert caught.value.code == 0
    assert (tmp_path / "export" / "policy.json").is_file()
