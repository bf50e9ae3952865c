"""The page in a real browser, where there is one."""

import shutil
import subprocess

import pytest

pytest.importorskip("matplotlib")

from sebulba.tools.report.groups import group_runs
from sebulba.tools.report.page import page
from sebulba.tools.report.runs import read_runs
from tests.tools.report.directories import make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--virtual-time-budget=5000",
]
DEADLINE_S = 120
NOTHING_ELSE = "default-src 'none'"

# Runs after everything else in the page, if its policy lets it.
PROBE = """\
<script>
  const image = document.images[0];
  document.body.dataset.picture = image.complete ? image.naturalWidth : -1;
  document.body.dataset.loaded = performance.getEntriesByType("resource")
    .filter(entry => !entry.name.startsWith("data:")).length;
</script>
"""


def load(file, tmp_path):
    """Return the page's DOM after everything in it has been loaded."""
    profile = tmp_path / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", file.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    return result.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_browser_shows_every_part_of_the_page_and_loads_nothing_else(tmp_path):
    paths = [make_run(tmp_path / f"seed-{seed}", seed=seed) for seed in (0, 1)]
    html = page(group_runs(read_runs(paths)))
    assert NOTHING_ELSE in html
    probed = html.replace(NOTHING_ELSE, f"{NOTHING_ELSE}; script-src 'unsafe-inline'")
    file = tmp_path / "report.html"
    file.write_text(probed.replace("</body>", f"{PROBE}</body>"))
    dom = load(file, tmp_path)
    width = int(dom.partition('data-picture="')[2].partition('"')[0])
    assert width > 500
    assert 'data-loaded="0"' in dom
    for part in ("impala Catch-v0, seeds 0, 1", "Speed", "Command to resume", "actor 0"):
        assert part in dom


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_browser_runs_no_script_in_the_page(tmp_path):
    html = page(group_runs(read_runs([make_run(tmp_path / "run")])))
    script = "<script>document.title = 'script ran'</script>"
    file = tmp_path / "report.html"
    file.write_text(html.replace("</body>", f"{script}</body>"))
    assert "<title>impala Catch-v0</title>" in load(file, tmp_path)
    file.write_text(file.read_text().replace(NOTHING_ELSE, ""))
    assert "<title>script ran</title>" in load(file, tmp_path)
