"""Memory is planned from shapes, and a config that does not fit is refused."""

import jax
import pytest

from sebulba.agent_check import act_shapes
from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig
from sebulba.config.loading import load_config
from sebulba.devices import memory as memory_plan
from sebulba.devices.memory import check_memory, num_bytes, plan_memory, trajectory_shapes
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from tests.rings import make_ring
from tests.toys import ToyAgent, ToyConfig, toy_run_spec, toy_trajectory

RUN_SPEC = toy_run_spec(num_learner_devices=2)


def make_plan():
    agent = ToyAgent(ToyConfig(), RUN_SPEC)
    networks = jax.eval_shape(agent.init_networks, jax.random.key(0))
    num_envs = RUN_SPEC.num_streams_per_learner_device
    experience = jax.eval_shape(lambda x: agent.init_experience(x, num_envs), networks)
    return plan_memory(
        RUN_SPEC,
        act_shapes(agent, RUN_SPEC),
        opt_state=jax.eval_shape(agent.init_opt_state, networks),
        experience=[experience] * RUN_SPEC.num_learner_devices,
        num_actor_devices=1,
        queue_slots_per_actor=1,
    )


def test_trajectory_shapes_are_those_of_a_trajectory():
    agent = ToyAgent(ToyConfig(), RUN_SPEC)
    shapes = trajectory_shapes(RUN_SPEC, act_shapes(agent, RUN_SPEC))
    trajectory = toy_trajectory(RUN_SPEC, RUN_SPEC.num_envs)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes.env_steps.observation) == (
        trajectory.env_steps.observation.shape,
        trajectory.env_steps.observation.dtype,
    )
    assert num_bytes(shapes) == num_bytes(trajectory)


def test_plan_counts_each_devices_share():
    plan = make_plan()
    trajectory = num_bytes(toy_trajectory(RUN_SPEC, RUN_SPEC.num_envs))
    weights = 3 * 2 * 4
    counts = 2 * 4  # trajectories_of [2 actors], int32
    per_env = 2 * 2 * 4  # initial_count and final_count of 2 environments, int32
    assert plan.learner_device == {
        "experience": trajectory // 2 + counts + per_env,
        # For each of 2 actors one in the deque and one in `put`; one in the learner cycle.
        "trajectories": 5 * trajectory // 2,
        "networks and gradients": 3 * weights,
        "optimizer": 0,
    }
    assert plan.actor_device == {
        "staged networks": 2 * weights,
        "trajectory buffers": 2 * trajectory,
    }
    assert plan.checkpoint == weights + plan.learner_device["experience"]


def test_a_plan_that_does_not_fit_is_refused_with_the_numbers_and_a_remedy(monkeypatch):
    monkeypatch.setattr(memory_plan, "_memory_of", lambda device: ("the host", 1000))
    with pytest.raises(ConfigError, match=r"needs .* on the host, which has 1000 B: learner.*"):
        check_memory(
            make_plan(), actor_devices=jax.devices()[:1], learner_devices=jax.devices()[:2]
        )


@pytest.mark.parametrize("fits", [True, False])
def test_the_host_has_to_hold_the_checkpoints_of_all_learner_devices(fits, monkeypatch):
    plan = make_plan()
    host = 2 * plan.checkpoint - (not fits)
    monkeypatch.setattr(
        memory_plan,
        "_memory_of",
        lambda device: ("the host", host) if device is None else (str(device), 10**9),
    )
    devices = {"actor_devices": jax.devices()[:1], "learner_devices": jax.devices()[:2]}
    if fits:
        check_memory(plan, **devices)
    else:
        with pytest.raises(ConfigError, match=r"on the host.*to save a checkpoint"):
            check_memory(plan, **devices)


def test_a_run_that_does_not_fit_is_refused_before_it_allocates():
    config = Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(num_envs=4),
        learner=LearnerConfig(queue_slots_per_actor=10**9),
        agent=ToyConfig(),
    )
    with pytest.raises(ConfigError, match=r"GiB.*learner\.queue_slots_per_actor"):
        make_ring(config)


def test_environments_that_do_not_fit_into_memory_are_not_made(monkeypatch):
    made = []

    def make(*args, num_envs, **kwargs):
        made.append(num_envs)
        return make_environment(*args, num_envs=num_envs, **kwargs)

    monkeypatch.setattr("sebulba.ring.make.make_environment", make)
    with pytest.raises(ConfigError, match=r"memory: the run needs .* Reduce actor\.num_envs"):
        make_ring(load_config("impala_cartpole", {"actor.num_envs": 3 * 10**9}))
    assert made == [1]
