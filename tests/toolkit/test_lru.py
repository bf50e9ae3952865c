"""The LRU equals its formula in NumPy; `test_core_conformance` has what every core does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit.lru import LRUCore, LRUState
from tests.compiled import jitted

T, B, F, SIZE = 7, 3, 5, 6


def made(core, seed=0):
    """Returns random parameters, inputs, resets and a state before row 0."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(T, B, F)).astype(np.float32)
    is_first = rng.random((T, B)) < 0.3
    state = LRUState(
        real=rng.normal(size=(B, SIZE)).astype(np.float32),
        imaginary=rng.normal(size=(B, SIZE)).astype(np.float32),
    )
    parameters = jitted(core.init)(jax.random.key(seed), inputs, is_first, state)
    parameters = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), parameters
    )
    return parameters, inputs, is_first, state


def in_numpy(parameters, inputs, is_first, state):
    """The block by equation 2 of the paper, with complex numbers, row by row."""
    p = jax.tree.map(np.asarray, parameters["params"])
    lambda_ = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["phase_log"]))
    b = p["input_kernel"][:, :SIZE] + 1j * p["input_kernel"][:, SIZE:]
    c = p["output_kernel"][:SIZE] - 1j * p["output_kernel"][SIZE:]
    x, outputs = state.real + 1j * state.imaginary, []
    for row, first in zip(inputs, is_first, strict=True):
        embedded = row @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]
        centred = embedded - embedded.mean(-1, keepdims=True)
        u = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-6)
        u = u * p["LayerNorm_0"]["scale"] + p["LayerNorm_0"]["bias"]
        x = np.where(first[:, None], 0.0, x) * lambda_ + np.exp(p["gamma_log"]) * (u @ b)
        y = np.asarray(jax.nn.gelu(((x @ c).real + p["skip"] * u).astype(np.float32)))
        values, gates = np.split(y @ p["Dense_1"]["kernel"] + p["Dense_1"]["bias"], 2, axis=-1)
        outputs.append(embedded + values / (1.0 + np.exp(-gates)))
    return np.stack(outputs), x


@pytest.mark.parametrize("unroll", ["auto", "rows", "associative"])
def test_the_lru_equals_its_formula_in_complex_numbers(unroll):
    core = LRUCore(SIZE, unroll=unroll)
    parameters, inputs, is_first, state = made(core)
    outputs, after = jitted(core.apply)(parameters, inputs, is_first, state)
    expected, last = in_numpy(parameters, inputs, is_first, state)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.real, last.real, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.imaginary, last.imag, rtol=1e-4, atol=1e-5)


def test_before_training_the_radii_and_angles_are_in_their_ranges_and_states_have_variance_1():
    core = LRUCore(400, r_min=0.8, r_max=0.95, max_phase=1.0)
    rows, is_first = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2), bool)
    p = jitted(core.init)(jax.random.key(0), rows, is_first, core.initial_state(2))["params"]
    radius, angle = np.exp(-np.exp(p["nu_log"])), np.exp(p["phase_log"])
    assert 0.8 <= radius.min() < 0.81 and 0.94 < radius.max() <= 0.95
    # Uniform on the ring: half of its area is beyond this radius.
    assert np.mean(radius > np.sqrt((0.8**2 + 0.95**2) / 2)) == pytest.approx(0.5, abs=0.06)
    assert 0.0 < angle.min() < 0.02 and 0.98 < angle.max() <= 1.0
    # White inputs of variance 1 through λ and γ.
    np.testing.assert_allclose(np.exp(2 * p["gamma_log"]) / (1 - radius**2), 1.0, rtol=1e-4)


@pytest.mark.parametrize("unroll", ["rows", "associative"])
def test_the_lru_has_a_finite_gradient_over_many_rows(unroll):
    core = LRUCore(SIZE, unroll=unroll)
    inputs = jnp.ones((300, B, F))
    arguments = inputs, jnp.zeros((300, B), bool), core.initial_state(B)
    parameters = jitted(core.init)(jax.random.key(0), *arguments)
    gradient = jax.jit(jax.grad(lambda p: jnp.sum(core.apply(p, *arguments)[0])))(parameters)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_radii_that_are_not_in_order_are_refused():
    with pytest.raises(ConfigError, match=r"agent\.core_options\.r_min: .* r_max 0\.5, got 0\.9"):
        LRUCore(4, r_min=0.9, r_max=0.5)
