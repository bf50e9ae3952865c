"""Convolutions and max pooling with gradients of our own."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sebulba.toolkit.convolutions import Conv, convolve, max_pool
from tests.platforms import off_the_cpu

SHAPES = {  # images, kernel, stride, padding
    "shallow": ((2, 20, 20, 4), (8, 8, 4, 3), 4, "VALID"),
    "dqn": ((2, 9, 11, 3), (4, 4, 3, 5), 2, "VALID"),  # a row that no window reaches
    "deep": ((2, 7, 6, 3), (3, 3, 3, 4), 1, "SAME"),
    "even": ((3, 6, 5, 2), (4, 2, 2, 3), 2, "SAME"),
}


def plain(x, kernel, *, stride, padding):
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def operands(name, dtype=jnp.float32):
    x, kernel, stride, padding = SHAPES[name]
    generator = np.random.default_rng(0)
    x, kernel = (generator.normal(size=shape).astype(dtype) for shape in (x, kernel))
    return x, kernel, dict(stride=stride, padding=padding)


def gradients(function, *arguments):
    """Returns the gradients of a sum in which every output has a weight of its own."""

    def loss(*arguments):
        output = function(*arguments)
        weights = jnp.cos(jnp.arange(output.size, dtype=output.dtype)).reshape(output.shape)
        return (output * weights).sum()

    return jax.grad(loss, tuple(range(len(arguments))))(*arguments)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_a_plain_convolution(name):
    x, kernel, how = operands(name)
    own, expected = (
        jax.jit(functools.partial(gradients, functools.partial(each, **how)))(x, kernel)
        for each in (convolve, plain)
    )
    chex.assert_trees_all_close(own, expected, rtol=1e-5, atol=1e-5)


def test_gradients_in_a_scan_are_convolutions_in_the_order_of_the_kernels():
    x, kernel, how = operands("dqn")

    def body(kernel, x):
        return kernel - gradients(functools.partial(convolve, **how), x, kernel)[1], None

    text = jax.jit(lambda k, xs: lax.scan(body, k, xs)[0]).lower(kernel, x[None]).as_text()
    layouts = [
        line.split("dim_numbers = ")[1].split(", window")[0]
        for line in text.splitlines()
        if "stablehlo.convolution" in line
    ]
    assert layouts and set(layouts) == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}


def test_other_platforms_get_the_gradients_of_jax():
    x, kernel, how = operands("dqn")
    gradient = jax.jit(lambda x, k: gradients(functools.partial(convolve, **how), x, k))
    expected = jax.jit(lambda x, k: gradients(functools.partial(plain, **how), x, k))

    def layouts(function):
        text = function.trace(x, kernel).lower(lowering_platforms=("cuda",)).as_text()
        return sorted(
            line.split("dim_numbers")[1].split("window")[0]
            for line in text.splitlines()
            if "stablehlo.convolution" in line
        )

    assert set(layouts(gradient)) == set(layouts(expected))


def test_they_are_mapped_batched_and_run_without_jit():
    x, kernel, how = operands("deep")
    own = functools.partial(gradients, functools.partial(convolve, **how))

    def sharded(x, kernel):
        spec = jax.sharding.PartitionSpec("devices")
        return jax.shard_map(
            lambda x, kernel: own(x, kernel)[0],
            mesh=jax.sharding.Mesh(jax.devices()[:2], ("devices",)),
            in_specs=(spec, jax.sharding.PartitionSpec()),
            out_specs=spec,
            check_vma=False,
        )(x, kernel)

    @jax.jit
    def compute(x, kernel):
        alone = [own(part, kernel) for part in (x[:1], x[1:])]
        batched = jax.vmap(own, in_axes=(0, None))(x[:, None], kernel)
        return alone, batched, sharded(x, kernel)

    alone, batched, shards = compute(x, kernel)
    expected = jax.tree.map(lambda *parts: np.stack(parts), *alone)
    chex.assert_trees_all_close(batched, expected, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(shards[:, None], expected[0], rtol=1e-5, atol=1e-5)
    with jax.disable_jit():
        eager = own(x[:1], kernel)
    chex.assert_trees_all_close(eager, alone[0], rtol=1e-5, atol=1e-5)


def test_bfloat16_stays_bfloat16():
    x, kernel, how = operands("deep", jnp.bfloat16)
    own = jax.eval_shape(lambda *args: gradients(lambda *a: convolve(*a, **how), *args), x, kernel)
    assert [each.dtype for each in own] == [jnp.bfloat16] * 2


def test_parameters_are_those_of_flax():
    x = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)

    class Network(nn.Module):
        module: type[nn.Module]

        @nn.compact
        def __call__(self, x):
            return self.module(5, (4, 4), strides=2, padding="VALID")(self.module(4, (3, 3))(x))

    own, flax = Network(Conv), Network(nn.Conv)

    @jax.jit
    def compute(x):
        parameters = own.init(jax.random.key(0), x)
        of_flax = flax.init(jax.random.key(0), x)
        return (parameters, own.apply(parameters, x)), (of_flax, flax.apply(of_flax, x))

    chex.assert_trees_all_close(*compute(x), rtol=1e-5, atol=1e-6)


def test_pooling_and_its_gradient_are_those_of_flax():
    def flax(x):
        return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")

    @jax.jit
    def compute(images):
        return [[(pool(x), gradients(pool, x)) for x in images] for pool in (max_pool, flax)]

    # Few values, so that most windows have several maxima.
    generator = np.random.default_rng(0)
    sizes = ((6, 7), (5, 4), (1, 2))
    own, expected = compute(
        [generator.integers(0, 3, (2, *size, 3)).astype(np.float32) for size in sizes]
    )
    chex.assert_trees_all_close(own, expected, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_pooling_adds_no_windows_in_any_order(monkeypatch):
    off_the_cpu(monkeypatch)
    text = jax.jit(lambda x: gradients(max_pool, x)).lower(jnp.ones((2, 6, 7, 3))).as_text()
    assert "scatter" not in text
