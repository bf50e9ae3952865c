"""Runs whose players have networks by their groups."""

import dataclasses
import json

import chex
import jax
import numpy as np
import pytest

import sebulba
from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy
from sebulba.process import EXIT_DONE
from sebulba.run import training
from tests.rings import act, close, make_ring, run_config

GROUPS = "{odd: [1], even: [0, 2]}"
FLAGS = [
    *("--env.id", "tests.envs.roles:Roles", "--env.groups", GROUPS, "--run.mode", "serial"),
    *("--actor.threads-per-device", "1", "--learner.policy-lag", "0", "--agent.hidden-sizes"),
    *("[8]", "--agent.num-epochs", "1", "--agent.num-minibatches", "1"),
]
SMALL = ("--actor.num-envs", "4", "--actor.trajectory-length", "6", "--run.total-env-steps", "600")


def config_of(*flags):
    return load_config("configs/ppo_bandit.yaml", [*FLAGS, *flags])


@pytest.mark.slow
def test_one_program_learns_the_same_for_groups_as_acting_and_learning_in_turn():
    serial, rows, _ = run_config(config_of(*SMALL))
    one, _, _ = run_config(config_of(*SMALL, "--run.mode", "anakin"))
    networks = serial.learner.state.networks
    chex.assert_trees_all_close(networks, one.learner.state.networks, rtol=1e-5, atol=1e-6)
    assert {"even/value_loss", "odd/value_loss"} < rows[-1].keys()


def test_a_run_with_groups_resumes_exactly(tmp_path):
    config = config_of(*SMALL)
    whole, _, _ = run_config(config)
    run_config(config, tmp_path, stop_at_cycle=5)
    resumed, _, was = run_config(
        dataclasses.replace(config, resume="latest"), tmp_path, which="latest"
    )
    assert was.level == "exact" and was.num_cycles == 5
    chex.assert_trees_all_equal(whole.learner.state.networks, resumed.learner.state.networks)


def test_learner_devices_get_the_players_of_each_group():
    config = config_of(*SMALL, "--devices.learner", "[1, 2]", "--devices.actor", "[0]")
    ring = make_ring(config, devices=jax.devices()[:3])
    try:
        initial = act(ring).unroll.initial_state
        assert initial.keys() == {"odd", "even"}
        sizes = {
            name: {
                shard.data.shape[0] for shard in initial[name].memory.last_action.addressable_shards
            }
            for name in initial
        }
        assert sizes == {"odd": {2}, "even": {4}}
    finally:
        close(ring)


def train(run_dir, *flags):
    config = config_of("--seed", "1001", "--run-dir", str(run_dir), *flags)
    config = dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    assert training.train_to_exit_code(config) == 0
    return json.loads((run_dir / "summary.json").read_text())["best_episode_return_mean"]


@pytest.mark.slow
def test_groups_learn_what_players_that_share_a_network_cannot(tmp_path):
    """Players that share a network reach 2/3; see the test below."""
    fast = ("--agent.learning-rate", "1e-2", "--agent.num-epochs", "4")
    assert train(tmp_path / "run", *fast) >= 0.95
    for greedy in (True, False):
        result = sebulba.evaluate(tmp_path / "run", episodes=50, greedy=greedy)
        assert np.mean(result.returns) >= 0.9
    policy = sebulba.load_policy(tmp_path / "run")
    lights = np.eye(3, dtype=np.float32)[[0, 0, 0, 2, 2, 2]]
    assert policy(lights)[0].tolist() == [0, 1, 0, 2, 0, 2]
    with pytest.raises(ValueError, match="rows of all 3 players of each environment, got 1 rows"):
        policy(lights[0])
    arguments = [str(tmp_path / "run"), "-o", str(tmp_path / "export"), "--num-envs", "6"]
    assert export(_parser().parse_args(arguments)) == EXIT_DONE
    assert Policy(tmp_path / "export")(lights)[0].tolist() == [0, 1, 0, 2, 0, 2]


@pytest.mark.slow
def test_players_that_share_a_network_cannot_tell_their_roles(tmp_path):
    shared = ("--env.groups", "{}", "--agent.learning-rate", "1e-2", "--agent.num-epochs", "4")
    assert train(tmp_path / "run", *shared) <= 0.8
