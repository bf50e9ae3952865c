"""Tests share the programs of rings that are made from the same, unless they patch."""

import dataclasses

import pytest

from tests.rings import close, make_ring
from tests.run.runs import make_config


def programs_of(config):
    ring = make_ring(config)
    close(ring)
    return ring.programs


def changed(config, section, **changes):
    other = dataclasses.replace(getattr(config, section), **changes)
    return dataclasses.replace(config, **{section: other})


def test_configs_that_differ_in_their_seed_and_files_share_programs(tmp_path):
    config = make_config(tmp_path / "first")
    other = dataclasses.replace(config, seed=1, run_dir=str(tmp_path / "second"), resume="latest")
    assert programs_of(config).learner is programs_of(other).learner


def test_configs_that_differ_in_what_is_due_share_all_programs_but_those_of_several_cycles(
    tmp_path,
):
    config = make_config(tmp_path)
    one, other = map(programs_of, (config, changed(config, "run", log_interval_env_steps=500)))
    assert other.config.run.log_interval_env_steps == 500
    assert (one.agent, one.act) == (other.agent, other.act)
    assert one.learner.init is other.learner.init
    assert one.learner.update(1, has_unrolls=True) is other.learner.update(1, has_unrolls=True)
    assert one.learner.of_cycles is not other.learner.of_cycles


def test_environments_with_the_same_spec_share_programs_but_not_the_steps_of_another(tmp_path):
    config = make_config(tmp_path)
    rings = [
        make_ring(changed(config, "env", options={"max_episode_steps": limit})) for limit in (3, 5)
    ]
    for ring in rings:
        close(ring)
    one, other = (ring.programs.act[ring.actors[0].device] for ring in rings)
    assert one is other
    assert len({ring.actors[0].collector.act_within for ring in rings}) == 2


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("actor", {"num_envs": 2}),
        ("actor", {"cycle": "stepped"}),
        ("run", {"total_env_steps": 2000}),
        ("run", {"return_window": 50}),
        ("learner", {"policy_lag": 0}),
        ("agent", {"learning_rate": 0.2}),
    ],
)
def test_another_config_has_other_programs(section, change, tmp_path):
    config = make_config(tmp_path)
    assert programs_of(config).agent is not programs_of(changed(config, section, **change)).agent


def test_a_test_that_may_change_code_makes_programs_that_no_other_test_gets(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    assert programs_of(config).agent is not programs_of(config).agent


@pytest.mark.shares_programs
def test_a_test_that_changes_nothing_that_is_traced_may_say_so(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    assert programs_of(config).agent is programs_of(config).agent
