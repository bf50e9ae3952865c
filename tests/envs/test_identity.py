"""Constructors that ask are told the number and the purpose of their environment."""

import pytest

from sebulba.config import EnvConfig, EvaluationConfig
from sebulba.envs import make_environment
from sebulba.envs.gymnasium import make as make_gymnasium
from sebulba.run import training
from tests.evaluation.runs import tiny_config

HERE = "tests.envs.marking"


def files_of(directory, name, *, wrappers=(), mode="sync", suite="gymnasium", **identity):
    """Returns the files that two environments have made."""
    config = EnvConfig(
        suite=suite,
        id=f"{HERE}:{name}",
        options={"directory": str(directory), "vectorization_mode": mode},
        wrappers=wrappers,
    )
    make_environment(config, num_envs=2, seed=0, **identity).close()
    return {each.name for each in directory.iterdir()}


def test_constructors_get_number_and_purpose(tmp_path):
    identity = {"purpose": "train", "env_index": 4}
    assert files_of(tmp_path, "Marking", **identity) == {"train-4", "train-5"}


def test_worker_processes_get_them_and_the_one_made_for_its_spaces_is_told_apart(tmp_path):
    identity = {"purpose": "evaluate", "env_index": 4}
    files = files_of(tmp_path, "Marking", mode="async", **identity)
    assert files == {"inspect-4", "evaluate-4", "evaluate-5"}


@pytest.mark.parametrize(
    ("name", "files"),
    [("make_marking", {"made-0", "made-1"}), ("OldMarking", {"old-0", "old-1"})],
)
def test_a_function_and_a_class_of_the_old_interface_get_the_number(tmp_path, name, files):
    assert files_of(tmp_path, name) == files


def test_a_wrapper_gets_the_number(tmp_path):
    wrapper = {f"{HERE}:MarkingWrapper": {"directory": str(tmp_path)}}
    files = files_of(tmp_path, "Marking", wrappers=(wrapper,), env_index=7)
    assert files == {"inspect-7", "inspect-8", "wrapper-7", "wrapper-8"}


def test_an_option_of_that_name_is_the_user_s(tmp_path):
    options = {"directory": str(tmp_path), "purpose": "mine", "env_index": 3}
    config = EnvConfig(suite="gymnasium", id=f"{HERE}:Marking", options=options)
    make_environment(config, num_envs=1, seed=0, purpose="train").close()
    assert [each.name for each in tmp_path.iterdir()] == ["mine-3"]


def adapter(config, *, num_envs, seed, purpose, env_index):
    told.append((purpose, env_index, num_envs))
    return make_gymnasium(EnvConfig(suite="gymnasium", id="CartPole-v1"), num_envs=1, seed=seed)


told = []


def test_an_adapter_s_function_gets_the_number_of_its_first_environment():
    config = EnvConfig(suite=f"{__name__}:adapter", id="any")
    make_environment(config, num_envs=3, seed=0, purpose="train", env_index=6).close()
    assert told == [("train", 6, 3)]


def test_every_environment_of_a_run_has_another_number_or_purpose(tmp_path):
    directory = tmp_path / "files"
    directory.mkdir()
    config = tiny_config(
        "impala",
        tmp_path / "run",
        env=EnvConfig(
            suite="gymnasium", id=f"{HERE}:Marking", options={"directory": str(directory)}
        ),
        evaluation=EvaluationConfig(interval_env_steps=1000, episodes=2, parallel_envs=2),
    )
    assert training.train_to_exit_code(config) == 0
    files = {each.name for each in directory.iterdir()}
    assert {name for name in files if not name.startswith("inspect")} == {
        *(f"train-{i}" for i in range(4)),
        "evaluate-0",
        "evaluate-1",
    }
