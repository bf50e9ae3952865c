"""Imports that wait until a module is used."""

import importlib
import sys

import pytest

from sebulba.envs.deferred_imports import deferred, execute_when_used
from tests.subprocesses import run_python


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A package `drawing` with the module `slow`, and modules that use it."""
    (tmp_path / "drawing").mkdir()
    (tmp_path / "drawing" / "__init__.py").write_text("")
    (tmp_path / "drawing" / "slow.py").write_text("answer = 42\n")
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("import drawing.slow as slow\nimport drawing.slow\n")
    (tmp_path / "at_once.py").write_text("import drawing.slow as slow\nanswer = slow.answer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("drawing", "drawing.slow", "one", "other", "at_once"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("modules")
def test_a_deferred_module_is_imported_when_it_is_first_used():
    with deferred("drawing.slow"):
        one, other = importlib.import_module("one"), importlib.import_module("other")
    assert "drawing.slow" not in sys.modules
    assert one.slow.answer == other.slow.answer == 42
    assert sys.modules["drawing.slow"].__file__ is not None


@pytest.mark.usefixtures("modules")
def test_a_module_that_is_used_at_once_is_imported_at_once():
    with deferred("drawing.slow"):
        assert importlib.import_module("at_once").answer == 42
    assert sys.modules["drawing.slow"].__file__ is not None


@pytest.mark.usefixtures("modules")
def test_a_module_that_was_imported_before_stays_as_it_is():
    before = importlib.import_module("drawing.slow")
    with deferred("drawing.slow"):
        one = importlib.import_module("one")
    assert one.slow is before is sys.modules["drawing.slow"]


@pytest.mark.usefixtures("modules")
def test_nothing_stays_deferred_after_a_failed_import():
    with pytest.raises(ModuleNotFoundError), deferred("drawing.slow"):
        importlib.import_module("no_such_module")
    assert importlib.import_module("drawing.slow").answer == 42


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A package `games` with the name `Game` and the module `listing`, executed when used."""
    (tmp_path / "games").mkdir()
    file = tmp_path / "games" / "__init__.py"
    file.write_text("from games.listing import names\n__all__ = ['Game']\nGame = names[0]\n")
    (tmp_path / "games" / "listing.py").write_text("names = ['Snake']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    execute_when_used("games", lambda spec: spec.name == "games")
    yield file
    for name in ("games", "games.listing"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("suite")
def test_a_package_is_not_executed_when_a_module_of_it_is_imported():
    assert importlib.import_module("games.listing").names == ["Snake"]
    games = sys.modules["games"]
    assert "Game" not in vars(games) and not hasattr(games, "__wrapped__")
    assert "Game" not in vars(games)
    assert games.Game == "Snake" == vars(games)["Game"]
    with pytest.raises(AttributeError, match="'games' has no attribute 'Chess'"):
        games.Chess  # noqa: B018


@pytest.mark.usefixtures("suite")
def test_all_names_of_a_package_that_is_executed_when_used_can_be_imported():
    namespace = {}
    exec("from games import *", namespace)
    assert namespace["Game"] == "Snake"


def test_a_package_that_cannot_be_executed_says_so_each_time_that_it_is_used(suite):
    suite.write_text("raise ImportError('no library')\n")
    games = importlib.import_module("games")
    for _ in range(2):
        with pytest.raises(ImportError, match="no library"):
            games.Game  # noqa: B018


_GYMNAX = """
import sys
from sebulba.envs.gymnax import ids
assert "Pong-misc" in ids()
slow = {"matplotlib.pyplot", "seaborn", "pandas", "scipy.stats"}
assert not slow & set(sys.modules), slow & set(sys.modules)
from gymnax.environments.misc import pong
pong.plt.subplots, pong.sns.color_palette
assert {"matplotlib.pyplot", "seaborn"} <= set(sys.modules)
"""


def test_gymnax_is_imported_without_what_it_draws_with():
    pytest.importorskip("gymnax")
    result = run_python("-c", _GYMNAX)
    assert result.returncode == 0, result.stderr
