"""Tests share the programs of rings whose configs differ in their seed alone, unless they patch."""

import dataclasses

from tests.rings import close, make_ring
from tests.run.runs import make_config


def programs_of(config):
    ring = make_ring(config)
    close(ring)
    return ring.programs


def test_configs_that_differ_in_their_seed_and_files_share_programs(tmp_path):
    config = make_config(tmp_path / "first")
    other = dataclasses.replace(config, seed=1, run_dir=str(tmp_path / "second"), resume="latest")
    assert programs_of(config) is programs_of(other)


def test_another_config_has_other_programs(tmp_path):
    config = make_config(tmp_path)
    other = dataclasses.replace(config, actor=dataclasses.replace(config.actor, num_envs=2))
    assert programs_of(config) is not programs_of(other)


def test_a_test_that_may_change_code_makes_programs_that_no_other_test_gets(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    assert programs_of(config) is not programs_of(config)
