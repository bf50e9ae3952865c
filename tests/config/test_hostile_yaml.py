"""Malformed configs: each is an error with file and line."""

import contextlib
import random

import pytest

from sebulba.config import flags, yaml_dialect
from sebulba.config.loading import ConfigError, load_config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: !!int abc\n", "1: tags are not supported, got tag:yaml.org,2002:int"),
        ("seed: 1\nrun_dir: !!timestamp abc\n", "2: tags are not supported"),
        ("env:\n  options: &a [*a]\n", "2: *a: the alias is part of what it stands for"),
        ("env:\n  options: &a {b: {c: *a}}\n", "2: *a: the alias is part of"),
        (f"seed: {'[' * 3000}{']' * 3000}\n", "1: not valid: maximum recursion depth exceeded"),
        ("seed: " + "- " * 3000, "1: sequence entries are not allowed here"),
        ("seed:\n  - 1\n  - [" + "[" * 3000, "3: not valid: maximum recursion depth exceeded"),
        (f"seed: 1\nrun_dir: {'9' * 10_000}\n", "2: not valid: Exceeds the limit"),
        (f"seed: {'9' * 99}\n", f"1: seed: expected int in [0, 2147483647], got {'9' * 99}"),
        ("run: {total_env_steps: 1e300}\n", "1: run.total_env_steps: expected int ≥ 1, got 1"),
        ('run_dir: "a\\0b"\n', "1: expected no NUL"),
        ('"a\\0b": 1\n', "1: expected no NUL"),
        ('run_dir: "\\uD800"\n', "1: expected no NUL and no surrogates"),
        ('seed: 1\nrun_dir: "\\UFFFFFFFF"\n', "2: not valid: "),  # CPython says why
        ("seed: 1\nrun_dir: a\x01\n", "2: unacceptable character #x0001"),
        (
            "seed: [1, [" + "1, " * 9_000 + "]]\n",
            "1: seed: expected int in [0, 2147483647], got [1, ",
        ),
    ],
)
def test_14_a_hostile_config_is_an_error_with_file_and_line(text, message, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(str(tmp_path / "x.yaml"))
    assert str(error.value).startswith(f"{tmp_path}/x.yaml:{message}")
    assert len(str(error.value)) < 500


def test_14_a_config_that_does_not_end_is_not_read_to_its_end(tmp_path):
    """Read at most the permitted number of bytes, of a list with 700,000 items or of a device."""
    (tmp_path / "x.yaml").write_text(f"seed: [{'1, ' * 700_000}]\n")
    for path in (tmp_path / "x.yaml", "/dev/zero"):
        with pytest.raises(ConfigError, match="cannot read the file: expected at most 262,144"):
            load_config(str(path))


@pytest.mark.parametrize("text", ["[" * 3000, "!!int abc", "&a [*a]", '"\\UFFFFFFFF"'])
def test_14_a_hostile_flag_is_an_error(text):
    with pytest.raises(ConfigError, match=r"^--seed: expected int in \[0, 2147483647\], got "):
        load_config(None, [f"--seed={text}"])


def test_14_an_error_s_text_does_not_drive_the_terminal(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text('"\\e[2J": 1\n')
    with pytest.raises(SystemExit, match="2"):
        flags.parse([str(tmp_path / "x.yaml")], "prog", "")
    assert r"x.yaml:1: \x1b[2J: unknown key" in capsys.readouterr().err


def test_aliases_may_repeat_a_value():
    assert yaml_dialect.parse("a: &a [1, 2]\nb: *a\nc: {d: *a}\n") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": [1, 2]},
    }


PIECES = (
    *("seed", "env", "options", "actor", "num_envs", "run_dir", "agent", "name", "run", "<<", "="),
    *(": ", ": ", ":", "\n", "\n", "\n  ", "\n    ", "- ", ", ", "{", "}", "[", "]", "? ", "| "),
    *("&a ", "*a", "&b ", "*b", "!!int ", "!", "!!merge ", "!<x> ", "%YAML 1.1\n", "---\n", "..."),
    *("1", "-1", "1e5", ".nan", ".inf", "1e999", "0x1f", "1_0", "true", "null", "~", "2024-01-01"),
    *("'", '"', "\\", "\\x", "\\u00", "\t", "#", "\x00", "\x07", "\x85", "\u2028", "\ufeff", "ü"),
    *("9" * 50, "[" * 20, "{a: " * 20, "x" * 300, "🤖"),
)  # fmt: skip


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_14_random_text_is_a_config_or_an_error(seed, tmp_path):
    rng = random.Random(seed)
    for _ in range(500):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 25)))
        (tmp_path / "x.yaml").write_text(text)
        for arguments in ((str(tmp_path / "x.yaml"),), (None, [f"--env.options={text}"])):
            with contextlib.suppress(ConfigError):
                load_config(*arguments)
