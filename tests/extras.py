"""Marks of tests that need an extra of the package."""

import importlib.util

import pytest

needs_search = pytest.mark.skipif(
    importlib.util.find_spec("mctx") is None, reason="needs the extra search: mctx is missing"
)
