"""Dense layers, LayerNorm and sums: values, gradients, and what is compiled on a CPU."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import optax
import pytest

from sebulba.toolkit.dense import Dense, LayerNorm
from sebulba.toolkit.optimizers import clipped_adam, descend
from sebulba.toolkit.sums import global_norm, mean_of_row, sum_of_rows
from tests.compiled import jitted
from tests.platforms import off_the_cpu

SHAPES = [(1, 1), (5, 3), (33, 256), (2, 7, 16), (2, 3, 4, 5), (4_096, 3)]
LAYERS = {
    "dense": (Dense(6), nn.Dense(6)),
    "layer_norm": (LayerNorm(), nn.LayerNorm(use_fast_variance=False)),
}
OPTIMIZERS = (
    clipped_adam(epsilon=1.0, max_grad_norm=0.5),
    optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1.0, eps=1.0)),
)


def numbers(shape, dtype=np.float32):
    return np.random.default_rng(0).normal(2.0, 3.0, size=shape).astype(dtype)


@functools.partial(jax.jit, static_argnums=0)
def gradients(layer, params, x):
    """Returns the gradients of a sum in which every output has a weight of its own."""

    def loss(params, x):
        output = layer.apply(params, x)
        weights = jnp.cos(jnp.arange(output.size, dtype=output.dtype)).reshape(output.shape)
        return jnp.mean(output * weights)

    return jax.grad(loss, (0, 1))(params, x)


def of_float64(function, params, x):
    """Returns `function(params, x)` in double precision."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        params, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (params, x))
        return jax.tree.map(np.asarray, function(params, x))


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_double_precision(shape, monkeypatch):
    x = numbers(shape)
    rows = x.reshape(-1, shape[-1]).astype(np.float64)
    sizes = np.abs(rows)
    np.testing.assert_allclose(
        jax.jit(sum_of_rows)(x), rows.sum(0), atol=1e-6 * sizes.sum(0).max(), rtol=0
    )
    expected = rows.mean(-1).reshape(*shape[:-1], 1)
    np.testing.assert_allclose(jax.jit(mean_of_row)(x), expected, atol=1e-6 * sizes.max(), rtol=0)
    expected = np.sqrt((rows**2).sum() + (x[0].astype(np.float64) ** 2).sum())
    np.testing.assert_allclose(jax.jit(global_norm)({"x": x, "y": x[0]}), expected, rtol=1e-6)
    off_the_cpu(monkeypatch)
    elsewhere = jax.jit(lambda x: global_norm({"x": x, "y": x[0]}))
    np.testing.assert_allclose(elsewhere(x), expected, rtol=1e-6)
    assert elsewhere.lower(x).as_text().count("stablehlo.reduce") == 1


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_has_the_parameters_values_and_gradients_of_flax(layer, shape):
    own, plain = LAYERS[layer]
    x = numbers(shape)
    params = jitted(own.init)(jax.random.key(1), x)
    chex.assert_trees_all_equal(params, jitted(plain.init)(jax.random.key(1), x))
    params = jax.tree.map(lambda leaf: leaf + 0.5, params)
    exact = of_float64(jitted(plain.apply), params, x)
    errors = [np.abs(jitted(each.apply)(params, x) - exact).max() for each in (own, plain)]
    assert errors[0] < 2 * errors[1] + 1e-6
    expected = of_float64(functools.partial(gradients, plain), params, x)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    chex.assert_trees_all_close(
        gradients(own, params, x), expected, rtol=1e-6, atol=1e-6 * max(largest, 1.0)
    )


@pytest.mark.parametrize("layer", LAYERS)
@jax.numpy_dtype_promotion("standard")  # flax's LayerNorm needs it
def test_a_layer_computes_in_its_dtype(layer):
    features = {"features": 6} if layer == "dense" else {}
    own, plain = (type(each)(**features, dtype=jnp.bfloat16) for each in LAYERS[layer])
    x = numbers((4, 8))
    params = jitted(own.init)(jax.random.key(1), x)
    chex.assert_trees_all_close(
        jitted(own.apply)(params, x), jitted(plain.apply)(params, x), rtol=0.02
    )
    (grads, _), (expected, _) = (gradients(each, params, x) for each in (own, plain))
    chex.assert_trees_all_equal_dtypes(grads, expected)
    chex.assert_trees_all_close(grads, expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_can_be_mapped(layer):
    own, _ = LAYERS[layer]
    x = numbers((3, 4, 8))
    params = jitted(own.init)(jax.random.key(1), x[0])
    mapped = jax.vmap(lambda x: gradients(own, params, x))(x)
    each = [gradients(own, params, one) for one in x]
    chex.assert_trees_all_close(mapped, jax.tree.map(lambda *a: jnp.stack(a), *each), rtol=1e-5)


@pytest.mark.skipif(
    jaxlib.version.__version_info__ >= (0, 11), reason="sums are right and fast from jaxlib 0.11 on"
)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_gradient_sums_the_batch_one_number_after_the_other(layer):
    own, plain = LAYERS[layer]
    x = numbers((64, 32))
    params = jitted(own.init)(jax.random.key(1), x)

    def sums(layer):
        text = jax.jit(functools.partial(gradients, layer)).lower(params, x).as_text()
        return [line for line in text.splitlines() if "reduce(" in line and "add across" in line]

    assert sums(plain) and not sums(own)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_clipping_is_that_of_optax(scale):
    grads = {"w": scale * numbers((7, 3)), "b": scale * numbers(3)}
    params = jax.tree.map(jnp.zeros_like, grads)
    own, plain = OPTIMIZERS
    assert jax.tree.structure(own.init(params)) == jax.tree.structure(plain.init(params))
    step = jitted(descend, static_argnums=0)
    result, expected = (step(each, params, each.init(params), grads)[0] for each in OPTIMIZERS)
    chex.assert_trees_all_close(result, expected, rtol=1e-5)


def test_no_gradients_have_a_norm_of_zero():
    assert global_norm({}) == 0.0
    grads = {"w": jnp.zeros((2, 3))}
    optimizer = clipped_adam(epsilon=1e-5, max_grad_norm=0.5)
    result, _ = descend(optimizer, grads, optimizer.init(grads), grads)
    chex.assert_trees_all_equal(result, grads)
