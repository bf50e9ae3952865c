"""Torsos: which observations they accept, and what they compute of them."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import ObservationTorso, as_channels_last, check_network


@pytest.mark.parametrize(
    ("network", "shapes", "message"),
    [
        ("shallow", [(4,)], r"agent.network: shallow expects an image.* got .*\(4,\)"),
        ("deep", [(4,), (2,)], r"got observations of \(4,\) and \(2,\)"),
        ("shallow", [(4, 10, 10)], r"at least 20×20, got \(4, 10, 10\)"),
        ("shallow", [(10, 30, 4)], r"at least 20×20, got \(10, 30, 4\)"),
        ("dqn", [(4, 84, 84), (4, 35, 84)], r"at least 36×36, got \(4, 35, 84\)"),
    ],
)
def test_a_network_that_cannot_take_the_observation_is_refused(network, shapes, message):
    observation = [jax.ShapeDtypeStruct(shape, jnp.uint8) for shape in shapes]
    with pytest.raises(ConfigError, match=message):
        check_network(TorsoSettings(network, (8,)), observation)


def test_an_image_of_choices_is_none_for_convolutions():
    observation = jax.ShapeDtypeStruct((7, 7, 3), jnp.int32)
    choices = ((range(4),) * 7 * 7 * 3,)
    with pytest.raises(ConfigError, match=r"small expects an image.* got .*\(588,\)"):
        check_network(TorsoSettings("small", (8,), choices=choices), observation)


def test_networks_that_fit_are_accepted():
    image = jax.ShapeDtypeStruct((4, 84, 84), jnp.uint8)
    for network in ("small", "shallow", "dqn", "deep", "mlp", "relu_mlp", "flat"):
        check_network(TorsoSettings(network, (8,)), image)
        parts = {"image": image, "vector": jax.ShapeDtypeStruct((2,), jnp.float32)}
        check_network(TorsoSettings(network, (8,)), parts)
    check_network(
        TorsoSettings("mlp", (8,)), {"a": image, "b": jax.ShapeDtypeStruct((), jnp.int32)}
    )


def features_of(network, observation):
    features, params = jitted_features(network)(observation)
    return features, params.get("params", {})


@functools.cache
def jitted_features(network):
    torso = ObservationTorso(TorsoSettings(network, (8,)))

    def features_of(observation):
        params = torso.init(jax.random.key(0), observation)
        return torso.apply(params, observation), params

    return jax.jit(features_of)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 84, 84), 0),
        ((84, 84, 4), -1),
        ((3, 210, 160), 0),
        ((210, 160, 3), -1),
        ((10, 10, 10), -1),  # MinAtar Seaquest
        ((6, 7, 2), -1),  # Connect Four
        ((4, 4, 31), -1),  # 2048
        ((4, 3, 194), -1),  # animal shogi
        ((8, 8, 119), -1),  # chess
        ((119, 8, 8), 0),
    ],
)
def test_the_axis_whose_absence_leaves_the_squarer_image_has_the_channels(shape, axis):
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (got,) = as_channels_last(jnp.asarray(image)[None])
    np.testing.assert_array_equal(got, np.moveaxis(image, axis, -1))


def test_channels_first_and_last_give_the_same_features():
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 10, 12)).astype(np.uint8)
    expected, params = features_of("small", image)
    got, others = features_of("small", np.moveaxis(image, 1, -1))
    assert params["small"]["Conv_0"]["kernel"].shape == (3, 3, 3, 16)
    chex.assert_trees_all_equal(params, others)
    np.testing.assert_array_equal(got, expected)


def test_each_image_has_its_convolutions_and_the_other_leaves_one_mlp():
    rng = np.random.default_rng(0)
    images = [rng.random((2, 10, 10, 4), np.float32) for _ in range(2)]
    vector, number = np.ones((2, 3), np.float32), np.ones((2,), np.int32)
    observation = {"cameras": tuple(images), "joints": vector, "level": number}
    features, params = features_of("small", observation)
    assert features.shape == (2, 128 + 128 + 8)
    assert params.keys() == {"small", "small_1", "mlp"}
    assert params["mlp"]["Dense_0"]["kernel"].shape == (3 + 1, 8)
    for i in range(2):
        changed = [image + np.float32(1.0) if i == j else image for j, image in enumerate(images)]
        other, _ = features_of("small", observation | {"cameras": tuple(changed)})
        assert (other != features).any()


def test_the_layers_of_an_mlp_are_tanh_or_relu():
    observation = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    for network, activation in (("mlp", np.tanh), ("relu_mlp", lambda x: np.maximum(x, 0))):
        features, params = features_of(network, observation)
        layer = params["mlp"]["Dense_0"]
        expected = activation(observation @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
        np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)


def test_flat_is_every_leaf_as_it_is():
    observation = (jnp.full((2, 1, 2), 255, jnp.uint8), jnp.array([3, 4], jnp.int32))
    features, params = features_of("flat", observation)
    np.testing.assert_array_equal(features, [[1, 1, 3], [1, 1, 4]])
    assert params == {}


@pytest.mark.parametrize("network", ["mlp", "small"])
def test_layers_in_bfloat16_have_parameters_and_features_of_float32(network):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (2, 10, 10, 4), np.uint8)
    observation = {"image": image, "vector": rng.normal(size=(2, 3)).astype(np.float32)}
    torsos = [
        ObservationTorso(TorsoSettings(network, (8,), dtype)) for dtype in ("float32", "bfloat16")
    ]
    params, others = (jax.jit(torso.init)(jax.random.key(0), observation) for torso in torsos)
    chex.assert_trees_all_equal(params, others)
    full, half = (jax.jit(torso.apply)(params, observation) for torso in torsos)
    assert full.dtype == half.dtype == jnp.float32
    error = np.linalg.norm(half - full) / np.linalg.norm(full)
    assert 1e-4 < error < 0.03
    total = jax.grad(lambda params: jnp.sum(torsos[1].apply(params, observation)))
    grads = jax.eval_shape(total, params)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))


def test_numbers_of_a_discrete_space_are_one_hot_for_every_network_but_the_users():
    choices = ((range(2, 5),), (range(2), range(3)), ())
    observation = (jnp.array([4, 2]), jnp.array([[1, 0], [0, 2]]), jnp.ones((2, 1)))
    features = ObservationTorso(TorsoSettings("flat", (), choices=choices)).apply({}, observation)
    expected = [[0, 0, 1, 0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 0, 0, 1, 1]]
    np.testing.assert_array_equal(features, np.array(expected, np.float32))
    many = ((range(5000),),)
    raw = ObservationTorso(TorsoSettings("flat", (), choices=many)).apply({}, jnp.array([4321]))
    np.testing.assert_array_equal(raw, [[4321.0]])


@pytest.mark.parametrize(("dtype", "start", "number"), [("int8", -100, 99), ("uint8", 0, 3)])
def test_numbers_of_8_bits_are_one_hot_vectors_of_more_than_a_byte(dtype, start, number):
    choices = ((range(start, start + 300),),)
    torso = ObservationTorso(TorsoSettings("flat", (), choices=choices))
    features = torso.apply({}, jnp.asarray([number], dtype))
    np.testing.assert_array_equal(np.flatnonzero(features), [number - start])
