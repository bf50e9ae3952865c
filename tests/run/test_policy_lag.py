"""An exact policy lag: the same config and seed give the same run, whatever the threads' timing."""

import dataclasses
import random

import chex
import pytest

from sebulba.config import EnvConfig
from sebulba.config.loading import load_config
from sebulba.config.shipped import shipped_configs
from sebulba.run.summary import networks_crc32
from sebulba_agents.config import ImpalaConfig, PolicyGradientConfig, PPOConfig
from sebulba_agents.replay_config import SACConfig
from tests.extras import needs_search
from tests.rings import run_config
from tests.run.delays import insert_delays
from tests.run.resuming import comparable
from tests.run.test_resume import CATCH, IMPALA, MUZERO, R2D2, RECALL, make_config

BANDIT = EnvConfig(suite="jax", id="ContinuousBandit-v0")
SHALLOW = ImpalaConfig(network="shallow")
PPO = PPOConfig(hidden_sizes=(8,), num_epochs=2, num_minibatches=2)
PG = PolicyGradientConfig(hidden_sizes=(8,))
SAC = SACConfig(
    hidden_sizes=(8,),
    batch_size=8,
    replay_capacity=400,
    min_replay_rows=100,
    replay_ratio=4.0,
)
ASYNC = EnvConfig(suite="gymnasium", id="CartPole-v1", options={"vectorization_mode": "async"})
PONG = EnvConfig(suite="ale", id="pong")
SMALL_TASKS = ("bandit", "cartpole", "cartpole_episodes", "catch", "pendulum", "recall", "room")
SMALL = [name for name in shipped_configs() if name.endswith(SMALL_TASKS)]


@pytest.fixture
def disturb(monkeypatch):
    def insert(rng, longest_s):
        monkeypatch.undo()  # Delays of an earlier run would add to these.
        insert_delays(rng, longest_s, setattr=monkeypatch.setattr)

    return insert


def outcome(config):
    ring, rows, _ = run_config(config)
    return ring.learner.state, comparable(rows)


@pytest.mark.parametrize(
    ("lag", "threads", "per_cycle"),
    [
        (1, 3, 2),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((0, 2, 1), (0, 3, 2), (1, 2, 1), (3, 2, 1), (3, 3, 2))
        ),
    ],
)
def test_serial_and_disturbed_threads_give_bitwise_the_same_run(lag, threads, per_cycle, disturb):
    settings = {"lag": lag, "threads": threads, "per_cycle": per_cycle}
    serial = outcome(make_config(mode="serial", **settings))
    disturb(random.Random(lag), 0.002)
    chex.assert_trees_all_equal(outcome(make_config(**settings)), serial)


def test_a_lag_is_another_run_than_lock_step():
    (overlapping, _), (lock_step, _) = outcome(make_config(lag=1)), outcome(make_config(lag=0))
    with pytest.raises(AssertionError, match="weights"):
        chex.assert_trees_all_equal(overlapping.networks, lock_step.networks)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("threads", [2, 4])
def test_twenty_disturbed_runs_of_a_shipped_config_have_one_checksum(lag, threads, disturb):
    flags = ("--actor.threads-per-device", threads, "--learner.policy-lag", lag)
    devices = ("--devices.actor", "[0]", "--devices.learner", "[0]")
    shortened = ("--run.total-env-steps", 10_000, "--run.stop-at-return", "null")
    config = load_config("configs/impala_cartpole.yaml", [*map(str, flags + devices + shortened)])
    checksums = set()
    for seed in range(20):
        disturb(random.Random(seed), 0.02)
        ring, _, _ = run_config(config)
        checksums.add(networks_crc32(ring))
    assert len(checksums) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_small_shipped_config_has_one_checksum_per_seed(name, disturb):
    config = load_config(name, {"seed": 3, "run.stop_at_return": None})
    if config.agent.name == "gumbel_muzero":
        pytest.importorskip("mctx")
    shortened = min(config.run.total_env_steps, 10_000)
    config = dataclasses.replace(
        config, run=dataclasses.replace(config.run, total_env_steps=shortened)
    )
    checksums = []
    for delays in (None, 0, 1):
        if delays is not None:
            disturb(random.Random(delays), 0.01)
        checksums.append(networks_crc32(run_config(config)[0]))
    assert checksums[0] == checksums[1] == checksums[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "agent", "changes"),
    [
        pytest.param(RECALL, IMPALA, {}, id="impala"),
        pytest.param(RECALL, R2D2, {}, id="r2d2"),
        pytest.param(BANDIT, SAC, {}, id="sac"),
        pytest.param(CATCH, MUZERO, {}, id="gumbel_muzero", marks=needs_search),
        pytest.param(CATCH, PPO, {}, id="ppo"),
        pytest.param(EnvConfig(id="CartPole-v1"), IMPALA, {}, id="envpool"),
        pytest.param(ASYNC, IMPALA, {}, id="gymnasium-async"),
        pytest.param(PONG, SHALLOW, {"env_steps": 200}, id="ale"),
        pytest.param(RECALL, IMPALA, {"learner_devices": (0, 1, 2, 3)}, id="4-devices"),
    ],
)
@pytest.mark.parametrize("lag", [1, 2])
def test_every_kind_of_run_repeats_bitwise_under_other_timings(env, agent, changes, lag, disturb):
    config = make_config(env, agent, lag=lag, **changes)
    expected = outcome(config)
    for seed in range(2):
        disturb(random.Random(seed), 0.005)
        chex.assert_trees_all_equal(outcome(config), expected)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2])
def test_whole_episodes_repeat_bitwise_under_other_timings(lag, disturb):
    config = make_config(EnvConfig(id="CartPole-v1"), PG, lag=lag, env_steps=6_000)
    actor = dataclasses.replace(config.actor, rollout="episodes", trajectory_length=501)
    learner = dataclasses.replace(config.learner, allow_uncorrected_lag=True)
    config = dataclasses.replace(config, actor=actor, learner=learner)
    expected = outcome(config)
    for seed in range(2):
        disturb(random.Random(seed), 0.005)
        chex.assert_trees_all_equal(outcome(config), expected)
