"""Runs that are trained once, and evaluated by many tests."""

import pytest

import sebulba
from sebulba import training
from sebulba.config import EvaluationConfig
from tests.evaluation.runs import tiny_config


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """Returns the run directory of a config by its name; trained when it is first asked for.

    The one of `impala evaluated` is that of `impala`, with evaluation beside it.
    """
    directories = {}

    def run(name):
        if name not in directories:
            path = tmp_path_factory.mktemp("runs") / name.replace(" ", "-")
            evaluation = EvaluationConfig(interval_env_steps=60, episodes=4, parallel_envs=2)
            is_evaluated = name.endswith(" evaluated")
            config = tiny_config(
                name.removesuffix(" evaluated"),
                path,
                evaluation=evaluation if is_evaluated else None,
            )
            assert training.train(config) == 0
            directories[name] = path
        return directories[name]

    return run


@pytest.fixture(scope="session")
def policy_of(run_of):
    """Returns the greedy policy of a run, loaded when it is first asked for."""
    policies = {}

    def policy(name):
        if name not in policies:
            policies[name] = sebulba.load_policy(run_of(name))
        return policies[name]

    return policy
