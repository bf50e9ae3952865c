"""Facts that several files of the project state: configs, version, license."""

import re
import tomllib

import pytest
import yaml

import sebulba
from tests.docs.blocks import ROOT

CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_in_the_readme(name):
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    names = [each for row in rows for each in re.findall(r"`([^`]*)`", row)]
    assert name in names or (name.endswith("_bandit") and "…_bandit" in names)


def test_citation_and_changelog_have_the_version_and_license_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (str(citation["version"]), citation["license"]) == (
        sebulba.__version__,
        project["license"],
    )
    newest, *_ = re.findall(r"^## (\d\S*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == sebulba.__version__
