"""The list of suites: built-in ones, plug-ins, and advice on missing packages."""

import importlib.util
import pathlib
import runpy
import sys
import tomllib

import pytest

from sebulba.config import EnvConfig
from sebulba.config.extras import EXTRAS
from sebulba.config.plugins import SUITES_GROUP
from sebulba.envs import SUITES, make_environment
from sebulba.envs.listing import list_suites, matching_ids
from sebulba.envs.lookup import describe_namespace
from sebulba.errors import ConfigError

PYPROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"
MODULE = """
from tests.envs.stub import Stub

def make(config, *, num_envs, seed):
    return Stub(config.id, num_envs, seed)

def ids():
    return ["Plugged-v0", "Another-v3"]
"""


@pytest.fixture
def plugged(install):
    """Install a package with the suite `plugged`."""
    install(
        "plugged-envs",
        modules={"plugged_envs": MODULE},
        entry_points={SUITES_GROUP: {"plugged": "plugged_envs:make"}},
    )


@pytest.fixture
def without(monkeypatch):
    """Make a module appear as not installed."""

    def remove(name):
        find_spec = importlib.util.find_spec
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda other, *rest: None if other == name else find_spec(other, *rest),
        )

    return remove


def print_listing(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["sebulba.envs", *arguments])
    runpy.run_module("sebulba.envs", run_name="__main__")
    return capsys.readouterr().out.splitlines()


def make(suite, env_id):
    return make_environment(EnvConfig(suite=suite, id=env_id), num_envs=2, seed=3)


def test_every_built_in_suite_is_listed():
    assert [suite.name for suite in list_suites()] == list(SUITES)


def test_installed_suites_have_a_version_and_their_ids():
    suites = {suite.name: suite for suite in list_suites()}
    assert "CartPole-v1" in suites["envpool"].ids
    assert "CartPole-v1" in suites["gymnasium"].ids
    assert "Catch-v0" in suites["jax"].ids
    assert all(suites[name].version for name in ("envpool", "gymnasium", "jax"))


def test_a_suite_of_another_package_is_created_and_listed(plugged):
    assert make("plugged", "Mine").made_from == ("Mine", 2, 3)
    *_, suite = list_suites()
    assert (suite.name, suite.package, suite.version) == ("plugged", "plugged-envs", "1.5")
    assert suite.ids == ("Another-v3", "Plugged-v0")


def test_an_unknown_suite_suggests_similar_ones_of_all_packages(plugged):
    known = r"did you mean plugged\? \(known: .*, jumanji, pettingzoo, pgx, playground, plugged"
    with pytest.raises(ConfigError, match=known):
        make("pluged", "Mine")


def test_a_suite_that_cannot_be_imported_is_listed_with_the_reason(install):
    install(
        "broken-envs",
        modules={"broken_envs": "import mujoco.no_such_part"},
        entry_points={SUITES_GROUP: {"broken": "broken_envs:make"}},
    )
    *_, suite = list_suites()
    assert suite.ids is None
    assert suite.problem.endswith("pip install 'sebulba[mujoco]'")


def test_a_missing_package_is_reported_with_the_install_command(without):
    without("mujoco")
    with pytest.raises(ConfigError, match=r"HalfCheetah-v5: .*pip install 'sebulba\[mujoco\]'"):
        make("gymnasium", "HalfCheetah-v5")


def test_describe_namespace_names_the_module_that_registers_an_id(without):
    assert describe_namespace("ALE/Pong-v5").startswith("; use ale_py:ALE/Pong-v5, which imports")
    without("ale_py")
    assert describe_namespace("ALE/Pong-v5").endswith("pip install 'sebulba[atari]'")
    assert describe_namespace("CartPole-v1") == describe_namespace("mine/Pong") == ""


def test_every_suggested_extra_exists():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("CART", ["CartPole-v1", "Cartwheel"]), ("pnog-v5", ["Pong-v5"]), ("xyz", [])],
)
def test_matching_ids_contain_the_word_or_are_similar(text, expected):
    assert matching_ids(("CartPole-v1", "Pong-v5", "Cartwheel"), text) == expected


def test_command_line_lists_suites(monkeypatch, capsys):
    header, *rows = print_listing(monkeypatch, capsys)
    assert header.split() == ["env.suite", "package", "version", "ids"]
    assert [row.split()[0] for row in rows] == list(SUITES)


def test_command_line_finds_ids(monkeypatch, capsys, plugged):
    lines = print_listing(monkeypatch, capsys, "another")
    assert lines[-2:] == ["plugged: 1 ids", "  Another-v3"]
    lines = print_listing(monkeypatch, capsys, "Plugged-v1")
    assert lines[-2:] == ["plugged: most similar", "  Plugged-v0"]
