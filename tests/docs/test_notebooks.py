"""The notebooks of the documentation."""

import json

import pytest

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))
_REMEMBER = """
import signal, threading
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
before = [signal.getsignal(number) for number in NUMBERS], threading.active_count()
"""
_COMPARE = """
after = [signal.getsignal(number) for number in NUMBERS], threading.active_count()
assert after == before, (before, after)
assert result.status == tuned.status == "done"
assert tuned.env_steps < result.env_steps
"""


def code_of(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_compiles_and_is_stored_without_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs") and not cell.get("execution_count")
    for source in code_of(path):
        compile(source, path.name, "exec")


@pytest.mark.slow
def test_a_kernel_trains_twice_and_keeps_its_signals(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")  # the extra `notebook`
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (path,) = NOTEBOOKS
    notebook = nbformat.read(path, as_version=4)
    new_cell = nbformat.v4.new_code_cell
    notebook.cells = [new_cell(_REMEMBER), *notebook.cells, new_cell(_COMPARE)]
    resources = {"metadata": {"path": str(tmp_path)}}
    # Raises what a cell raises.
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [each for each in outputs if each.get("name") == "stderr"], outputs
    assert "Result(status='done'" in json.dumps(outputs)
