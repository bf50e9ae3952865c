"""The notebooks of the documentation."""

import json
import re

import pytest

from tests.docs.notebooks import NOTEBOOKS, execute

_REMEMBER = """
import signal
from sebulba.ring import threads

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
before = [signal.getsignal(number) for number in NUMBERS]
start_daemon, started = threads.start_daemon, []

def remember(target, name):  # the kernel has threads of its own, which come and go
    started.append(start_daemon(target, name))
    return started[-1]

threads.start_daemon = remember
"""
_COMPARE = """
assert [signal.getsignal(number) for number in NUMBERS] == before
assert started and not [thread.name for thread in started if thread.is_alive()]
assert result.status == tuned.status == "done"
assert tuned.env_steps < result.env_steps
"""
_MAX_BYTES = 300_000


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_with_the_outputs_of_one_run(path):
    cells = code_cells(path)
    for cell in cells:
        compile("".join(cell["source"]), path.name, "exec")
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = json.dumps([cell["outputs"] for cell in cells])
    assert not re.search(r"/(tmp|home|root|work|Users|usr)/", outputs), "paths of a machine"
    assert not re.search(r'"(stderr|error)"', outputs)
    for form in ("text/html", "image/png", "image/gif"):  # table and progress, figure, video
        assert form in outputs
    assert len(outputs) < _MAX_BYTES


@pytest.mark.slow
def test_a_kernel_trains_and_keeps_its_signals(tmp_path, monkeypatch):
    for module in ("nbclient", "ipykernel"):  # the extra `notebook`
        pytest.importorskip(module)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (path,) = NOTEBOOKS
    notebook = execute(path, str(tmp_path), before=_REMEMBER, after=_COMPARE)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [each for each in outputs if each.get("name") == "stderr"], outputs
    shown = json.dumps(outputs)
    assert "Result(status='done'" in shown
    assert shown.count("<progress") == 3, "one line for each run, updated in place"
