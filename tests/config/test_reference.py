"""The configuration reference is the schema's."""

import dataclasses
import pathlib

import pytest

from sebulba.config.agents import agent_config_class
from sebulba.config.file import SECTIONS
from sebulba.config.flags import field_docs
from sebulba.config.reference import reference
from sebulba.config.schema import Config
from sebulba_agents import AGENTS

REFERENCE = pathlib.Path(__file__).parents[2] / "docs" / "configuration.md"


def test_reference_is_the_one_of_the_schema():
    assert REFERENCE.read_text() == reference(), "run: python -m sebulba.config > " + REFERENCE.name


@pytest.mark.parametrize("cls", [Config, *(agent_config_class(name) for name in AGENTS)])
def test_every_key_is_explained(cls):
    fields = {field.name for field in dataclasses.fields(cls)} - set(SECTIONS)
    assert fields <= set(field_docs(cls))


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "agent"])
def test_every_key_of_a_section_is_explained(section):
    cls = Config.__dataclass_fields__[section].type
    assert {field.name for field in dataclasses.fields(cls)} <= set(field_docs(cls))
