"""The benchmarks that run rings or learners, at a tiny size."""

import numpy as np
import pytest

from benchmarks import (
    checkpointing,
    convolutions,
    growth,
    instrumentation,
    learner,
    overlap,
    rings,
    scaling,
    soak,
    startup,
    throughput,
)
from benchmarks.policy_gradient import PolicyGradientConfig
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig
from sebulba.ring.make import made_ring

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


def test_checkpointing_measures_runs_and_a_checkpoint():
    config = rings.of_length(tiny_config(), 400)
    result = checkpointing.measure_throughput(config, interval_s=0.0, repeats=1)
    assert_positive(result, ["without checkpoints", "with checkpoints"])
    result = checkpointing.measure_one(config, interval_s=10.0, repeats=1)
    assert_positive(result, ["copied by the learner's thread", "computed by all threads"])


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


def test_convolutions_measures_both_settings_in_separate_processes():
    result = convolutions.measure(torso="mlp", repeats=1)
    assert_positive(result, ["bare, default", "bare, kept", "inside, default", "inside, kept"])


def test_convolutions_reports_a_worker_that_has_ended():
    worker = convolutions.own_worker("no such torso")
    with pytest.raises(RuntimeError, match="the worker process ended"):
        worker.measure("bare")
    worker.close()


def test_instrumentation_measures_runs_with_and_without_clocks():
    result = instrumentation.measure(tiny_config(), env_steps=400, repeats=1)
    assert_positive(result, ["on", "off"])
    (cost,) = result.microseconds["of all clocks' readings in a second of the run"].values
    assert 0.0 < cost < 1e6


def test_null_clocks_record_no_time():
    with instrumentation.clocks(instrumentation.NullClock), made_ring(tiny_config()) as ring:
        rings.act_one_cycle(ring)
    clocks = [ring.learner.clock, *(actor.clock for actor in ring.actors)]
    assert [clock.seconds for clock in clocks] == [{}] * len(clocks)


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
        startup.start("no_such.yaml", [], run_dir=tmp_path / "run", cache=tmp_path / "cache")
