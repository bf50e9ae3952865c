"""Rows in chunks give what all rows at once do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.toolkit import row_chunks
from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.toolkit.row_chunks import map_rows
from sebulba_agents.config import PPOConfig
from sebulba_agents.ppo import PPO
from tests.on_policy import make_networks, make_run_spec, make_stream, to_device


@pytest.fixture
def in_chunks(monkeypatch):
    monkeypatch.setattr(row_chunks, "_MIN_ROWS", 16)
    monkeypatch.setattr(row_chunks, "_MAX_CHUNK", 8)


def at_once(function, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_chunks, "_MIN_ROWS", 10**9)
        return jax.jit(lambda *args: function(*args))(*arguments)


def loss(weights, rows):
    outputs = map_rows(lambda row: {"x": jnp.tanh(row["x"] @ weights), "y": 2 * row["y"]}, rows)
    assert outputs["x"].shape == (*rows["y"].shape[:2], weights.shape[1])
    return jnp.sum(jnp.square(outputs["x"]) * outputs["y"].reshape(*outputs["x"].shape[:2], 1))


def data(*shape):
    rng = np.random.default_rng(0)
    arrays = {"weights": (4, 6), "x": (*shape, 4), "y": shape}
    weights, x, y = (jnp.asarray(rng.normal(size=each), jnp.float32) for each in arrays.values())
    return weights, {"x": x, "y": y}


@pytest.mark.parametrize(
    ("shape", "is_in_chunks"),
    [((3, 8), True), ((1, 40), True), ((5, 5), True), ((1, 17), False), ((1, 15), False)],
)
def test_values_and_gradients_are_those_of_all_rows_at_once(in_chunks, shape, is_in_chunks):
    weights, rows = data(*shape)
    assert ("scan" in str(jax.make_jaxpr(jax.grad(loss))(weights, rows))) == is_in_chunks
    value, grad = jax.jit(jax.value_and_grad(loss))(weights, rows)
    expected, expected_grad = at_once(jax.value_and_grad(loss), weights, rows)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-5, atol=1e-6)


def test_learner_devices_take_their_own_rows_in_chunks(in_chunks):
    weights, rows = data(2, 1, 24)

    def on_device(weights, rows):
        rows = jax.tree.map(lambda leaf: leaf[0], rows)
        return jax.lax.pmean(jax.grad(loss)(weights, rows), LEARNER_AXIS)

    learners = LearnerDevices(jax.devices()[:2])
    mapped = map_over_learner_devices(on_device, learners, out_specs=REPLICATED)
    grad = mapped(learners.replicate(weights), learners.split(rows))
    expected = at_once(jax.grad(loss), weights, jax.tree.map(lambda x: x.reshape(1, 48, -1), rows))
    np.testing.assert_allclose(2 * np.asarray(grad), expected, rtol=1e-5, atol=1e-6)


def test_an_actor_critic_unrolls_its_rows_in_chunks(in_chunks):
    agent = PPO(PPOConfig(hidden_sizes=(8, 8)), make_run_spec())
    networks, stream = make_networks(agent), to_device(make_stream())
    last_action = jnp.zeros(stream.reward.shape, jnp.int32)

    def outputs(networks):
        return agent.unroll(networks, stream, last_action, ())[0]

    assert "scan" in str(jax.make_jaxpr(outputs)(networks))
    found, expected = jax.jit(outputs)(networks), at_once(outputs, networks)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.policy.logits, expected.policy.logits, rtol=1e-5, atol=1e-6)
