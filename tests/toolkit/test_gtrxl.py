"""GTrXL equals its formulas in NumPy; `test_core_conformance` has what every core does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit.gtrxl import GTrXLCore
from tests.compiled import jitted

T, F, SIZE, HEADS, MEMORY = 9, 5, 6, 2, 4


def made(core, num_rows=T, seed=0):
    """Returns random parameters and the rows of one environment."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 1, F)).astype(np.float32)
    is_first = np.zeros((num_rows, 1), bool)
    parameters = jitted(core.init)(jax.random.key(seed), inputs, is_first, core.initial_state(1))
    return (
        jax.tree.map(
            lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), parameters
        ),
        inputs,
        is_first,
    )


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def layer_norm(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-6) * p["scale"]
        + p["bias"]
    )


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gate(p, x, y):
    """Equations of section 3.2, with b_g of 2."""
    of_y, of_x = np.split(dense(p["Dense_0"], y), 3), np.split(x @ p["gate_kernel"], 2)
    r = sigmoid(of_y[0] + of_x[0])
    z = sigmoid(of_y[1] + of_x[1] - 2.0)
    h = np.tanh(of_y[2] + (r * x) @ p["candidate_kernel"])
    return (1.0 - z) * x + z * h


def sinusoid(distance):
    frequency = 10_000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    return np.concatenate([np.sin(distance * frequency), np.cos(distance * frequency)])


def attention(p, seen):
    """What the last of the rows `[n, size]`, which it may attend to, reads from them."""
    q = dense(p["Dense_0"], seen[-1]).reshape(HEADS, -1)
    read = []
    for head in range(HEADS):
        scores, values = [], []
        for age, row in enumerate(seen[::-1]):
            k, v, r = (
                dense(p[f"Dense_{i}"], each).reshape(HEADS, -1)[head]
                for i, each in ((1, row), (2, row), (3, sinusoid(age)))
            )
            u, w = p["content_bias"][head], p["position_bias"][head]
            scores.append(((q[head] + u) @ k + (q[head] + w) @ r) / np.sqrt(len(k)))
            values.append(v)
        weights = np.exp(scores) / np.sum(np.exp(scores))
        read.append(weights @ np.stack(values))
    return dense(p["Dense_4"], np.concatenate(read))


def in_numpy(parameters, inputs, layers):
    """Rows of one episode, each of which attends to the MEMORY rows before it."""
    p = jax.tree.map(np.asarray, parameters["params"])
    x = dense(p["Dense_0"], inputs)
    for number in range(layers):
        of, after = p[f"layer_{number}"], []
        for t in range(len(x)):
            seen = layer_norm(of["LayerNorm_0"], x[max(0, t - MEMORY) : t + 1])
            y = gate(of["attention_gate"], x[t], np.maximum(attention(of["attention"], seen), 0.0))
            hidden = np.maximum(dense(of["Dense_0"], layer_norm(of["LayerNorm_1"], y)), 0.0)
            after.append(gate(of["dense_gate"], y, np.maximum(dense(of["Dense_1"], hidden), 0.0)))
        x = np.stack(after)
    return x


@pytest.mark.parametrize("layers", [1, 2])
def test_gtrxl_equals_its_formulas(layers):
    core = GTrXLCore(SIZE, memory_length=MEMORY, heads=HEADS, layers=layers)
    parameters, inputs, is_first = made(core)
    outputs, _ = jitted(core.apply)(parameters, inputs, is_first, core.initial_state(1))
    expected = in_numpy(parameters, inputs[:, 0].astype(np.float64), layers)
    np.testing.assert_allclose(outputs[:, 0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("length", [1, MEMORY, 3 * MEMORY + 1])
def test_a_row_depends_on_as_many_rows_before_it_as_the_memory_has_and_on_no_other(length):
    core = GTrXLCore(SIZE, memory_length=MEMORY, heads=HEADS, layers=1)
    parameters, inputs, is_first = made(core, 4 * MEMORY)

    def outputs(inputs):
        """Returns those of unrolls of some length, one after the other."""
        state, parts = core.initial_state(1), []
        for start in range(0, len(inputs), length):
            rows = slice(start, start + length)
            part, state = jitted(core.apply)(parameters, inputs[rows], is_first[rows], state)
            parts.append(part)
        return np.concatenate(parts)[:, 0]

    changed = inputs.copy()
    changed[3] += 1.0
    differs = np.abs(outputs(changed) - outputs(inputs)).max(-1) > 1e-6
    assert np.flatnonzero(differs).tolist() == list(range(3, 3 + MEMORY + 1))


def test_memory_has_a_gradient_within_an_unroll():
    core = GTrXLCore(SIZE, memory_length=MEMORY, heads=HEADS, layers=1)
    parameters, inputs, is_first = made(core)

    def last(inputs):
        return jnp.sum(core.apply(parameters, inputs, is_first, core.initial_state(1))[0][-1])

    size = np.abs(jax.jit(jax.grad(last))(inputs)).max((1, 2))
    assert np.flatnonzero(size > 0).tolist() == list(range(T - 1 - MEMORY, T))


def test_the_state_counts_the_rows_of_the_running_episode_and_has_no_row_of_another():
    core = GTrXLCore(SIZE, memory_length=MEMORY, heads=HEADS, layers=2)
    parameters, inputs, is_first = made(core)
    for first, expected in ((T - 1, 1), (T - 3, 3), (0, MEMORY)):
        starts = is_first.copy()
        starts[first] = True
        _, state = jitted(core.apply)(parameters, inputs, starts, core.initial_state(1))
        assert state.num_rows.tolist() == [expected]
        is_row = np.any(np.asarray(state.rows[0]) != 0.0, axis=-1)
        assert is_row.tolist() == [[False] * (MEMORY - expected) + [True] * expected] * 2


def test_before_training_a_layer_is_nearly_the_identity():
    core = GTrXLCore(64, memory_length=MEMORY, layers=1)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(T, 2, 64)).astype(np.float32)
    arguments = inputs, np.zeros((T, 2), bool), core.initial_state(2)
    parameters = jitted(core.init)(jax.random.key(0), *arguments)
    outputs, _ = jitted(core.apply)(parameters, *arguments)
    embedded = dense(jax.tree.map(np.asarray, parameters["params"]["Dense_0"]), inputs)
    correlation = np.corrcoef(np.ravel(embedded), np.ravel(outputs))[0, 1]
    assert correlation > 0.9


def test_heads_that_do_not_divide_the_size_are_refused():
    message = r"agent\.core_options\.heads: .* divisor of agent\.lstm_size 6, got 4"
    with pytest.raises(ConfigError, match=message):
        GTrXLCore(6)
