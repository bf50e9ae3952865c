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
    keys = jax.random.split(jax.random.key(0), 2)
    x, kernel = (
        jax.random.normal(key, shape, dtype) for key, shape in zip(keys, (x, kernel), strict=True)
    )
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
    expected = own(x, kernel)
    many = jax.vmap(own, in_axes=(0, None))(jnp.stack([x, x]), kernel)
    twice = jax.tree.map(lambda g: jnp.stack([g, g]), expected)
    chex.assert_trees_all_close(many, twice, rtol=1e-5, atol=1e-5)
    with jax.disable_jit():
        chex.assert_trees_all_close(own(x, kernel), expected, rtol=1e-5, atol=1e-5)
    mesh = jax.make_mesh((2,), ("devices",))
    spec = jax.sharding.PartitionSpec("devices")
    mapped = jax.shard_map(
        lambda x, kernel: own(x, kernel)[0],
        mesh=mesh,
        check_vma=False,
        in_specs=(spec, jax.sharding.PartitionSpec()),
        out_specs=spec,
    )
    weights_of_both = jnp.concatenate([own(x[:1], kernel)[0], own(x[1:], kernel)[0]])
    chex.assert_trees_all_close(jax.jit(mapped)(x, kernel), weights_of_both, rtol=1e-5, atol=1e-5)


def test_bfloat16_stays_bfloat16():
    x, kernel, how = operands("deep", jnp.bfloat16)
    own, expected = (gradients(functools.partial(f, **how), x, kernel) for f in (convolve, plain))
    assert [each.dtype for each in own] == [jnp.bfloat16] * 2
    chex.assert_trees_all_close(own, expected, rtol=0.05, atol=0.05)


def test_parameters_are_those_of_flax():
    x = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))

    class Network(nn.Module):
        module: type[nn.Module]

        @nn.compact
        def __call__(self, x):
            return self.module(5, (4, 4), strides=2, padding="VALID")(self.module(4, (3, 3))(x))

    own, flax = Network(Conv), Network(nn.Conv)
    parameters = own.init(jax.random.key(0), x)
    chex.assert_trees_all_equal(parameters, flax.init(jax.random.key(0), x))
    chex.assert_trees_all_close(
        own.apply(parameters, x), flax.apply(parameters, x), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("size", [(6, 7), (5, 4), (1, 2)])
def test_pooling_and_its_gradient_are_those_of_flax(size):
    # Few values, so that most windows have several maxima.
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, *size, 3)), jnp.float32)

    def flax(x):
        return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")

    chex.assert_trees_all_equal(max_pool(x), flax(x))
    chex.assert_trees_all_close(gradients(max_pool, x), gradients(flax, x), rtol=1e-6, atol=1e-6)
