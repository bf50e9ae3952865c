"""Hooks of mkdocs: the pages of the site that are not files of `docs/`.

The README is the front page. The API reference has one page for each module of the contract and for
each package in `pyproject.toml`; mkdocstrings writes it from the docstrings.
"""

import pathlib
import posixpath
import re
import tomllib

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = pathlib.Path(__file__).parent.parent
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "agents/README.md": "agents.md",
}
"""The page of each Markdown file outside of `docs/`."""

_CONTRACT = ("sebulba.types", "sebulba.agent", "sebulba.pytree", "sebulba.errors")
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page that the navigation does not list into one of its sections."""
    sections = {title: pages for each in config.nav for title, pages in each.items()}
    listed = {page for pages in sections.values() for page in pages if isinstance(page, str)}
    docs = _ROOT / "docs"
    for path in sorted(docs.rglob("*.md")):
        page = path.relative_to(docs).as_posix()
        if page not in listed:
            sections["Tutorials" if page.startswith("tutorials/") else "Guides"].append(page)
    (api,) = [each for each in sections["Reference"] if isinstance(each, dict)]
    api["API"] = [{name: f"reference/{name}.md"} for name in _modules()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs/`, and the pages of the reference."""
    for source, target in _PAGES.items():
        files.append(File.generated(config, target, content=_moved(source)))
    for name in _modules():
        page = f"# `{name}`\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    files.remove(files.src_uris["site.py"])
    return files


def _modules() -> list[str]:
    """Return the modules and packages that have a page of their own."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    tops = [each for each in packages if each.count(".") < 2 and each != "sebulba"]
    return [*_CONTRACT, *(each for each in tops if _is_code(each))]


def _is_code(package: str) -> bool:
    """Return whether a package has modules; the one of the shipped configs has only data."""
    path = package.replace(".", "/")
    return any((_ROOT / folder / path / "__init__.py").is_file() for folder in (".", "agents"))


def _moved(source: str) -> str:
    """Return the text of a file outside of `docs/`, with its links as they are from `docs/`."""

    def from_docs(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        return f"]({_PAGES.get(path) or path.removeprefix('docs/')}"

    return _LINK.sub(from_docs, (_ROOT / source).read_text())
