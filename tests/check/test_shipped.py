"""Every shipped agent passes all checks on a small config, and one of them on Atari."""

import dataclasses
import pathlib

import pytest

from sebulba.check.suite import check
from sebulba.config.loading import load_config
from tests.extras import needs_search

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
SMALL = [
    "a2c_bandit",
    "ddqn_bandit",
    pytest.param("gumbel_muzero_catch", marks=needs_search),
    "impala_catch",
    "impala_recall",
    "mappo_tides",
    "pg_bandit",
    "ppo_bandit",
    "ppo_corridor",
    "ppo_kuhn_poker",
    "ppo_recall",
    "pqn_bandit",
    "r2d2_recall",
    "rainbow_bandit",
    "random_cartpole",
    "sac_bandit",
    "skills_room",
]


def check_shipped(name, num_envs, only=(), **settings):
    config = load_config(str(CONFIGS / f"{name}.yaml"), [])
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, **settings))
    actor = dataclasses.replace(config.actor, num_envs=num_envs)
    return check(dataclasses.replace(config, actor=actor), only=only)


def failures(report):
    return {result.name: result.detail for result in report.results if result.status == "fail"}


def test_a_window_that_a_trajectory_replaces_unread_counts_as_donated():
    assert failures(check_shipped("ppo_bandit", 8, only=["donation"])) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_shipped_agent_has_no_failure(name):
    assert failures(check_shipped(name, 8)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impala_pong", "sac_pendulum"])
def test_a_config_of_few_environments_has_no_failure(name):
    assert failures(check_shipped(name, 4)) == {}


@pytest.mark.slow
def test_what_does_not_apply_is_skipped_with_the_reason():
    report = check_shipped("random_cartpole", 8)
    skipped = {result.name: result.detail for result in report.results if result.status == "skip"}
    assert skipped["truncation"].startswith("the agent takes no updates")


def check_truncation():
    config = load_config(
        str(CONFIGS / "gumbel_muzero_catch.yaml"), ["--agent.num-simulations", "2"]
    )
    actor = dataclasses.replace(config.actor, num_envs=8)
    report = check(dataclasses.replace(config, actor=actor), only=["truncation"])
    return next(result for result in report.results if "truncation" in result.name)


@pytest.mark.slow
@needs_search
def test_values_that_acting_stored_are_checked_in_truncated_rows():
    result = check_truncation()
    assert result.status == "pass" and "uses the extras in truncated rows" in result.detail


@pytest.mark.slow
@needs_search
def test_a_truncation_that_counts_as_a_termination_is_found_without_observations(monkeypatch):
    from sebulba_agents import gumbel_muzero

    targets = gumbel_muzero.unroll_targets

    def terminated(key, env_steps, **kwargs):
        done = env_steps.done
        return targets(key, dataclasses.replace(env_steps, terminated=done), **kwargs)

    monkeypatch.setattr(gumbel_muzero, "unroll_targets", terminated)
    result = check_truncation()
    assert result.status == "fail" and "extras in a truncated row" in result.detail
