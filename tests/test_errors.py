"""Errors as lines of text."""

import runpy

import pytest

from sebulba.errors import ConfigError, describe_error, refuse


@pytest.fixture
def raised(tmp_path):
    """Returns a function that gives the error of a line of an installed package."""

    def run(line):
        path = tmp_path / "site-packages" / "robots.py"
        path.parent.mkdir()
        path.write_text(f"def make(joint):\n    {line}\n")
        with pytest.raises(Exception) as caught:
            runpy.run_path(str(path))["make"](1)
        return caught.value.with_traceback(caught.tb.tb_next)

    return run


def test_an_error_without_a_message_is_described_by_its_line(raised):
    error = raised("assert joint in (2, 3)")
    assert describe_error(error) == "AssertionError (robots.py:2: assert joint in (2, 3))"


def test_the_line_of_an_installed_package_is_left_out_beside_a_message(raised):
    error = raised("raise ValueError(f'no joint {joint}')")
    assert describe_error(error) == "ValueError: no joint 1"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [(None, "sebulba: seed: got \\x1b[2J\n"), ("usage: x", "usage: x\nseed: got \\x1b[2J\n")],
)
def test_a_refusal_is_on_stderr_without_control_characters(usage, expected, capsys):
    assert refuse(ConfigError("seed: got \x1b[2J"), usage=usage) == 2
    assert capsys.readouterr() == ("", expected)
