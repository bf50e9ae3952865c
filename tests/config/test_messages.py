"""What all error messages have in common, read from the source."""

import ast
import pathlib
import re

import pytest

import sebulba

ROOT = pathlib.Path(sebulba.__file__).parent
# These speak to somebody who has typed flags.
COMMAND_LINES = (
    "compile.py",
    "aot/chips.py",
    "hosts",
    "processes",
    "config/flags.py",
    "config/loading.py",
    "launch.py",
    "plot.py",
    "run/rerun_batch.py",
    "grid.py",
    "lag.py",
    "sweep.py",
    "verify.py",
)
FILES = sorted(ROOT.rglob("*.py"))
_LITERAL = re.compile(r"\{[a-z_]+[.(\[}!]")  # of an f-string that lacks its f


def raised_in(path):
    """Yield each raised expression that makes an error."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc


def strings_of(node):
    """Yield the strings of an expression; those between the braces of f-strings apart."""
    return [
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_error_names_keys_and_not_flags_and_has_no_unfilled_braces(path):
    name = str(path.relative_to(ROOT))
    for error in raised_in(path):
        functions = {each.id for each in ast.walk(error) if isinstance(each, ast.Name)}
        # Python has no flags; the exception is a complete command, with the name of the program.
        if not name.startswith(COMMAND_LINES) and "program" not in functions:
            assert not [text for text in strings_of(error) if re.search(r"(^|\s)--[a-z]", text)]
        braces = [text for text in strings_of(error) if _LITERAL.search(text)]
        assert not braces, braces
