"""`python -m sebulba.plot`."""

import importlib.util
import json
import re
import runpy
import subprocess
import sys

import pytest

from sebulba.figures.drawing import PANELS
from tests.run_directories import make_run


def call(module, *arguments, monkeypatch):
    """Return the exit code of a command line, run in this process."""
    monkeypatch.setattr(sys, "argv", [module, *map(str, arguments)])
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as error:
        return error.code
    return 0


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_plot_writes_the_format_of_the_suffix(tmp_path, monkeypatch, capsys, suffix, begins):
    pytest.importorskip("matplotlib")
    output = tmp_path / f"curves{suffix}"
    run_dir = make_run(tmp_path / "run")
    assert call("sebulba.plot", run_dir, "-o", output, monkeypatch=monkeypatch) == 0
    assert output.read_bytes().startswith(begins)
    assert capsys.readouterr().out == f"wrote {output}\n"


def test_a_directory_without_a_run_exits_2_with_its_name(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    path = make_run(tmp_path / "run")
    (path / "metrics.jsonl").unlink()
    assert call("sebulba.plot", path, "-o", tmp_path / "x.svg", monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err == (
        f"sebulba: {path}: expected a run directory with a metrics.jsonl, got none\n"
    )


def test_plot_of_an_unknown_format_exits_2(tmp_path, monkeypatch, capsys):
    path = make_run(tmp_path / "run")
    assert call("sebulba.plot", path, "-o", tmp_path / "x.jpg", monkeypatch=monkeypatch) == 2
    assert "expected a file ending in .png, .svg, .pdf" in capsys.readouterr().err


def plot_error(*arguments, monkeypatch, capsys):
    """Return the last line of what a command line that exits with 2 prints."""
    assert call("sebulba.plot", *arguments, monkeypatch=monkeypatch) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "labels"),
    [
        (("--y", "loss"), [("env steps", "loss")]),
        (("--x", "updates"), [("updates", "mean episode return")]),
        (
            ("--y", "loss,episodes", "--x", "env_steps,updates"),
            # Two rows; a label that a neighbour has is not repeated.
            [("", "loss"), ("", ""), ("env steps", "episodes"), ("updates", "")],
        ),
        (
            ("--panels", "speed,lag"),
            [
                ("env steps", "env steps per second"),
                ("learner cycles between acting and learning", "share of trajectories"),
            ],
        ),
    ],
)
def test_flags_choose_the_panels(tmp_path, monkeypatch, flags, labels):
    pytest.importorskip("matplotlib")
    path = make_run(tmp_path / "run")
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"loss": 0.5, "episodes": 3} for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    saved = []
    monkeypatch.setattr("sebulba.figures.drawing.save", lambda figure, output: saved.append(figure))
    assert call("sebulba.plot", path, "-o", "x.svg", *flags, monkeypatch=monkeypatch) == 0
    (figure,) = saved
    shown = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes if axes.axison]
    assert shown == labels


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("-o", "x.svg", "--y", "los"), "expected a column of metrics.jsonl, got los"),
        (("-o", "x.svg", "--panels", "speeds"), "--panels: expected names of returns, "),
        (("-o", "x.svg", "--panels", "speed", "--y", "loss"), "expected --panels, or --y and --x"),
        ((), "expected -o FILE or --json FILE, got neither"),
        (("-o", "x.svg", "--matches", "x.json"), "--matches: expected no RUN_DIR and no --json"),
        (("--json", "x.json", "--y", "a,b"), "--json: expected one --x and one --y, got several"),
    ],
)
def test_a_wrong_flag_exits_2(tmp_path, monkeypatch, capsys, flags, message):
    pytest.importorskip("matplotlib")
    path = make_run(tmp_path / "run")
    assert message in plot_error(path, *flags, monkeypatch=monkeypatch, capsys=capsys)


def test_a_file_without_matches_exits_2(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "results.json"
    flags = ("--matches", path, "-o", tmp_path / "x.svg")
    assert call("sebulba.plot", *flags, monkeypatch=monkeypatch) == 2
    assert f"got {path}, no such file" in capsys.readouterr().err
    path.write_text('{"statistics": {}}')
    assert call("sebulba.plot", *flags, monkeypatch=monkeypatch) == 2
    assert f"got {path}, a file of something else" in capsys.readouterr().err


def test_help_names_every_panel(monkeypatch, capsys):
    assert call("sebulba.plot", "--help", monkeypatch=monkeypatch) == 0
    words = capsys.readouterr().out.replace(",", " ").replace(";", " ").split()
    assert set(PANELS) <= set(words)


def test_json_holds_the_scores_of_seeds(tmp_path, monkeypatch, capsys):
    paths = [make_run(tmp_path / str(i), seed=i, returns=(0.0, 1.0 + i)) for i in range(3)]
    output = tmp_path / "scores.json"
    assert call("sebulba.plot", *paths, "--json", output, monkeypatch=monkeypatch) == 0
    exported = json.loads(output.read_text())
    assert exported["scores"] == {"impala": [[1.0], [2.0], [3.0]]}
    assert capsys.readouterr().out == f"wrote {output}\n"


def test_without_matplotlib_the_install_command_is_printed(tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "matplotlib" else find_spec(name, *rest),
    )
    path = make_run(tmp_path / "run")
    assert call("sebulba.plot", path, "-o", tmp_path / "x.svg", monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.endswith("pip install 'sebulba[plot]'\n")


@pytest.mark.parametrize("module", ["sebulba.plot", "sebulba.envs"])
def test_help_imports_neither_jax_nor_matplotlib(module):
    command = [sys.executable, "-X", "importtime", "-m", module, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    modules = re.findall(r"^import time:.*\| +([\w.]+)$", result.stderr, re.MULTILINE)
    packages = {each.partition(".")[0] for each in modules}
    assert "argparse" in packages
    assert not packages & {"jax", "numpy", "matplotlib", "gymnasium", "envpool"}
