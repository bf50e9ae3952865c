"""The whole ring: exact in lock-step, bounded in lag, balanced, and never hanging."""

import chex
import jax
import numpy as np
import pytest

from sebulba.agent_check import AgentError
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig, RunConfig
from sebulba.errors import ConfigError
from tests.disturbances import before, before_learning_from, wrap_act_cycle
from tests.ring_parts import published
from tests.rings import make_ring, run_ring, stop, total_of
from tests.toys import ToyConfig, ToyState

pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), pytest.mark.shares_programs]

CATCH = EnvConfig(suite="jax", id="Catch-v0")
CARTPOLE = EnvConfig(suite="envpool", id="CartPole-v1")


def make_config(
    env=CATCH,
    *,
    actor_devices=(0,),
    learner_devices=(0,),
    threads=2,
    lag=0,
    per_cycle=1,
    env_steps=1500,
    cycle="auto",
    agent=None,
    **learner,
):
    return Config(
        env=env,
        devices=DevicesConfig(actor=actor_devices, learner=learner_devices),
        actor=ActorConfig(threads_per_device=threads, num_envs=4, trajectory_length=5, cycle=cycle),
        learner=LearnerConfig(policy_lag=lag, trajectories_per_cycle=per_cycle, **learner),
        run=RunConfig(total_env_steps=env_steps, log_interval_env_steps=200),
        agent=agent or ToyConfig(),
    )


def run_config(config, *, mode="threads", on_trajectory=lambda info, cycle: None):
    """Runs a config; returns the ring and its rows of metrics."""
    ring = make_ring(config)

    def on_cycle(infos):
        for info in infos:
            on_trajectory(info, ring.learner.num_cycles - 1)

    return ring, run_ring(ring, mode=mode, on_cycle=on_cycle)


def without_times(rows):
    return [
        {
            key: value
            for key, value in row.items()
            if not key.startswith(("wall_time_s", "steps_per_second", "time/", "all_reduce/"))
        }
        for row in rows
    ]


@pytest.mark.parametrize(
    ("env", "threads"),
    # Each actor of EnvPool's compiles a cycle of its own.
    [(CATCH, 2), (CARTPOLE, 1), pytest.param(CARTPOLE, 2, marks=pytest.mark.slow)],
    ids=["jax", "envpool", "envpool-two-actors"],
)
def test_lock_step_twice_and_serial_once_give_bitwise_the_same_run(env, threads):
    config = make_config(env, threads=threads)
    (first, first_rows), (second, second_rows) = run_config(config), run_config(config)
    serial, serial_rows = run_config(config, mode="serial")
    chex.assert_trees_all_equal(first.learner.state, second.learner.state)
    chex.assert_trees_all_equal(first.learner.state, serial.learner.state)
    assert first.learner.num_cycles > 50
    for rows in (second_rows, serial_rows):
        assert [row | {"queue_depth": 0} for row in without_times(rows)] == [
            row | {"queue_depth": 0} for row in without_times(first_rows)
        ]


def test_another_seed_gives_another_run():
    first, _ = run_config(make_config(env_steps=100))
    config = make_config(env_steps=100)
    other, _ = run_config(Config(**{**vars(config), "seed": 1}))
    assert not np.array_equal(
        published(first.learner)["weights"], published(other.learner)["weights"]
    )


@pytest.mark.parametrize("per_cycle", [1, 3])
def test_lock_step_takes_turns_with_any_number_of_trajectories_a_cycle(per_cycle):
    turns, versions = [], []

    def on_trajectory(info, cycle):
        turns.append(info.actor_id)
        versions.append((info.policy_version, cycle))

    run_config(make_config(per_cycle=per_cycle), on_trajectory=on_trajectory)
    assert turns == [number % 2 for number in range(len(turns))]
    assert all(version == cycle for version, cycle in versions)


def test_the_policy_lag_is_exact_and_rows_count_it():
    lags = []
    _, rows = run_config(
        make_config(threads=3, lag=2, env_steps=4000),
        on_trajectory=lambda info, cycle: lags.append(cycle - info.policy_version),
    )
    assert lags == [0, 1] + [2] * (len(lags) - 2)
    for lag in range(3):
        assert sum(row.get(f"policy_lag/{lag}", 0) for row in rows) == lags.count(lag)


def test_free_running_actors_take_the_newest_networks_and_lose_nothing():
    numbers = {0: [], 1: []}
    ring, rows = run_config(
        make_config(lag=None, env_steps=4000),
        on_trajectory=lambda info, cycle: numbers[info.actor_id].append(info.sequence_number),
    )
    assert ring.progress.env_steps >= 4000
    for taken in numbers.values():
        assert taken == list(range(len(taken)))
    accounts = ring.ledger.balance()
    assert sum(account["learned"] for account in accounts) == ring.progress.env_steps
    assert all(account["queued"] == account["in_flight"] == 0 for account in accounts)
    assert rows[-1]["env_steps"] == ring.progress.env_steps


