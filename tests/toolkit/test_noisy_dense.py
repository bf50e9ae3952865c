"""Noisy layers: what they compute with and without a key, and the distribution of the noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit.noisy_dense import STREAM, NoisyDense

ROWS, INPUTS, OUTPUTS = 4, 3, 5
LAYER = NoisyDense(features=OUTPUTS, initial_sigma=0.5)
X = np.random.default_rng(0).normal(size=(ROWS, INPUTS)).astype(np.float32)


@functools.cache
def initial_params():
    params = jax.jit(LAYER.init)(jax.random.key(0), jnp.zeros((1, INPUTS)))["params"]
    return jax.tree.map(np.asarray, params)


@jax.jit
def apply(params, x, key=None):
    return LAYER.apply({"params": params}, x, rngs=None if key is None else {STREAM: key})


def noise_of(key, rows=ROWS):
    """Return ε `[rows, inputs, outputs]` of the weights and `[rows, outputs]` of the bias.

    A σ of 1 in one place, 0 elsewhere and a mean of 0 let that place's noise through.
    """
    zero = jax.tree.map(jnp.zeros_like, initial_params())
    ones = jnp.ones((rows, INPUTS))
    of_bias = apply(zero | {"bias_sigma": jnp.ones(OUTPUTS)}, ones, key)
    of_kernel = [
        apply(zero | {"kernel_sigma": jnp.zeros((INPUTS, OUTPUTS)).at[i].set(1.0)}, ones, key)
        for i in range(INPUTS)
    ]
    return np.stack(of_kernel, axis=1), np.asarray(of_bias)


def test_without_a_key_the_layer_is_dense_with_the_means():
    expected = X @ initial_params()["kernel"] + initial_params()["bias"]
    np.testing.assert_allclose(apply(initial_params(), X), expected, rtol=1e-5)


def test_with_a_key_each_row_has_weights_of_its_own():
    key = jax.random.key(1)
    of_kernel, of_bias = noise_of(key)
    got = apply(initial_params(), X, key)
    for row in range(ROWS):
        kernel = initial_params()["kernel"] + initial_params()["kernel_sigma"] * of_kernel[row]
        bias = initial_params()["bias"] + initial_params()["bias_sigma"] * of_bias[row]
        expected = sum(X[row, i] * kernel[i] for i in range(INPUTS)) + bias
        np.testing.assert_allclose(got[row], expected, rtol=1e-4, atol=1e-5)
    assert len(np.unique(of_bias.round(5), axis=0)) == ROWS
    np.testing.assert_array_equal(got, apply(initial_params(), X, key))
    assert np.all(got != apply(initial_params(), X, jax.random.key(2)))


def test_the_noise_of_weights_is_a_product_of_an_inputs_and_an_outputs():
    of_kernel, of_bias = noise_of(jax.random.key(1))
    for row in range(ROWS):
        of_inputs = of_kernel[row] / of_bias[row]
        np.testing.assert_allclose(of_inputs, np.broadcast_to(of_inputs[:, :1], (3, 5)), rtol=1e-4)


def test_the_noise_has_the_moments_of_the_signed_root_of_a_normal():
    of_kernel, of_bias = noise_of(jax.random.key(3), rows=20_000)
    # E f(ε)² = E|ε| = √(2/π), and that of a product is 2/π.
    for each, variance in ((of_bias, np.sqrt(2 / np.pi)), (of_kernel, 2 / np.pi)):
        np.testing.assert_allclose(each.mean(axis=0), 0.0, atol=0.03)
        np.testing.assert_allclose(np.square(each).mean(axis=0), variance, atol=0.04)
    # |f(ε)| ≤ 1 just as |ε| is, in 68.27 % of draws.
    np.testing.assert_allclose(np.mean(np.abs(of_bias) <= 1.0), 0.6827, atol=0.005)


def test_initial_values_are_those_of_factorised_noise():
    layer = NoisyDense(features=400, initial_sigma=0.5)
    params = jax.jit(layer.init)(jax.random.key(0), jnp.zeros((1, 25)))["params"]
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(params[f"{name}_sigma"], 0.5 / 5, rtol=1e-6)
        assert np.max(np.abs(params[name])) <= 0.2
        np.testing.assert_allclose(np.std(params[name]), 0.2 / np.sqrt(3), rtol=0.1)
