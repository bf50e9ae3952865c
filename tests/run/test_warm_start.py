"""A new run starts with another run's networks: exactly those, or it says what does not fit."""

import dataclasses
import json
import pathlib
import re
import shutil

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.config import RunConfig
from sebulba.config.loading import load_config
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.errors import ConfigError
from sebulba.evaluation.stored import exact_source
from sebulba.run import training
from sebulba.run.warm_start import WarmStart, read_warm_start
from sebulba.storage.checkpoints.manifest import flatten
from sebulba.storage.checkpoints.restore import restore_fitting, steps_in
from sebulba_agents.config import ImpalaConfig
from sebulba_agents.ddqn import DDQN
from sebulba_agents.replay_config import DDQNConfig, SACConfig
from sebulba_agents.sac import SAC
from tests.evaluation.runs import tiny_config
from tests.ring_parts import published
from tests.rings import close, make_ring
from tests.toys import one_actor_run_spec

NORMALISED = ImpalaConfig(network="mlp", hidden_sizes=(8,), normalize_observations=True)


@pytest.fixture
def learner_of():
    """Returns the function that assembles a config and returns its learner."""

    def make(config):
        ring = make_ring(config)
        close(ring)
        return ring.learner

    return make


def config_from(source, tmp_path, **changes):
    return tiny_config("impala", tmp_path / "run", seed=7, init_from=str(source), **changes)


def at(networks):
    return flatten({"learner": {"networks": networks}})


def stored_networks(path):
    checkpoints = path / "checkpoints"
    step = steps_in(checkpoints)[-1]
    leaves = json.loads((checkpoints / str(step) / "manifest.json").read_text())["leaves"]
    like = {
        name: jax.ShapeDtypeStruct(leaf["shape"], leaf["dtype"])
        for name, leaf in leaves.items()
        if name.startswith("learner.networks")
    }
    return restore_fitting(checkpoints, step, like, prefix="learner.networks")[0]


def test_a_warm_start_copies_what_fits_and_begins_the_rest_anew(run_of, tmp_path, learner_of):
    config = config_from(run_of("impala"), tmp_path, agent=NORMALISED, init_mismatch="new")
    learner, fresh = learner_of(config), learner_of(dataclasses.replace(config, init_from=None))
    stored, new = stored_networks(run_of("impala")), at(fresh.state.networks)
    got, of_actors = at(learner.state.networks), at(published(learner))
    assert len(stored) > 0
    assert set(got) > set(stored)  # the normaliser's statistics are new
    for path, leaf in got.items():
        np.testing.assert_array_equal(leaf, stored.get(path, new[path]), err_msg=path)
        np.testing.assert_array_equal(leaf, of_actors[path], err_msg=path)
    jax.tree.map(np.testing.assert_array_equal, learner.state.opt_state, fresh.state.opt_state)


def make_agent(name):
    run_spec = one_actor_run_spec(num_envs=4, trajectory_length=4, num_actions=3)
    if name == "ddqn":
        return DDQN(DDQNConfig(network="mlp", hidden_sizes=(8,)), run_spec)
    actions = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    environment = dataclasses.replace(run_spec.environment, action_space=actions)
    run_spec = dataclasses.replace(run_spec, environment=environment)
    return SAC(SACConfig(hidden_sizes=(8,)), run_spec)


@pytest.mark.parametrize("has_targets", [False, True])
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("name", ["ddqn", "sac"])
def test_target_networks_that_the_source_lacks_are_copies(name, num_devices, has_targets):
    agent, learners = make_agent(name), LearnerDevices(jax.devices()[:num_devices])
    networks = jax.jit(agent.init_networks)(jax.random.key(0))
    leaves = {
        path: np.asarray(leaf) + len(path)
        for path, leaf in at(networks).items()
        if has_targets or "target" not in path
    }
    start = WarmStart(
        run_dir=pathlib.Path("source"), learner_cycle=1, env_steps=1, leaves=leaves, mismatches=[]
    )
    got = start.applied_to(learners.replicate(networks), learners, agent)
    for path, leaf in leaves.items():
        np.testing.assert_array_equal(at(got)[path], leaf)
    if not has_targets:
        copied = agent.copy_to_targets(got)
        jax.tree.map(np.testing.assert_array_equal, got, copied)
    assert all(leaf.sharding.device_set == set(learners.devices) for leaf in jax.tree.leaves(got))


def test_a_warm_start_names_the_arrays_that_differ(run_of, tmp_path):
    config = config_from(run_of("impala"), tmp_path)
    stored = stored_networks(run_of("impala"))
    networks = {"params": np.zeros(3)}
    with pytest.raises(ConfigError, match="init_from: 0 arrays") as error:
        read_warm_start(config.init_from, networks, mismatch=config.init_mismatch)
    assert re.search(r"learner.networks.params +absent +float64\[3\]", str(error.value))
    assert all(path in str(error.value) for path in list(stored)[:10])


def test_a_run_records_its_source_and_resumes_without_it(run_of, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(run_of("impala"), source)
    config = config_from(f"{source}@latest", tmp_path)
    assert training.train_to_exit_code(config) == 0
    path, step = tmp_path / "run", steps_in(source / "checkpoints")[-1]
    assert load_config(str(path / "config.yaml")).init_from == f"{source}@{step}"
    record = json.loads((path / "run.json").read_text())["init_from"]
    assert (record["run_dir"], record["learner_cycle"]) == (str(source), step)
    assert record["copied"] == list(stored_networks(source))
    assert record["not_copied"] == []
    shutil.rmtree(source)
    longer = RunConfig(total_env_steps=300, log_interval_env_steps=100)
    assert (
        training.train_to_exit_code(dataclasses.replace(config, resume="latest", run=longer)) == 0
    )


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        ("@12345", "12345"),
        ("/nowhere", "run directory"),
        (
            "@bst",
            r"expected best, latest or the number of a checkpoint, got 'bst'; did you mean best",
        ),
    ],
)
def test_a_source_that_does_not_exist_is_an_error_of_the_config(run_of, tmp_path, suffix, expected):
    with pytest.raises(ConfigError, match=f"init_from: .*{expected}"):
        exact_source(f"{run_of('impala')}{suffix}", key="init_from")
