"""Hooks of mkdocs: a page for each notebook of `docs/examples/`, with its outputs."""

import json
import pathlib
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_DOCS = pathlib.Path(__file__).parent
_NOTEBOOKS = [path.relative_to(_DOCS) for path in sorted((_DOCS / "examples").glob("*.ipynb"))]
_BEFORE = "python.md"
"""The page that notebooks follow in the navigation."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the notebooks into the navigation."""
    for section in config.nav:
        for pages in section.values():
            if _BEFORE in pages:
                place = pages.index(_BEFORE) + 1
                pages[place:place] = [_page(notebook) for notebook in _NOTEBOOKS]
                return config
    raise ValueError(f"mkdocs.yml: nav: expected {_BEFORE}, got none; notebooks follow it")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; the notebooks stay files that can be downloaded."""
    for notebook in _NOTEBOOKS:
        content = to_markdown(json.loads((_DOCS / notebook).read_text()))
        content += f"\n[Download this notebook]({notebook.name})\n"
        files.append(File.generated(config, _page(notebook), content=content))
    files.remove(files.src_uris["notebooks.py"])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let other pages link to the page of a notebook instead of its file."""
    if page.file.src_uri in map(_page, _NOTEBOOKS):
        return markdown
    for notebook in _NOTEBOOKS:
        markdown = markdown.replace(f"{notebook.as_posix()})", f"{_page(notebook)})")
    return markdown


def to_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook and their outputs as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _fenced(source, "python"))
        parts += [_output(each) for each in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return the richest form of an output that a page can show."""
    data = output.get("data") or {"text/plain": output["text"]}
    if "text/html" in data:
        return f"<div>{''.join(data['text/html'])}</div>"
    if "image/png" in data:
        return (
            f"<img alt='figure' src='data:image/png;base64,{''.join(data['image/png']).strip()}'>"
        )
    return _fenced("".join(data["text/plain"]).rstrip(), "text")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def _page(notebook: pathlib.Path) -> str:
    return notebook.with_suffix(".md").as_posix()
