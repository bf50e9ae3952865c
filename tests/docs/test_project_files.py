"""Facts that several files of the project state: configs, agents, version, license."""

import dataclasses
import re
import tomllib

import pytest
import yaml

import sebulba
from sebulba.config.agents import agent_config_class
from sebulba_agents import AGENTS
from tests.docs.blocks import ROOT

CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_in_the_readme(name):
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    names = [each for row in rows for each in re.findall(r"`([^`]*)`", row)]
    assert name in names or (name.endswith("_bandit") and "…_bandit" in names)


def test_the_readme_says_of_every_agent_whether_it_has_memory():
    row = r"^\| [^|`]+ \| `(\w+)` \| [^|]+ \| ([^|]+) \|"
    found = dict(re.findall(row, (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {name: "LSTM" in memory for name, memory in found.items()} == {
        name: "lstm_size" in {field.name for field in dataclasses.fields(agent_config_class(name))}
        for name in AGENTS
    }


def test_citation_and_changelog_have_the_version_and_license_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (str(citation["version"]), citation["license"]) == (
        sebulba.__version__,
        project["license"],
    )
    assert f"version = {{{sebulba.__version__}}}" in (ROOT / "README.md").read_text()
    newest, *_ = re.findall(r"^## (\d\S*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == sebulba.__version__
