"""The learner: the same update on any number of devices, however it is mapped."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sebulba.devices.learner_devices import LearnerDevices, fetch_replicated
from sebulba.errors import ConfigError
from sebulba.types import Clock, EnvStepCount
from tests import ring_parts
from tests.ring_parts import (
    ReplicaError,
    check_replicas,
    placed_item,
    published,
    trajectory_of,
    update,
)
from tests.toys import ToyAgent, ToyConfig, ToyState, toy_run_spec, toy_trajectory

NUM_ENVS = 8


def make_learner(num_devices=1, updates_per_cycle=1, agent_class=ToyAgent, **settings):
    learner_devices = LearnerDevices(jax.devices()[:num_devices])
    run_spec = toy_run_spec(num_envs=NUM_ENVS, num_learner_devices=num_devices)
    agent = agent_class(ToyConfig(updates_per_cycle=updates_per_cycle), run_spec)
    learner = ring_parts.make_learner(agent, learner_devices, num_envs=NUM_ENVS, seed=1, **settings)
    return learner, learner_devices


def make_item(learner_devices, sequence_number=0, actor_id=0):
    trajectory = toy_trajectory(toy_run_spec(), NUM_ENVS, seed=sequence_number)
    state = ToyState(key=jax.random.key(0), count=jnp.arange(NUM_ENVS, dtype=jnp.int32))
    agent = ToyAgent(ToyConfig(), toy_run_spec())
    numbers = {"actor_id": actor_id, "sequence_number": sequence_number}
    return placed_item(agent, learner_devices, state, trajectory, **numbers)


def run_cycles(num_cycles=3, **kwargs):
    learner, learner_devices = make_learner(**kwargs)
    metrics = []
    for cycle in range(num_cycles):
        metrics += update(learner, [make_item(learner_devices, cycle)])
    return learner, jax.device_get(metrics)


@pytest.fixture(scope="module")
def on_one_device():
    return run_cycles(num_devices=1)


@pytest.mark.parametrize(
    ("num_devices", "mapping"),
    [
        (2, "shard_map"),
        (4, "shard_map"),
        pytest.param(1, "pmap", marks=pytest.mark.slow),
        pytest.param(2, "pmap", marks=pytest.mark.slow),
        (4, "pmap"),
    ],
)
def test_learner_devices_and_mapping_never_change_the_update(num_devices, mapping, on_one_device):
    expected, expected_metrics = on_one_device
    learner, metrics = run_cycles(num_devices=num_devices, mapping=mapping)
    chex.assert_trees_all_close(published(learner), published(expected), rtol=1e-5, atol=1e-6)
    assert metrics[0].keys() == {"loss", "grad_norm", "reward_sum"}
    chex.assert_trees_all_close(metrics, expected_metrics, rtol=1e-4, atol=1e-5)


def test_update_equals_plain_gradient_descent():
    learner, learner_devices = make_learner(num_devices=2)
    agent = ToyAgent(ToyConfig(), toy_run_spec(num_envs=NUM_ENVS))
    networks = jax.device_get(published(learner))
    item = make_item(learner_devices)
    local = jax.tree.map(jnp.asarray, jax.device_get(trajectory_of(item)))
    experience = agent.init_experience(networks, NUM_ENVS)
    state = ToyState(key=jax.random.key(0), count=jnp.zeros(NUM_ENVS, jnp.int32))
    experience = agent.update_experience(networks, experience, state, state, local, jnp.int32(0))
    gradient = jax.grad(lambda n: agent.loss(n, experience, jax.random.key(0), Clock.at())[0])
    grads = jax.jit(gradient)
    update(learner, [item])
    expected = networks["weights"] - 0.1 * grads(networks)["weights"]
    np.testing.assert_allclose(published(learner)["weights"], expected, rtol=1e-5, atol=1e-6)


def test_each_devices_experience_is_its_own_share():
    learner, learner_devices = make_learner(num_devices=4)
    item = make_item(learner_devices)
    update(learner, [item, make_item(learner_devices, 1, actor_id=1)])
    experience = learner.state.experience
    assert experience.trajectory.action.shape == (4, 5, NUM_ENVS // 4)
    np.testing.assert_array_equal(
        experience.initial_count.reshape(-1), jnp.arange(NUM_ENVS, dtype=jnp.int32)
    )
    np.testing.assert_array_equal(experience.trajectories_of, np.ones((4, 2), np.int32))


class _Drawing(ToyAgent):
    """Leaves a number that its loss draws in its experience."""

    def loss(self, networks, experience, key, clock):
        drawn = jax.random.randint(key, experience.initial_count.shape, 0, 2**30)
        loss, (experience, metrics) = super().loss(networks, experience, key, clock)
        return loss, (dataclasses.replace(experience, initial_count=drawn), metrics)


def test_losses_on_several_devices_and_of_several_updates_draw_different_numbers():
    learner, learner_devices = make_learner(num_devices=4, agent_class=_Drawing)
    drawn = []
    for cycle in range(2):
        update(learner, [make_item(learner_devices, cycle)])
        drawn += np.asarray(learner.state.experience.initial_count).tolist()
    assert len(set(map(tuple, drawn))) == 2 * 4


class _WithMomentum(ToyAgent):
    """Has a state of its optimizer."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self._optimizer = optax.sgd(config.learning_rate, momentum=0.9)


