import sys

import pytest

from sebulba.config import EnvConfig
from sebulba.envs import SUITES, make_environment
from sebulba.errors import ConfigError
from tests.envs.stub import Stub
from tests.subprocesses import run_python


def make_custom_suite(config, *, num_envs, seed):
    return Stub(config.id, num_envs, seed)


def make(*, num_envs=2, **config):
    return make_environment(EnvConfig(**config), num_envs=num_envs, seed=3)


def test_make_environment_accepts_a_custom_suite():
    assert make(suite=f"{__name__}:make_custom_suite", id="Mine").made_from == ("Mine", 2, 3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"suite": "envpol"}, r"env\.suite: .*did you mean envpool\?"),
        ({"suite": "no_such_module:make"}, r"env\.suite: there is no module 'no_such_module'"),
        (
            {"suite": f"{__name__}:make_custom_suit"},
            r"env\.suite: .*did you mean make_custom_suite",
        ),
        ({"num_envs": 0}, r"actor\.num_envs: expected at least 1, got 0"),
        ({"id": "CartPol-v1"}, r"env\.id: .*did you mean CartPole-v1"),
        (
            {"options": {"max_episode_step": 5}},
            r"env\.options .*did you mean max_episode_steps",
        ),
        (
            {"options": {"max_episode_steps": "five"}},
            r"env\.options\.max_episode_steps: .* got 'five'",
        ),
        ({"options": {"seed": 5}}, r"env\.options\.seed: .*set seed"),
        ({"options": {"batch_size": 1}}, r"env\.options\.batch_size: .*actor\.num_envs"),
        ({"options": {"reward_clip": True}}, r"env\.options\.reward_clip: .*the agent clips"),
        ({"id": "KuhnPoker-v1"}, r"env\.id: .*2 players"),
        ({"suite": "gymnasium", "id": "CartPol-v1"}, r"env\.id: .*did you mean CartPole-v1"),
        ({"suite": "gymnasium", "id": "no_such:Env-v0"}, r"env\.id: there is no module 'no_such'"),
        ({"suite": "gymnasium", "id": "CartPole-v7"}, r"env\.id: .*did you mean CartPole-v1"),
        ({"suite": "gymnasium", "id": "a b"}, r"env\.id 'a b': "),
        (
            {"suite": "gymnasium", "options": {"sutton": True}},
            r"env\.options\.sutton: .*known: sutton_barto_reward",
        ),
        ({"suite": "gymnasium", "options": {"num_envs": 3}}, r"env\.options\.num_envs: "),
        (
            {"suite": "gymnasium", "options": {"vectorization_mode": "asink"}},
            r"env\.options\.vectorization_mode: .*did you mean async",
        ),
        ({"suite": "jax", "id": "Cach-v0"}, r"env\.id: .*did you mean Catch-v0"),
        ({"suite": "jax", "id": "sebulba.envs.jax_tasks:Cach"}, r"env\.id: .*did you mean Catch"),
        (
            {"suite": "jax", "id": "Catch-v0", "options": {"colums": 3}},
            r"env\.options\.colums: .*did you mean columns",
        ),
        (
            {"suite": "jax", "id": "Catch-v0", "options": {"rows": 1}},
            r"env\.options\.rows: expected at least 2, got 1",
        ),
        (
            {"suite": "jax", "id": "Catch-v0", "options": {"max_episode_steps": 0}},
            r"env\.options\.max_episode_steps: expected an int of at least 1, got 0",
        ),
        (
            {"suite": "envpool", "id": "CartPole-v1", "options": {"max_episode_steps": -3}},
            r"env\.options\.max_episode_steps: expected an int of at least 1, got -3",
        ),
    ],
)
def test_make_environment_error_names_the_key_and_similar_values(config, message):
    with pytest.raises(ConfigError, match=message):
        make(**config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import missing_dependency",
            r"ModuleNotFoundError: No module named 'missing_dependency' \(broken_suite\.py:1:",
        ),
        ("def make(:", r"SyntaxError: .* \(broken_suite\.py, line 1\)"),
        ("make = 1 / 0", r"ZeroDivisionError: division by zero \(broken_suite\.py:1: make = 1 / 0"),
    ],
)
def test_an_error_of_an_import_names_the_key_and_the_line(tmp_path, monkeypatch, text, message):
    (tmp_path / "broken_suite.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"^env\.suite: importing broken_suite raised {message}"):
        make(suite="broken_suite:make")
    sys.modules.pop("broken_suite", None)


def test_envs_import_no_suite():
    modules = [path.partition(":")[0] for path in SUITES.values()] + ["envpool"]
    code = f"import sys, sebulba.envs; print([m for m in {modules} if m in sys.modules])"
    result = run_python("-c", code)
    assert result.stdout.strip() == "[]", result.stderr
