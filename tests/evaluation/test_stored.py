"""Loading a policy from a run directory."""

import json

import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.errors import ConfigError
from sebulba.evaluation.stored import (
    load_stored_policy,
    parse_source,
    parse_which,
    read_environment_spec,
)
from sebulba.storage.checkpoints.restore import CheckpointError, restore, steps_in


@pytest.mark.parametrize("name", ["impala", "r2d2", "sac"])
def test_loaded_networks_equal_those_of_the_checkpoint(run_of, policy_of, name):
    path, stored = run_of(name), policy_of(name).stored
    shapes = jax.eval_shape(stored.agent.init_networks, jax.random.key(0))
    whole, meta = restore(
        path / "checkpoints", "latest", {"learner": {"networks": shapes}}, partial=True
    )
    expected = stored.agent.actor_networks(whole["learner"]["networks"])
    jax.tree.map(np.testing.assert_array_equal, stored.networks, expected)
    assert stored.learner_cycle == steps_in(path / "checkpoints")[-1]
    assert stored.env_steps == meta["progress"]["env_steps"] >= 200


def test_only_actor_networks_are_kept(policy_of):
    stored = policy_of("r2d2").stored
    whole = jax.eval_shape(stored.agent.init_networks, jax.random.key(0))
    assert len(jax.tree.leaves(stored.networks)) < len(jax.tree.leaves(whole))


def test_a_directory_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a run directory"):
        load_stored_policy(tmp_path, "latest")


def test_a_missing_checkpoint_is_never_replaced_by_another(run_of):
    with pytest.raises(CheckpointError, match="expected checkpoint 12345"):
        load_stored_policy(run_of("impala"), 12345)


def test_parse_which_takes_latest_best_or_a_number():
    assert [parse_which(text) for text in ("latest", "best", "12")] == ["latest", "best", 12]
    with pytest.raises(ConfigError, match="got 'newest'"):
        parse_which("newest")


def test_a_directory_whose_name_ends_like_a_checkpoint_is_a_directory(tmp_path):
    run = tmp_path / "x"
    assert parse_source(f"{run}@5") == (run, 5)
    (tmp_path / "x@5").mkdir()
    assert parse_source(f"{run}@5") == (tmp_path / "x@5", "latest")
    assert parse_source(f"{run}@5@best") == (tmp_path / "x@5", "best")


def test_spaces_of_asynchronous_environments_need_no_worker_process():
    config = EnvConfig(suite="gymnasium", id="CartPole-v1", options={"vectorization_mode": "async"})
    assert read_environment_spec(config).observation.shape == (4,)


def test_a_module_that_is_elsewhere_is_named_with_its_place_in_training(tmp_path, monkeypatch):
    # As if the run had been started in another directory.
    (tmp_path / "config.yaml").write_text("agent: {name: my_lost_agent:Agent}")
    place = "/home/me/project/my_lost_agent.py"
    (tmp_path / "run.json").write_text(json.dumps({"sources": {"my_lost_agent:Agent": place}}))
    with pytest.raises(
        ConfigError, match=f"no module 'my_lost_agent'.*{place}.*PYTHONPATH=/home/me"
    ):
        load_stored_policy(tmp_path, "latest")
