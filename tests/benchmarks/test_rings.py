"""The benchmarks that run rings or learners, at a tiny size."""

import numpy as np
import pytest

from benchmarks import (
    growth,
    learner,
    overlap,
    scaling,
    startup,
    throughput,
)
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


def test_growth_measures_every_number_of_environments():
    results = growth.measure(
        "configs/impala_bandit.yaml",
        ["--run.log-interval-env-steps", "100"],
        environments=[2, 4],
        seconds=0.1,
        repeats=1,
    )
    assert [result.name for result in results] == [
        *("speed", "peak memory", "compilation", "start to first row")
    ]
    for result in results:
        assert_positive(result, ["2 environments", "4 environments"])


def test_startup_measures_a_first_and_a_second_start():
    result = startup.measure("configs/impala_bandit.yaml", [], repeats=1)
    assert_positive(result, ["first start", "second start"])


def test_startup_reports_a_run_that_ends_without_an_update(tmp_path):
    with pytest.raises(RuntimeError, match="expected a row of metrics"):
        startup.start(
            "no_such.yaml",
            [],
            run_dir=tmp_path / "run",
            cache=tmp_path / "cache",
            bytecode=tmp_path / "bytecode",
        )
