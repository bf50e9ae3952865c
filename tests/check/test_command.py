"""The command line of the check: exit codes, the table, its JSON, and no jax before it is valid."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

from sebulba.check import __main__ as door
from sebulba.check import command
from sebulba.check.command import print_report, write_report
from sebulba.check.result import first_difference
from sebulba.check.suite import CheckResult, Report

REPORT = Report(
    results=tuple(
        CheckResult(name=name, property="it holds", status=status, detail=detail)
        for name, status, detail in (
            ("one", "pass", "all"),
            ("two", "fail", "leaf[3]: expected 1, got 2"),
            ("three", "unclear", "a tie"),
            ("x", "skip", "no"),
        )
    ),
    memory_plan="learner device 1 KiB",
)


def run_command(*arguments, timeout=600):
    return subprocess.run(
        [sys.executable, "-m", "sebulba.check", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_wrong_command_line_exits_with_2_and_the_usage():
    result = run_command("configs/no_such.yaml")
    assert result.returncode == 2
    assert "usage: python -m sebulba.check CONFIG" in result.stderr


def test_help_needs_no_jax():
    code = "import sys; import sebulba.check.__main__; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("flags", [["--json", "x.json"], ["--json=x.json"]])
def test_json_is_no_flag_of_the_config(flags, monkeypatch):
    monkeypatch.setattr(command, "run_check", lambda config, path, only: f"{config.seed} {path}")
    monkeypatch.setattr(sys, "argv", ["check", *flags, "configs/pg_bandit.yaml", "--seed", "5"])
    with pytest.raises(SystemExit) as exit_info:
        door.main()
    assert exit_info.value.code == "5 x.json"


def test_questions_are_named_by_several_flags_or_with_commas(monkeypatch):
    monkeypatch.setattr(command, "run_check", lambda config, path, only: " ".join(only))
    flags = ["--only", "rows,masks", "--only", "memory", "episodes"]
    monkeypatch.setattr(sys, "argv", ["check", "configs/pg_bandit.yaml", *flags])
    with pytest.raises(SystemExit) as exit_info:
        door.main()
    assert exit_info.value.code == "rows masks memory episodes"


def test_json_without_a_file_is_a_usage_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check", "a.yaml", "--json"])
    with pytest.raises(SystemExit) as exit_info:
        door.main()
    assert exit_info.value.code == 2
    assert "argument --json: expected one argument" in capsys.readouterr().err


def test_the_table_marks_each_check(capsys):
    print_report(REPORT, "an agent on an environment", sys.stdout)
    lines = capsys.readouterr().out.splitlines()
    rows = {mark: line for line in lines for mark in "✓✗?–" if line.strip().startswith(mark)}
    assert "one" in rows["✓"] and "two" in rows["✗"] and "x" in rows["–"]
    assert "leaf[3]: expected 1, got 2" in rows["✗"]
    assert any("of the agent, on a probe" in line for line in lines)
    assert "three" in rows["?"] and "a tie" in rows["?"]
    assert lines[-3] == "1 passed, 1 failed, 1 unclear, 1 skipped"
    assert lines[-1] == "memory plan: learner device 1 KiB"


def test_the_table_breaks_no_name_on_a_terminal_of_80_columns(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "80")
    leaf = "networks.params['params']['torso']['convolution_1']['kernel']"
    result = CheckResult(name="gradient", property="flows", status="fail", detail=leaf)
    stream = Terminal()
    print_report(Report(results=(result,), memory_plan=None), "an agent", stream)
    assert leaf in stream.getvalue()


def test_the_json_holds_every_check(tmp_path):
    write_report(REPORT, tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["ok"] is False
    assert [each["status"] for each in content["checks"]] == [
        "pass",
        "fail",
        "unclear",
        "skip",
    ]


def test_a_difference_names_leaf_row_environment_and_both_values():
    expected = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 3, 2), np.int32)}
    got = {"a": expected["a"], "b": expected["b"].copy()}
    got["b"][1, 2, 0] = 5
    words = first_difference(expected, got, what="row", axes=("row", "env"), place="actor 3")
    assert words == "row.b[0] (actor 3, row 1, env 2): expected 0, got 5"
    assert first_difference(expected, expected, what="row", axes=("row", "env")) is None


def test_an_unclear_answer_is_no_failure():
    results = tuple(each for each in REPORT.results if each.status != "fail")
    assert not Report(results=results, memory_plan=None).has_failures


@pytest.mark.slow
def test_the_command_passes_a_shipped_config_and_writes_json(tmp_path):
    path = tmp_path / "report.json"
    small = ["--actor.num-envs", "4", "--json", str(path)]
    result = run_command("configs/impala_catch.yaml", *small)
    assert result.returncode == 0, result.stdout
    assert "✗" not in result.stdout and "memory plan: " in result.stdout
    assert json.loads(path.read_text())["ok"] is True
