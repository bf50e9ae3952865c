"""Actions in the units of the environment: the conversion, and all that users see of it."""

import math

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from sebulba.envs.actions import agent_action_space, flat_mask, num_choices, to_native
from sebulba.envs.spaces import environment_spec
from sebulba.errors import ConfigError
from sebulba.types import EnvironmentSpec
from tests.envs.units import CONTINUOUS, DISCRETE, SPACES, best_action, mask_of

OBSERVATION = Box(0, 1, (2,))
every_kind = pytest.mark.parametrize("kind", SPACES)
discrete_kinds = pytest.mark.parametrize("kind", DISCRETE)


def spec_of(space, **options):
    return environment_spec(OBSERVATION, space, **options)


def scaling(space):
    return to_native(spec_of(space))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Discrete(3, start=-1), Discrete(3, dtype=np.int32)),
        (MultiDiscrete([2, 3]), MultiDiscrete([2, 3], dtype=np.int32)),
        (MultiDiscrete([[2, 3], [4, 5]]), MultiDiscrete([2, 3, 4, 5], dtype=np.int32)),
        (MultiDiscrete([5], start=[2]), Discrete(5, dtype=np.int32)),
        (MultiBinary((2, 2)), MultiDiscrete([2, 2, 2, 2], dtype=np.int32)),
        (MultiBinary(1), Discrete(2, dtype=np.int32)),
        (
            Box(np.array([0, -1]), np.array([4, 1]), dtype=np.int16),
            MultiDiscrete([5, 3], dtype=np.int32),
        ),
        (Box(0, 255, (1,), np.uint8), Discrete(256, dtype=np.int32)),
        (Box(0, 1, (2,), np.bool_), MultiDiscrete([2, 2], dtype=np.int32)),
        (
            Dict(b=MultiBinary(2), a=Tuple([Discrete(3, start=1), MultiDiscrete([[4]])])),
            MultiDiscrete([2, 2, 3, 4], dtype=np.int32),
        ),
        (Dict(a=Discrete(3, start=1)), Discrete(3, dtype=np.int32)),
        (Box(-1e300, 1.0, (1,), np.float64), Box(-np.inf, 1.0, (1,), np.float32)),
        (Box(-2.0, 5.0, (3,), np.float64), Box(-1.0, 1.0, (3,), np.float32)),
        (Box(-2.0, 5.0, (2, 2)), Box(-1.0, 1.0, (4,), np.float32)),
        (Box(-2.0, 5.0, ()), Box(-1.0, 1.0, (1,), np.float32)),
        (
            Tuple([Box(0.0, 3.0, (1,)), Box(0.0, np.inf, (1,), np.float16)]),
            Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float32),
        ),
    ],
)
def test_agents_see_choices_from_0_on_and_vectors_of_32_bits(space, expected):
    got = agent_action_space(space)
    assert got == expected
    assert got.dtype == expected.dtype


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            Dict(move=Discrete(2), to=Box(-1, 1)),
            r"discrete action\.move and continuous action\.to.*DiscretizedBoxes",
        ),
        (Box(-np.inf, np.inf, (2,), np.int32), r"at most 65536 values of an integer Box.*bounds"),
        (Box(0, np.inf, (2,), np.int8), r"at most 65536 values of an integer Box.*bounds"),
        (Box(0, 2**20, (2,), np.int32), "at most 65536 values of an integer Box"),
        (Discrete(3, start=2**40), "expected actions of 32 bits"),
        (Tuple([Discrete(2), Text(3)]), r"got Text.* in action\[1\].*env\.wrappers"),
        (Sequence(Discrete(2)), r"got Sequence.*env\.wrappers"),
        (Dict(), r"without parts.*env\.wrappers"),
    ],
)
def test_actions_that_no_agent_can_have_are_refused_with_a_way_out(space, message):
    with pytest.raises(ConfigError, match=message):
        agent_action_space(space)


@every_kind
@pytest.mark.parametrize("combined", [False, True])
def test_every_action_of_an_agent_is_one_of_the_environment_in_jax_too(kind, combined):
    if combined and kind in CONTINUOUS:
        pytest.skip("has no combinations")
    space = SPACES[kind]
    spec = spec_of(space, combined=combined)
    convert = to_native(spec)
    spec.action_space.seed(0)
    actions = np.stack([spec.action_space.sample() for _ in range(200)])
    if kind in CONTINUOUS:
        actions[0], actions[1] = -3.0, 3.0  # outside
    native = convert(actions)
    for i in range(200):
        assert space.contains(jax.tree.map(lambda x, i=i: x[i], native))
    in_jax = jax.jit(convert)(actions)
    narrow = {"int64": "int32", "float64": "float32"}

    def check(x, y):
        assert str(y.dtype) == narrow.get(str(x.dtype), str(x.dtype))
        # XLA may fuse the product and the sum of a scaling.
        np.testing.assert_allclose(np.asarray(y), x, rtol=1e-5 if kind in CONTINUOUS else 0)

    jax.tree.map(check, native, in_jax)


