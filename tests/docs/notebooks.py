"""Run the notebooks of the documentation: `python -m tests.docs.notebooks` stores their outputs."""

import json
import pathlib
import tempfile
from typing import Any

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


def execute(path: pathlib.Path, directory: str, *, before: str = "", after: str = "") -> Any:
    """Run a notebook in a kernel, and return it with its outputs.

    Args:
        path: the notebook.
        directory: the kernel's working directory.
        before: code to run in a cell before the others, which is part of the result.
        after: likewise, after the others.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell has raised an error.
    """
    import nbclient  # the extra `notebook`
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    new_cell = nbformat.v4.new_code_cell
    first, last = ([new_cell(code)] if code else [] for code in (before, after))
    notebook.cells = [*first, *notebook.cells, *last]
    nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": directory}},
    ).execute()
    return notebook


def main() -> None:
    """Run every notebook in an empty directory, and store it with its outputs."""
    for path in NOTEBOOKS:
        metadata = json.loads(path.read_text())["metadata"]
        with tempfile.TemporaryDirectory() as directory:
            notebook = execute(path, directory)
        notebook.metadata = metadata  # The kernel adds the version of Python.
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
