"""The configuration reference is up to date with the schema."""

import pathlib

from sebulba.config.reference import reference

REFERENCE = pathlib.Path(__file__).parents[2] / "docs" / "configuration.md"


def test_reference_is_up_to_date_with_the_schema():
    assert REFERENCE.read_text() == reference(), "run: python -m sebulba.config > " + REFERENCE.name