@discrete_kinds
def test_every_action_of_the_environment_is_one_of_the_agent(kind):
    space = SPACES[kind]
    spec = spec_of(space, combined=True)
    num_actions = int(spec.action_space.n)
    native = to_native(spec)(np.arange(num_actions, dtype=np.int32))
    rows = np.concatenate([x.reshape(num_actions, -1) for x in jax.tree.leaves(native)], axis=1)
    assert len(np.unique(rows, axis=0)) == num_actions
    assert num_actions == math.prod(num_choices(agent_action_space(space)))


@discrete_kinds
def test_a_mask_has_the_order_of_the_choices(kind):
    space = SPACES[kind]
    spec = spec_of(space)
    for context in range(3):
        mask = flat_mask(space, mask_of(space, context))
        sizes = num_choices(spec.action_space)
        parts = np.split(mask, np.cumsum(sizes)[:-1])
        legal = np.array([part.argmax() for part in parts], np.int32)
        legal = legal[0] if spec.action_space.shape == () else legal
        got = jax.tree.map(lambda x: x[0], to_native(spec)(np.asarray(legal)[None]))
        jax.tree.map(np.testing.assert_array_equal, got, best_action(space, context))


def test_masks_may_have_the_nested_form_that_gymnasium_samples_with():
    space = Tuple([Discrete(2), MultiDiscrete([[2, 3]])])
    mask = (np.array([1, 0], np.int8), ((np.array([0, 1], np.int8), np.array([0, 0, 1], np.int8)),))
    assert space.sample(mask=mask)[1].tolist() == [[1, 2]]
    assert flat_mask(space, mask).tolist() == [1, 0, 0, 1, 0, 0, 1]
    with pytest.raises(ConfigError, match=r"as Tuple.* got a tuple of 1"):
        flat_mask(space, mask[:1])
    with pytest.raises(ConfigError, match=r"as Dict.* got a dict of b"):
        flat_mask(Dict(a=Discrete(2)), {"b": np.ones(2)})


def test_ordinary_actions_are_not_converted():
    action = np.array([0, 2], np.int32)
    assert to_native(spec_of(Discrete(3, dtype=np.int32)))(action) is action
    action = np.array([[0, 2]], np.int32)
    assert to_native(spec_of(MultiDiscrete([3, 3], dtype=np.int32)))(action) is action
    jaxpr = jax.make_jaxpr(to_native(spec_of(Discrete(3))))(np.array([0, 2], np.int32))
    assert not jaxpr.eqns


def test_an_adapter_that_converts_nothing_has_its_actions_unchanged():
    for space in (Discrete(3, start=1, dtype=np.int32), Box(-1.0, 1.0, (2,))):
        spec = EnvironmentSpec(observation=None, action_space=space)
        action = np.array([[1, -1], [1, 1]], space.dtype)[: 3 - len(space.shape), :2]
        action = action[:, 0] if space.shape == () else action
        np.testing.assert_array_equal(to_native(spec)(action), action)
    own = Box(-4.0, 4.0, (1,))
    spec = EnvironmentSpec(observation=None, action_space=own)
    np.testing.assert_array_equal(to_native(spec)(np.array([[3.0], [9.0]], np.float32)), [[3], [4]])


def test_scaling_maps_bounded_components_to_their_range():
    space = Box(np.array([-2.0, 0.0, -np.inf, 0.0]), np.array([2.0, 4.0, np.inf, np.inf]))
    scale = scaling(space)
    actions = np.array([[-1, -1, -7, 3], [0, 0, 0, 0], [0.5, 0.5, 8, 9], [1, 1, 1, 1]], np.float32)
    expected = np.array([[-2, 0, -7, 3], [0, 2, 0, 0], [1, 3, 8, 9], [2, 4, 1, 1]])
    scaled = scale(actions)
    assert isinstance(scaled, np.ndarray) and scaled.dtype == space.dtype
    np.testing.assert_array_equal(scaled, expected)
    np.testing.assert_array_equal(jax.jit(scale)(actions), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scaling_never_leaves_the_bounds(dtype):
    rng = np.random.default_rng(0)
    low = rng.normal(size=1000).astype(dtype)
    high = low + rng.random(1000).astype(dtype) + dtype(0.1)
    scale = scaling(Box(low, high, dtype=dtype))
    for end in (-1.0, 1.0):
        scaled = scale(np.full((1, 1000), end, np.float32))
        assert scaled.dtype == dtype
        assert (scaled >= low).all() and (scaled <= high).all()
        tolerance = 1e-3 if dtype == np.float16 else 1e-5
        np.testing.assert_allclose(
            scaled[0], low if end < 0 else high, rtol=tolerance, atol=tolerance
        )


def test_scaling_clips_to_the_bounds():
    space = Box(np.array([-2.0, 0.0, 0.0, -np.inf]), np.array([2.0, 4.0, np.inf, np.inf]))
    action = np.array([[-1.5, 7.0, -1.0, -9.0]], np.float32)
    np.testing.assert_array_equal(scaling(space)(action), [[-2.0, 4.0, 0.0, -9.0]])


def test_scaling_of_the_widest_box_is_finite():
    limit = np.finfo(np.float32).max
    scale = scaling(Box(-limit, limit, (1,), np.float32))
    np.testing.assert_array_equal(scale(np.array([[0.0], [1.0]], np.float32)), [[0.0], [limit]])