def test_state_is_donated_and_published_networks_are_not():
    learner, learner_devices = make_learner(num_devices=2, agent_class=_WithMomentum)
    state, first = learner.state, published(learner)
    assert jax.tree.leaves(state.opt_state)
    staged = fetch_replicated(first, jax.devices()[0])
    update(learner, [make_item(learner_devices)])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.networks))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.opt_state))
    assert state.experience.trajectories_of.is_deleted()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((first, staged)))
    second = published(learner)
    update(learner, [make_item(learner_devices, 1)])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(second))


def test_each_of_several_updates_a_cycle_is_counted_and_has_metrics():
    learner, metrics = run_cycles(num_cycles=2, updates_per_cycle=3)
    assert [each["loss"].shape for each in metrics] == [(3,), (3,)]
    assert learner.num_updates == 6
    assert int(learner.state.step) == 6


def test_a_cycle_without_updates_only_adds_experience():
    learner, metrics = run_cycles(num_cycles=2, updates_per_cycle=0)
    assert metrics == [] and learner.num_updates == 0
    np.testing.assert_array_equal(learner.state.experience.trajectories_of, [[2, 0]])


@pytest.mark.slow
def test_without_jit_a_loss_sees_numbers_and_the_update_is_the_same(monkeypatch):
    expected, _ = run_cycles(num_cycles=1)
    seen = []
    loss = ToyAgent.loss

    def loss_with_breakpoint(self, networks, experience, key, clock):
        seen.append(float(experience.trajectory.env_steps.reward[1, 0]))
        return loss(self, networks, experience, key, clock)

    monkeypatch.setattr(ToyAgent, "loss", loss_with_breakpoint)
    with jax.disable_jit():
        learner, _ = run_cycles(num_cycles=1)
    assert len(seen) == 1
    chex.assert_trees_all_close(published(learner), published(expected), rtol=1e-5, atol=1e-6)


def test_without_jit_several_learner_devices_are_refused():
    with jax.disable_jit(), pytest.raises(ConfigError, match="expected one learner device"):
        run_cycles(num_cycles=1, num_devices=2)


class DriftingAgent(ToyAgent):
    """Learns from each device's own experience, in place of the averaged gradients."""

    def optimize(self, networks, opt_state, grads, experience, clock):
        networks, opt_state = super().optimize(networks, opt_state, grads, experience, clock)
        drift = jnp.mean(experience.trajectory.env_steps.reward)
        return jax.tree.map(lambda leaf: leaf + drift, networks), opt_state


def test_learner_devices_whose_networks_differ_end_the_run():
    check_replicas(run_cycles(num_cycles=1, num_devices=1, agent_class=DriftingAgent)[0])
    learner, _ = run_cycles(num_cycles=1, num_devices=2, agent_class=DriftingAgent)
    with pytest.raises(ReplicaError, match=r"networks\['weights'\]: expected the same values"):
        check_replicas(learner)


def test_learner_devices_with_the_same_networks_pass():
    learner, _ = run_cycles(num_cycles=1, num_devices=4)
    check_replicas(learner)


def test_updates_in_a_loop_write_their_metrics_and_counts_as_one_array_each():
    learner, learner_devices = make_learner(updates_per_cycle=3)
    update_cycle = learner.programs.device_update.cycle
    state = jax.eval_shape(lambda state: state, learner.state)
    item = make_item(learner_devices)
    jaxpr = jax.make_jaxpr(lambda s, u: update_cycle(s, (u,), EnvStepCount.of(0), num_updates=3))(
        state, item.unroll
    )
    (scan,) = (each for each in jaxpr.eqns if each.primitive.name == "scan")
    num_carried = scan.params["num_carry"]
    counts = [
        each.aval.shape for each in scan.outvars[:num_carried] if each.aval.dtype == jnp.int32
    ]
    per_update = [each.aval.shape for each in scan.outvars[num_carried:]]
    assert (3,) in counts and () not in counts
    assert len(per_update) == 1 and per_update[0][0] == 3
