"""What the project says of itself in several places."""

import importlib.metadata
import re

import pytest
import yaml

from tests.docs.blocks import ROOT

CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_in_the_readme(name):
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    names = [each for row in rows for each in re.findall(r"`([^`]*)`", row)]
    assert name in names or (name.endswith("_bandit") and "…_bandit" in names)


def test_citation_is_of_this_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    package = importlib.metadata.metadata("sebulba")
    assert str(citation["version"]) == package["Version"]
    assert citation["license"] == package["License-Expression"]
