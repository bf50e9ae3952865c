"""The benchmarks that run whole rings or learners, at a tiny size."""

import numpy as np
import pytest

from benchmarks import learner, overlap, scaling, soak, throughput
from benchmarks.policy_gradient import PolicyGradientConfig
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig

pytestmark = pytest.mark.slow


def tiny_config():
    return Config(
        env=EnvConfig(suite="benchmarks.environments:make", id="Canned"),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(num_envs=2, trajectory_length=4),
        agent=PolicyGradientConfig(hidden_sizes=(4,)),
    )


def assert_positive(result, names):
    for name in names:
        assert np.all(np.array(result.rates[name].values) > 0), name


def test_throughput_measures_the_config_and_its_parts():
    result = throughput.measure(tiny_config(), env_steps=400, repeats=1)
    assert_positive(
        result,
        [
            "end to end",
            "the same actors alone",
            "environment alone",
            "inference alone",
            "update alone",
            "serial limit",
        ],
    )
    assert set(result.ratios) == {
        "end to end / the same actors alone",
        "end to end / serial limit",
    }


def test_learner_measures_inside_and_bare():
    result = learner.measure(torso="mlp", num_envs=4, updates=2, cycles=4, repeats=1)
    assert_positive(result, ["inside the framework", "bare loop"])
    assert result.settings["updates a cycle"] == 2


def test_overlap_measures_both_modes():
    result = overlap.measure(num_envs=4, updates_per_cycle=2, cycles=4, repeats=1)
    assert_positive(result, ["serial", "threads"])


def test_scaling_measures_each_number_of_threads():
    result = scaling.measure(threads=[1, 2], cycles=3, repeats=1)
    assert set(result.ratios) == {"2 threads / 1"}
    assert_positive(result, ["1 threads", "2 threads"])


def test_soak_samples_until_the_end():
    samples = soak.watch(tiny_config(), cycles=40)
    assert samples[-1].compilations > 0
    assert set(soak.growth(samples)) == {
        "resident_megabytes",
        "threads",
        "open_files",
        "compilations",
    }
