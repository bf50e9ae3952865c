"""Who acts is a port: the same networks and the same point give the same result, whoever acts."""

import dataclasses

import gymnasium
import numpy as np
import pytest

from sebulba.config import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearnerConfig,
    RunConfig,
)
from sebulba.envs.base import EnvironmentFault
from sebulba.ring.clocks import MAKE_ENVIRONMENTS
from sebulba.ring.records import NOTHING_BEFORE
from tests.disturbances import (
    CollectorLost,
    collected_of,
    drop_collectors,
    lose_collectors,
    new_collector,
)
from tests.ring_parts import assert_equal_bits, published
from tests.rings import close, make_ring, run_ring
from tests.toys import ToyConfig

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

CATCH = EnvConfig(suite="jax", id="Catch-v0")
CARTPOLE = EnvConfig(suite="envpool", id="CartPole-v1")
GYMNASIUM = EnvConfig(suite="gymnasium", id="CartPole-v1")
ASYNC = EnvConfig(suite="gymnasium", id="CartPole-v1", options={"vectorization_mode": "async"})


class _Drifting(gymnasium.Env):
    """Depends on more than its seed and its actions."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    started = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        _Drifting.started += 1
        self._number = np.full(3, _Drifting.started, np.float32)
        return self._number.copy(), {}

    def step(self, action):
        return self._number.copy(), 1.0, False, False, {}


class _Failing(gymnasium.Env):
    """Fails in its third step, in its first two lives."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    lives = 0

    def __init__(self):
        _Failing.lives += 1
        self._life, self._steps = _Failing.lives, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self._steps += 1
        if self._life <= 2 and self._steps == 3:
            raise RuntimeError("it fell over")
        return self.np_random.normal(size=3).astype(np.float32), 1.0, False, False, {}


class _Noting(_Drifting):
    """Notes the activity of an actor that makes it."""

    clock = None
    activities = []  # noqa: RUF012

    def __init__(self):
        if self.clock is not None:
            self.activities.append(self.clock.current[0])


def make_config(
    env=CATCH,
    *,
    threads=1,
    lag=1,
    env_steps=600,
    exact_reset_cycles=None,
    num_envs=4,
    **actor,
):
    return Config(
        env=env,
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(
            threads_per_device=threads, num_envs=num_envs, trajectory_length=5, **actor
        ),
        learner=LearnerConfig(policy_lag=lag),
        run=RunConfig(total_env_steps=env_steps, log_interval_env_steps=200),
        checkpoint=CheckpointConfig(exact_reset_cycles=exact_reset_cycles),
        agent=ToyConfig(),
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(make_config(), id="jax"),
        pytest.param(make_config(cycle="stepped"), id="jax stepped"),
        pytest.param(make_config(CARTPOLE), id="envpool"),
        pytest.param(make_config(CARTPOLE, cycle="stepped"), id="envpool stepped"),
        pytest.param(make_config(CARTPOLE, exact_reset_cycles=2), id="envpool recreated"),
        pytest.param(make_config(GYMNASIUM), id="gymnasium"),
        pytest.param(make_config(ASYNC), id="gymnasium async", marks=pytest.mark.slow),
        pytest.param(
            make_config(CARTPOLE, rollout="episodes"), id="envpool episodes", marks=pytest.mark.slow
        ),
        pytest.param(make_config(GYMNASIUM, rollout="episodes"), id="gymnasium episodes"),
        pytest.param(make_config(rollout="episodes"), id="jax episodes"),
    ],
)
def test_a_new_collector_gives_the_same_from_every_point_of_another(config):
    ring = make_ring(config)
    calls = collected_of(ring, 4)
    for networks, point, expected in calls:
        collector = new_collector(ring, 0)
        collected = collector.collect(networks, point)
        collector.close()
        assert_equal_bits(collected.trajectory, expected.trajectory)
        assert_equal_bits(collected.tally, expected.tally)
        assert_equal_bits(collected.carry.actor_state, expected.carry.actor_state)
        assert_equal_bits(collected.carry.env_step, expected.carry.env_step)
    close(ring)


def test_no_restart_of_a_cycle_repeats_the_episodes_of_another():
    ring = make_ring(make_config(CARTPOLE))
    _, (networks, point, _) = collected_of(ring, 2)
    collector, seen = ring.actors[0].collector, set()
    for attempt in range(4):
        start = dataclasses.replace(point, boundary=NOTHING_BEFORE, attempt=attempt)
        rows = collector.collect(networks, start).trajectory.env_steps
        seen.add(np.asarray(rows.observation).tobytes())
    close(ring)
    assert len(seen) == 4


def test_environments_that_are_recreated_are_made_and_not_compiled():
    gymnasium.register("Noting-v0", _Noting)
    ring = make_ring(make_config(EnvConfig(suite="gymnasium", id="Noting-v0"), num_envs=1))
    _, (networks, point, _) = collected_of(ring, 2)
    _Noting.clock = ring.actors[0].clock
    new_stream = dataclasses.replace(point, boundary=NOTHING_BEFORE)
    ring.actors[0].collector.collect(networks, new_stream)
    close(ring)
    assert _Noting.activities == [MAKE_ENVIRONMENTS]


