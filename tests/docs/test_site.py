"""The documentation site."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT


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
    for document in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / document.relative_to(ROOT / "docs").with_suffix("")).is_dir()
    assert "sebulba.toolkit.distributions" in (tmp_path / "search/search_index.json").read_text()