@pytest.mark.parametrize(
    ("actor_devices", "learner_devices"),
    [
        pytest.param((0, 1), (2, 3), marks=pytest.mark.slow),
        ((0, 1), (0, 1)),
        pytest.param((0,), (1, 2), marks=pytest.mark.slow),
        pytest.param((0, 1, 2), (3,), marks=pytest.mark.slow),
    ],
)
def test_every_split_of_devices_learns_the_same_in_lock_step(actor_devices, learner_devices):
    # As many actors, all on one device and one on each.
    threads = len(actor_devices)
    expected, _ = run_config(make_config(threads=threads, per_cycle=2, env_steps=1000))
    ring, _ = run_config(
        make_config(
            threads=1,
            per_cycle=2,
            env_steps=1000,
            actor_devices=actor_devices,
            learner_devices=learner_devices,
        )
    )
    np.testing.assert_allclose(
        published(ring.learner)["weights"],
        published(expected.learner)["weights"],
        rtol=1e-4,
        atol=1e-5,
    )


def test_actors_see_different_environments_and_act_with_different_keys(monkeypatch):
    trajectories = []
    before_learning_from(trajectories.extend, setattr=monkeypatch.setattr)
    run_config(make_config(env_steps=300))
    first, second, *_ = trajectories  # In lock-step, the actors take turns.
    assert not np.array_equal(first.env_steps.observation, second.env_steps.observation)
    assert not np.array_equal(first.action, second.action)
    first, second = make_ring(make_config()).actors
    assert first.point.carry.actor_state.key != second.point.carry.actor_state.key


def test_pmap_gives_the_same_run():
    settings = {"learner_devices": (1, 2), "env_steps": 200}
    expected, _ = run_config(make_config(**settings))
    ring, _ = run_config(make_config(mapping="pmap", **settings))
    np.testing.assert_allclose(
        published(ring.learner)["weights"], published(expected.learner)["weights"], rtol=1e-5
    )


@pytest.mark.parametrize("mode", ["threads", "serial"])
def test_an_exception_in_an_actor_ends_the_run_with_its_traceback_and_place(mode):
    ring = make_ring(make_config(lag=None, env_steps=10**9))
    calls = []

    def failing(act_cycle):
        def fail_at_third(networks, carry):
            calls.append(None)
            if len(calls) == 3:
                raise RuntimeError("the environment broke")
            return act_cycle(networks, carry)

        return fail_at_third

    wrap_act_cycle(ring, 1, failing)
    with pytest.raises(RuntimeError, match="the environment broke") as error:
        run_ring(ring, mode=mode)
    assert error.value.__notes__ == ["This happened in actor 1, cycle 2."]
    assert error.traceback[-1].name == "fail_at_third"
    ring.ledger.balance()


@pytest.mark.parametrize("mode", ["threads", "serial"])
def test_an_exception_in_the_learner_ends_the_run_with_its_traceback_and_place(mode, monkeypatch):
    ring = make_ring(make_config(lag=None, env_steps=10**9))

    def fail(_):
        raise FloatingPointError("the loss broke")

    before("count", fail, setattr=monkeypatch.setattr)
    with pytest.raises(FloatingPointError, match="the loss broke") as error:
        run_ring(ring, mode=mode)
    assert error.value.__notes__ == ["This happened in the learner, cycle 0."]
    accounts = ring.ledger.balance()
    assert sum(account["learned"] for account in accounts) == 0
    assert sum(account["discarded"] for account in accounts) == total_of(ring, "acted") > 0


@pytest.mark.parametrize("mode", ["threads", "serial"])
def test_a_stop_request_ends_the_run_between_cycles(mode):
    ring = make_ring(make_config(lag=None, env_steps=10**9))

    def stop_after_three(infos):
        if ring.learner.num_cycles >= 3:
            stop(ring)

    run_ring(ring, mode=mode, on_cycle=stop_after_three)
    assert ring.learner.num_cycles >= 3
    assert total_of(ring, "learned") == ring.progress.env_steps


def test_environments_that_cannot_be_split_over_the_learner_devices_are_refused():
    expected = (
        r"actor\.num_envs: expected a multiple of the 3 learner devices, got 4\. Name 2 of them"
    )
    with pytest.raises(ConfigError, match=expected):
        make_ring(make_config(learner_devices=(0, 1, 2)))


def test_an_environment_that_cannot_be_fused_is_refused_when_fused_is_asked_for():
    config = make_config(EnvConfig(suite="gymnasium", id="CartPole-v1"), cycle="fused")
    with pytest.raises(ConfigError, match=r"actor\.cycle: .* gymnasium CartPole-v1 cannot"):
        make_ring(config)


def test_a_shard_actor_state_that_drops_or_misplaces_a_leaf_is_named():
    ring = make_ring(make_config())
    ring.programs.agent.shard_actor_state = lambda state, sharding: ToyState(
        key=sharding.replicate(state.key), count=None
    )
    with pytest.raises(
        AgentError, match=r"shard_actor_state: count: expected int32\[4\], got no such leaf"
    ):
        run_ring(ring, mode="threads")


def test_metrics_rows_come_at_every_interval_and_at_the_end():
    ring, rows = run_config(make_config(env_steps=1000))
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(set(steps))
    assert [step // 200 for step in steps] == [1, 2, 3, 4, 5]
    assert rows[-1]["updates"] == ring.learner.num_updates
    assert jax.tree.all(jax.tree.map(np.isfinite, rows[-1]["loss"]))