@pytest.mark.parametrize("cycle", ["fused", "stepped"])
def test_the_same_collector_gives_the_same_from_an_earlier_point(cycle):
    ring = make_ring(make_config(CARTPOLE, cycle=cycle))
    collector = ring.actors[0].collector
    calls = collected_of(ring, 3)
    networks, point, expected = calls[1]
    assert_equal_bits(collector.collect(networks, point).trajectory, expected.trajectory)
    networks, point, expected = calls[2]
    assert_equal_bits(collector.collect(networks, point).trajectory, expected.trajectory)
    close(ring)


@pytest.mark.parametrize("mode", ["threads", "serial"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(make_config(threads=2), id="jax"),
        pytest.param(
            make_config(CARTPOLE, threads=2, exact_reset_cycles=3, cycle="stepped", env_steps=300),
            id="envpool",
        ),
        pytest.param(
            make_config(CARTPOLE, threads=2, exact_reset_cycles=3, env_steps=300),
            id="envpool fused",
            marks=pytest.mark.slow,  # Each collector compiles its own cycle.
        ),
        pytest.param(
            make_config(GYMNASIUM, threads=2, rollout="episodes", env_steps=200), id="episodes"
        ),
    ],
)
def test_collectors_that_are_made_anew_before_every_cycle_change_no_bit(config, mode):
    undisturbed, dropped = make_ring(config), make_ring(config)
    drop_collectors(dropped)
    rows = [run_ring(undisturbed, mode=mode)[-1], run_ring(dropped, mode=mode)[-1]]
    assert_equal_bits(published(dropped.learner), published(undisturbed.learner))
    for name in ("env_steps", "updates", "episodes", "episode_return_mean"):
        assert rows[0][name] == rows[1][name]
    assert dropped.ledger.balance() == undisturbed.ledger.balance() or mode == "threads"


def test_a_lost_collector_is_asked_again_for_the_same_point():
    config = make_config(CARTPOLE, threads=2)
    undisturbed, losing = make_ring(config), make_ring(config)
    lose_collectors(losing, {0: 1, 3: 2, 4: 1})
    run_ring(undisturbed)
    run_ring(losing)
    assert_equal_bits(published(losing.learner), published(undisturbed.learner))


@pytest.mark.parametrize("mode", ["threads", "serial"])
def test_a_point_at_which_every_collector_is_lost_ends_the_run_and_says_where(mode):
    ring = make_ring(make_config(CARTPOLE))
    lose_collectors(ring, {2: 10})
    with pytest.raises(CollectorLost, match="the process of actor 0 is gone") as error:
        run_ring(ring, mode=mode)
    assert error.value.__notes__ == [
        "8 collectors in turn were lost at this point.",
        "This happened in actor 0, cycle 2.",
    ]
    ring.ledger.balance()


def test_environments_that_cannot_be_brought_to_the_point_begin_new_episodes():
    gymnasium.register("Drifting-v0", _Drifting)
    warnings, infos = [], []
    env = EnvConfig(suite="gymnasium", id="Drifting-v0")
    ring = make_ring(make_config(env, env_steps=100), on_warning=warnings.append)
    drop_collectors(ring, before_cycle=lambda cycle: cycle == 3)
    run_ring(ring, on_cycle=infos.extend)
    assert warnings == [
        "actor 0, cycle 3: new episodes begin, since the stream cannot continue in other"
        " environments: repeating its actions led to another observation: the environments do"
        " not depend on their seed and actions alone"
    ]
    cut = {info.sequence_number: (info.episodes_cut, info.env_restarts) for info in infos}
    assert cut.pop(3) == (4, 0)
    assert set(cut.values()) == {(0, 0)}
    ring.ledger.balance()


def test_actions_beyond_the_number_that_is_kept_end_the_stream_of_a_lost_collector():
    warnings = []
    ring = make_ring(make_config(CARTPOLE, env_steps=200), on_warning=warnings.append)
    drop_collectors(ring, before_cycle=lambda cycle: cycle == 4)
    ring.actors[0].collector.max_kept_cycles = 3
    run_ring(ring)
    (warning,) = warnings
    assert warning.endswith("its earlier actions were not kept")


def test_half_stepped_environments_are_not_taken_for_those_of_the_point():
    """A cycle that failed has stepped them: the collector says so to itself before it acts."""
    _Failing.lives = 0
    gymnasium.register("Failing-v0", _Failing)
    env = EnvConfig(suite="gymnasium", id="Failing-v0")
    ring = make_ring(make_config(env, num_envs=1))
    actor = ring.actors[0]
    networks = ring.learner.networks_on(actor.device)
    for _ in range(2):  # the same point meets the same fault, whoever acts
        with pytest.raises(EnvironmentFault, match="it fell over"):
            actor.collector.collect(networks, actor.point)
    collected = actor.collector.collect(networks, actor.point)
    fresh = new_collector(ring, 0)
    assert_equal_bits(collected.trajectory, fresh.collect(networks, actor.point).trajectory)
    fresh.close()
    close(ring)
