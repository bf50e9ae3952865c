"""The command `sebulba`: it runs the modules of its commands, and nothing else."""

import importlib.util
import os
import re
import signal
import subprocess
import sys

import pytest

import sebulba
from sebulba import __main__ as command
from sebulba.process import CALLER_VARIABLE, program
from tests.subprocesses import run_python, started
from tests.test_structure import DOORS


@pytest.fixture(autouse=True)
def no_command_is_imported(monkeypatch):
    """Hides what other tests imported: `runpy` warns of a command that is imported already."""
    for name in {*DOORS} - {"__main__"}:
        monkeypatch.delitem(sys.modules, f"sebulba.{name}", raising=False)


def call(monkeypatch, *arguments):
    monkeypatch.setenv(CALLER_VARIABLE, "")  # and what it is set to is undone
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sebulba", *arguments])
    with pytest.raises(SystemExit) as caught:
        command.main()
    return caught.value.code


def test_help_lists_every_command_line_of_the_package(monkeypatch, capsys):
    assert call(monkeypatch, "--help") == 0
    listed = re.findall(r"^  (\w+)  +\w", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted({*DOORS, "check", "envs", "export"} - {"__main__"})
    assert all(importlib.util.find_spec(f"sebulba.{name}") for name in listed)


def test_help_and_the_list_of_configs_import_no_library():
    for arguments in (["--help"], ["configs"]):
        result = run_python("-X", "importtime", "-m", "sebulba", *arguments)
        assert result.returncode == 0
        modules = re.findall(r"^import time:.*\| +([\w.]+)$", result.stderr, re.MULTILINE)
        assert "sebulba" in modules
        assert not {name.partition(".")[0] for name in modules} & {"jax", "numpy", "yaml", "rich"}


def test_a_command_gets_its_arguments_and_its_name(monkeypatch, capsys):
    assert call(monkeypatch, "train", "impala_cartpol") == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: sebulba train CONFIG")
    assert "did you mean impala_cartpole" in error
    assert call(monkeypatch, "evaluate", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: sebulba evaluate ")


def test_hints_name_the_command_as_it_was_called(monkeypatch):
    assert program("train") == "python -m sebulba.train"
    assert call(monkeypatch, "train", "--help") == 0
    assert program("rerun") == "sebulba rerun"
    monkeypatch.setattr(sys, "argv", ["sebulba/__main__.py", "train", "--help"])
    with pytest.raises(SystemExit):
        command.main()
    assert program("rerun") == "python -m sebulba rerun"


@pytest.mark.parametrize("arguments", [["-m", "sebulba", "configs"], ["-m", "sebulba.train", "-h"]])
def test_a_command_whose_output_nobody_reads_ends_without_a_traceback(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with started(*arguments, stdout=writing, stderr=subprocess.PIPE) as process:
            _, error = process.communicate()
    finally:
        os.close(writing)
    assert (error, process.returncode) == ("", 128 + signal.SIGPIPE)


def test_an_unknown_command_suggests_the_nearest(monkeypatch, capsys):
    assert call(monkeypatch, "trian") == 2
    assert "there is no command trian; did you mean train?" in capsys.readouterr().err


def test_without_a_command_there_is_help_and_exit_code_2(monkeypatch, capsys):
    assert call(monkeypatch) == 2
    assert "sebulba train impala_cartpole" in capsys.readouterr().out


def test_version(monkeypatch, capsys):
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"sebulba {sebulba.__version__}\n"


def test_a_command_finds_modules_of_the_working_directory(monkeypatch, capsys, tmp_path):
    (tmp_path / "my_own_settings.py").write_text("class Agent: pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/bin", *sys.path[1:]])
    assert call(monkeypatch, "train", "impala_catch", "--agent.name=my_own_settings:Agent") == 2
    assert "expected its settings to be a dataclass `Config`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "first",
    [
        "import sebulba; sebulba.train",
        "import sebulba; sebulba.EvaluationResult",
        "import sebulba.train, sebulba.evaluate",
        "from sebulba.evaluate import EvaluationResult",
        "from sebulba import evaluate; import sebulba.evaluate as same; assert same is evaluate",
    ],
)
def test_functions_with_the_name_of_their_module_are_found_without_jax(first):
    script = (
        f"import sys, sebulba; {first};"
        " print(callable(sebulba.train), callable(sebulba.evaluate), 'jax' in sys.modules)"
    )
    result = run_python("-W", "error", "-c", script)
    assert (result.stdout, result.stderr) == ("True True False\n", "")


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_module_with_the_name_of_a_function_runs_as_a_command(name):
    result = run_python("-W", "error", "-m", f"sebulba.{name}", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: python -m sebulba.{name} ")


def test_every_public_name_is_found():
    assert all(getattr(sebulba, name) is not None for name in sebulba.__all__)
    assert set(sebulba.__all__) <= set(dir(sebulba))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = sebulba.trian


def test_configs_are_copied_to_the_working_directory(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CALLER_VARIABLE, "")
    monkeypatch.setattr(sys, "argv", ["sebulba", "configs", "--copy", "impala_catch"])
    command.main()
    assert (tmp_path / "impala_catch.yaml").is_file()
    assert "sebulba train impala_catch.yaml" in capsys.readouterr().out
