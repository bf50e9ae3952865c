"""Derivatives of the toolkit's layers in every mode, and of the networks made of them."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from sebulba.toolkit.convolutions import convolve, max_pool
from sebulba.toolkit.dense import add_bias, layer_norm
from sebulba.toolkit.linear import linear_call
from sebulba.toolkit.lstm import LSTMCore
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import ObservationTorso


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def normalized(x, scale, bias):
    """Return what `nn.LayerNorm` computes, from plain operations."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6) * scale + bias


def convolved(x, kernel):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=layout)


def pooled(x):
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")


LAYERS = {  # the toolkit's, plain operations, and what they are called with
    "add_bias": (add_bias, lambda x, bias: x + bias, (normal(3, 4, 5), normal(5))),
    "layer_norm": (
        lambda *args: layer_norm(*args, 1e-6),
        normalized,
        (normal(3, 2, 5), normal(5, seed=1), normal(5, seed=2)),
    ),
    "convolve": (
        functools.partial(convolve, stride=2, padding="SAME"),
        convolved,
        (normal(2, 5, 6, 3), 0.2 * normal(3, 3, 3, 2)),
    ),
    "max_pool": (max_pool, pooled, (normal(2, 5, 6, 2),)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_of_first_and_second_order_are_finite_differences_in_every_mode(name):
    layer, _, operands = LAYERS[name]

    def total(*operands):
        result = layer(*operands)
        return jnp.sum(jnp.sin(result + jnp.square(result)))  # nothing of it is linear

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        check_grads(jax.jit(total), operands, order=2, modes=("fwd", "rev"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_are_those_of_plain_operations(name):
    own, plain, operands = LAYERS[name]
    directions = tuple(normal(*each.shape, seed=9) for each in operands)

    def products(layer):
        def gradient(*operands):
            def total(*operands):
                return jnp.sum(jnp.sin(layer(*operands)))

            return jax.grad(total, tuple(range(len(operands))))(*operands)

        def along(*operands):
            return sum(map(jnp.vdot, gradient(*operands), directions))

        def slope(*operands):
            def total(*operands):
                return jnp.sum(jnp.sin(layer(*operands)))

            return jax.jvp(total, operands, directions)[1]

        every = tuple(range(len(operands)))
        return {
            "forward over reverse": jax.jvp(gradient, operands, directions)[1],
            "reverse over forward": jax.grad(slope, every)(*operands),
            "reverse over reverse": jax.grad(along, every)(*operands),
        }

    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        got, expected = (jax.jit(lambda f=f: products(f))() for f in (own, plain))
        for mode, product in got.items():
            chex.assert_trees_all_close(product, expected[mode], rtol=1e-9, atol=1e-9)
            chex.assert_trees_all_close(product, got["forward over reverse"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LAYERS)
def test_jvps_are_mapped_scanned_sharded_and_computed_again(name):
    layer, _, operands = LAYERS[name]
    operands = tuple(each.astype(np.float32) for each in operands)
    tangents = tuple(each + np.float32(1.0) for each in operands)
    spec = jax.sharding.PartitionSpec("devices")

    def hvp(x, tangent):
        def gradient(x):
            return jax.grad(lambda x: jnp.sum(jnp.sin(layer(x, *operands[1:]))))(x)

        return jax.jvp(gradient, (x,), (tangent,))[1]

    def scanned(x, tangent):
        def total(x):
            def step(total, row):
                return total + jnp.sum(jnp.sin(layer(row[None], *operands[1:]))), None

            step = jax.checkpoint(step)
            return jax.lax.scan(step, jnp.zeros(()), x)[0]

        return jax.jvp(jax.grad(total), (x,), (tangent,))[1]

    @functools.partial(jax.jit, donate_argnums=(0,))
    def compute(x, tangent):
        mapped = jax.vmap(lambda x, t: hvp(x[None], t[None])[0])(x, tangent)
        one_way = jax.vmap(hvp, in_axes=(None, 0))(x, jnp.stack([tangent, tangent]))[1]
        sharded = jax.shard_map(
            hvp,
            mesh=jax.sharding.Mesh(jax.devices()[: len(x)], ("devices",)),
            in_specs=(spec, spec),
            out_specs=spec,
            check_vma=False,
        )(x, tangent)
        return mapped, one_way, scanned(x, tangent), sharded

    expected = jax.jit(hvp)(operands[0], tangents[0])
    for got in compute(jnp.array(operands[0]), tangents[0]):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_a_function_and_its_transpose_may_be_of_any_trees():
    def scale(factor, operands):
        return {"sum": factor * operands[0] + operands[1]}

    def transpose(factor, cotangents):
        return factor * cotangents["sum"], cotangents["sum"]

    def cube(x):
        return linear_call(scale, transpose, x * x, (x, jnp.zeros(())))["sum"]

    x = jnp.float32(3.0)
    assert [cube(x), jax.grad(cube)(x), jax.hessian(cube)(x)] == [27.0, 27.0, 18.0]
    assert jax.jacfwd(jax.jacfwd(cube))(x) == 18.0
    assert jax.jacrev(jax.jacrev(cube))(x) == 18.0


IMAGE = (40, 40, 2)
NETWORKS = {"mlp": (6,), "relu_mlp": (6,), "small": (8, 8, 2), "deep": (6, 6, 2)}
NETWORKS |= {"shallow": IMAGE, "dqn": IMAGE}
SLOW = ("deep", "shallow", "dqn")  # to compile


@pytest.mark.parametrize(
    "network",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NETWORKS],
)
def test_hessian_vector_products_of_a_torso_are_those_of_either_order(network):
    torso = ObservationTorso(TorsoSettings(network, (8, 8)))
    observation = jnp.asarray(normal(2, *NETWORKS[network]), jnp.float32)
    check_products(lambda params: torso.apply(params, observation), torso.init, observation)


def test_hessian_vector_products_of_an_lstm_are_those_of_either_order():
    core, inputs = LSTMCore(5), jnp.asarray(normal(4, 2, 3), jnp.float32)
    is_first, state = jnp.zeros((4, 2), bool).at[2, 0].set(True), core.initial_state(2)
    check_products(
        lambda params: core.apply(params, inputs, is_first, state)[0],
        core.init,
        *(inputs, is_first, state),
    )


def check_products(apply, init, *arguments):
    @jax.jit
    def compute():
        params = init(jax.random.key(0), *arguments)
        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        direction = structure.unflatten(
            [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
        )

        def loss(params):
            return jnp.sum(jnp.square(jnp.sin(apply(params))))

        def slope(params):
            return jax.jvp(loss, (params,), (direction,))[1]

        gradient, product = jax.jvp(jax.grad(loss), (params,), (direction,))
        along = sum(map(jnp.vdot, jax.tree.leaves(gradient), jax.tree.leaves(direction)))
        forward, other = jax.value_and_grad(slope)(params)
        return forward, along, product, other

    slope, along, product, other = compute()
    np.testing.assert_allclose(slope, along, rtol=1e-4, atol=1e-4)
    size = max(np.abs(leaf).max() for leaf in jax.tree.leaves(product))
    assert size > 0.0
    chex.assert_trees_all_close(product, other, rtol=1e-3, atol=1e-5 * size)
