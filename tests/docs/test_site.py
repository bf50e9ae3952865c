"""The documentation site. Without the extra `docs`, only its sources are tested."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from sebulba.agent import AgentSettings, declared
from sebulba.config.agents import agent_config_class
from sebulba.config.flags import describe_keys
from sebulba.config.shipped import shipped_configs
from sebulba_agents import AGENTS
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
SEARCHES = {
    "load_policy": "reference/sebulba/#sebulba.evaluation.policy.load_policy",
    "resume": "resume/",
    "own network": "tutorials/own_network/",
    "atari": "add_an_environment/",
    "multi gpu": "devices/",
    "video": "evaluate/",
    "seed": "reproducibility/",
    "replay": "tutorials/replay/",
    "lstm": "tutorials/recurrence/",
    "slow": "performance/",
}
"""The first hit of what a new user searches for."""


def pages_of(navigation):
    """Return the pages of a navigation in their order."""
    if isinstance(navigation, str):
        return [navigation]
    children = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for child in children for page in pages_of(child)]


def test_the_navigation_has_every_page_once():
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    outside = ["index.md", "agents.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(pages_of(navigation)) == sorted([*pages, *outside])


def test_every_agent_has_a_page_and_there_are_no_others():
    assert {path.stem for path in (DOCS / "algorithms").iterdir()} == set(AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_the_page_of_an_agent_agrees_with_its_code(name):
    page = (DOCS / "algorithms" / f"{name}.md").read_text()
    module = AGENTS[name].factory.partition(":")[0].rpartition(".")[2]
    (row,) = re.findall(
        rf"^\|.*\| `{module}\.py` \|", (ROOT / "agents/README.md").read_text(), re.M
    )
    papers = re.findall(r"\((https:[^)]*)\)", row)
    assert [each for each in papers if each not in page] == []
    config = agent_config_class(name)
    needs_no_lag = "needs `learner.policy_lag: 0`" in page
    assert needs_no_lag != declared(config(), AgentSettings, "corrects_for_policy_lag")
    known = {key.removeprefix("agent.") for key, *_ in describe_keys("agent", config())}
    configs = shipped_configs()
    (example,) = re.findall(r"^python -m sebulba\.train (\w+)$", page, re.MULTILINE)
    assert yaml.safe_load(configs[example].read_text())["agent"]["name"] == name
    known |= set(configs)
    metrics = (DOCS / "metrics.md").read_text()
    named = re.findall(r"`(?:agent\.)?([a-z]+(?:_[a-z]+)+)(?:: [^`]*)?`", page)
    assert [each for each in named if each not in known and f"`{each}`" not in metrics] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the built site. Broken links and anchors are warnings, for which the build fails."""
    for module in ("material", "mkdocstrings"):  # the extra `docs`
        pytest.importorskip(module)
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert result.returncode == 0, result.stderr
    return path


def text_of(page):
    return re.sub(r"<[^>]*>", "", (page / "index.html").read_text())


@pytest.mark.slow
def test_the_site_has_every_page_and_what_users_import(site):
    for document in DOCS.rglob("*.md"):
        assert (site / document.relative_to(DOCS).with_suffix("")).is_dir()
    assert "Return the entropy in nats" in text_of(site / "reference/sebulba.toolkit.distributions")
    assert "Load the policy of a run" in text_of(site / "reference/sebulba")
    assert not (site / "reference/sebulba.ring").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_the_page_of_an_agent_has_its_settings_its_code_and_its_curves(name, site):
    page = text_of(site / "algorithms" / name)
    for key, *_ in describe_keys("agent", agent_config_class(name)()):
        assert key in page
    module, _, factory = AGENTS[name].factory.partition(":")
    assert factory in page and module.replace(".", "/") in page
    records = [path.name for path in (DOCS / "results/records").glob(f"{name}_*")]
    html = (site / "algorithms" / name / "index.html").read_text()
    assert [each for each in records if f"<code>{each}</code>" not in html] == []
    assert ("../../results/" in html and ".svg" in html) == bool(records)


@pytest.mark.slow
def test_a_search_finds_the_page_that_a_new_user_needs(site):
    if shutil.which("node") is None:
        pytest.skip("node runs the search of the site")
    script = pathlib.Path(__file__).with_name("search.js")
    command = ["node", str(script), str(site), *SEARCHES]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert dict(zip(SEARCHES, result.stdout.split(), strict=True)) == SEARCHES
