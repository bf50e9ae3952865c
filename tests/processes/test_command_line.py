"""Flags of a command that are taken out of the command line of its runs."""

import pytest

from sebulba.errors import ConfigError
from sebulba.processes.command_line import parse_seeds, take_count, take_seeds, take_switch


def test_a_flag_is_taken_out_of_a_command_line():
    argv = ["--local", "3", "c.yaml", "--seed=1"]
    assert take_count(argv, "--local") == (3, ["c.yaml", "--seed=1"])
    assert take_count(["--local=2"], "--local") == (2, [])
    assert take_count(["c.yaml"], "--local") == (None, ["c.yaml"])
    assert take_count(["--num_jobs", "2", "num-jobs"], "--num-jobs") == (2, ["num-jobs"])


def test_a_flag_without_a_value_is_taken_out_of_a_command_line():
    argv = ["c.yaml", "--verbose", "--seed=1"]
    assert take_switch(argv, "--verbose") == (True, ["c.yaml", "--seed=1"])
    assert take_switch(argv[:1], "--verbose") == (False, ["c.yaml"])


@pytest.mark.parametrize("argv", [["--local"], ["--local", "0"], ["--local=x"], ["--local", "-1"]])
def test_a_flag_without_a_number_is_an_error(argv):
    with pytest.raises(ConfigError, match="--local: expected an integer of at least 1"):
        take_count(argv, "--local")


def test_a_flag_given_twice_is_an_error():
    with pytest.raises(ConfigError, match="expected it once, got 2 and 3"):
        take_count(["--local", "2", "--local", "3"], "--local")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0..4", [0, 1, 2, 3, 4]), ("7..7", [7]), ("0,3,7", [0, 3, 7]), ("5,2", [5, 2]), ("4", [4])],
)
def test_parse_seeds_takes_spans_and_lists(text, expected):
    assert parse_seeds(text) == expected


@pytest.mark.parametrize("text", ["", "4..0", "1..", "a", "0-4", "-1", "0, 1", "1,,2"])
def test_parse_seeds_names_the_expected_forms(text):
    with pytest.raises(ConfigError, match=r"--seeds: expected seeds as 0\.\.4 .* or 0,3,7"):
        parse_seeds(text)


def test_parse_seeds_rejects_a_repeated_seed():
    with pytest.raises(ConfigError, match="expected each seed once, got 1,2,1"):
        parse_seeds("1,2,1")


def test_take_seeds_leaves_the_rest_of_the_command_line():
    assert take_seeds(["x.yaml", "--seeds", "0..1", "--a", "b"]) == (
        [0, 1],
        ["x.yaml", "--a", "b"],
    )
    assert take_seeds(["--seeds=3", "x.yaml"]) == ([3], ["x.yaml"])
    assert take_seeds(["x.yaml", "--seed", "3"]) == (None, ["x.yaml", "--seed", "3"])


@pytest.mark.parametrize("flag", [["--seed", "3"], ["--seed=3"], ["--seeds", "4"]])
def test_take_seeds_rejects_other_seeds(flag):
    with pytest.raises(ConfigError, match=r"--seeds: (expected it once|cannot be combined)"):
        take_seeds(["x.yaml", "--seeds", "0..1", *flag])
