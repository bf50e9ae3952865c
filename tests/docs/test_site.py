"""The documentation site."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from tests.docs.blocks import ROOT

OWN_PAGES = {"index.md", "agents.md", "CHANGELOG.md", "CONTRIBUTING.md"}


def _pages(tree):
    if isinstance(tree, str):
        return {tree}
    parts = tree.values() if isinstance(tree, dict) else tree
    return set().union(*map(_pages, parts))


def test_the_site_has_every_page_of_the_documentation():
    pages = _pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    documents = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == documents | OWN_PAGES | {"reference"}


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_documents_every_package(tmp_path):
    """Broken links and anchors are warnings of mkdocs, and `--strict` fails for them."""
    for module in ("material", "mkdocstrings"):  # the extra `docs`
        pytest.importorskip(module)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "reference" / "sebulba.toolkit" / "index.html").read_text()
    assert "Return the entropy in nats" in re.sub(r"<[^>]*>", "", page)
    assert "sebulba.toolkit.distributions" in (tmp_path / "search/search_index.json").read_text()
