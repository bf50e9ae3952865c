import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from sebulba.envs import spaces
from sebulba.errors import ConfigError


def test_observation_spec_is_a_pytree_of_32_bit_arrays():
    space = Dict(
        {
            "position": Box(-1.0, 1.0, (3,), np.float64),
            "cell": Discrete(4),
            "pair": Tuple([Box(0, 255, (8, 8), np.uint8), MultiBinary(2)]),
        }
    )
    assert spaces.observation_spec(space) == {
        "position": jax.ShapeDtypeStruct((3,), np.float32),
        "cell": jax.ShapeDtypeStruct((), np.int32),
        "pair": (jax.ShapeDtypeStruct((8, 8), np.uint8), jax.ShapeDtypeStruct((2,), np.int8)),
    }


def test_observation_spec_refuses_text():
    with pytest.raises(ConfigError, match=r"Text in observation\.mission.*env\.wrappers"):
        spaces.observation_spec(Dict({"mission": Text(10)}))


def test_the_choices_of_discrete_leaves_are_in_the_order_of_the_leaves():
    space = Dict(
        b=Tuple((Discrete(3, start=1), Box(0, 1, (2,)))), a=MultiDiscrete([2, 3]), c=MultiBinary(2)
    )
    spec = spaces.environment_spec(space, Discrete(2))
    shapes = [leaf.shape for leaf in jax.tree.leaves(spec.observation)]
    assert shapes == [(2,), (), (2,), (2,)]
    assert spec.choices == ((range(2), range(3)), (range(1, 4),), (), ())
    assert [leaf.shape for leaf in spec.observation_leaves] == shapes
    assert spaces.environment_spec(Box(0, 1, (2,)), Discrete(2)).choices is None


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Discrete(3, start=-1), Discrete(3, start=-1, dtype=np.int32)),
        (MultiDiscrete([2, 3]), MultiDiscrete([2, 3], dtype=np.int32)),
        (MultiBinary((2, 2)), MultiDiscrete([[2, 2], [2, 2]], dtype=np.int32)),
        (
            Box(np.array([0, -1]), np.array([4, 1]), dtype=np.int16),
            MultiDiscrete([5, 3], start=[0, -1], dtype=np.int32),
        ),
        (Box(-0.4, np.inf, (2,), np.float64), Box(np.float32(-0.4), np.inf, (2,), np.float32)),
        (Box(-1e300, 1.0, (1,), np.float64), Box(-np.inf, 1.0, (1,), np.float32)),
        (Box(-2.0, 5.0, (3,), np.float64), Box(-1.0, 1.0, (3,), np.float32)),
        (
            Box(np.array([0.0, 0.0]), np.array([3.0, np.inf])),
            Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float32),
        ),
    ],
)
def test_agent_action_space_is_32_bit_and_within_one_where_bounded(space, expected):
    got = spaces.agent_action_space(space)
    assert got == expected
    assert got.dtype == expected.dtype


def test_agent_action_space_refuses_dicts():
    with pytest.raises(ConfigError, match=r"Dict.*env\.wrappers"):
        spaces.agent_action_space(Dict({"a": Discrete(2)}))


def test_action_scaling_maps_bounded_components_to_their_range():
    space = Box(np.array([-2.0, 0.0, -np.inf, 0.0]), np.array([2.0, 4.0, np.inf, np.inf]))
    scale = spaces.action_scaling(space)
    actions = np.array([[-1, -1, -7, 3], [0, 0, 0, 0], [0.5, 0.5, 8, 9], [1, 1, 1, 1]], np.float32)
    expected = np.array([[-2, 0, -7, 3], [0, 2, 0, 0], [1, 3, 8, 9], [2, 4, 1, 1]], np.float32)
    scaled = scale(actions)
    assert isinstance(scaled, np.ndarray) and scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, expected)
    np.testing.assert_array_equal(jax.jit(scale)(actions), expected)


def test_action_scaling_never_leaves_the_bounds():
    rng = np.random.default_rng(0)
    low = rng.normal(size=1000).astype(np.float32)
    high = low + rng.random(1000).astype(np.float32) + np.float32(0.1)
    scale = spaces.action_scaling(Box(low, high))
    for end in (-1.0, 1.0):
        scaled = scale(np.full((1, 1000), end, np.float32))
        assert (scaled >= low).all() and (scaled <= high).all()
        np.testing.assert_allclose(scaled[0], low if end < 0 else high, rtol=1e-5, atol=1e-6)


def test_action_scaling_clips_to_the_bounds():
    space = Box(np.array([-2.0, 0.0, 0.0, -np.inf]), np.array([2.0, 4.0, np.inf, np.inf]))
    action = np.array([[-1.5, 7.0, -1.0, -9.0]], np.float32)
    np.testing.assert_array_equal(spaces.action_scaling(space)(action), [[-2.0, 4.0, 0.0, -9.0]])


def test_action_scaling_of_the_widest_box_is_finite():
    limit = np.finfo(np.float32).max
    scale = spaces.action_scaling(Box(-limit, limit, (1,), np.float32))
    np.testing.assert_array_equal(scale(np.array([[0.0], [1.0]], np.float32)), [[0.0], [limit]])


def test_action_scaling_does_not_change_discrete_actions():
    for space in (Discrete(3), Box(0, 4, (2,), np.int16)):
        action = np.array([0, 2], np.int32)
        assert spaces.action_scaling(space)(action) is action


SPACES = [
    (Discrete(3, start=-1, dtype=np.int32), [-1, 1], [[-2], [2]]),
    (MultiDiscrete([2, 3], start=[0, 5], dtype=np.int32), [[0, 5], [1, 7]], [[[0, 4]], [[2, 5]]]),
    (Box(-0.4, 0.4, (1,), np.float32), [[-0.5], [0.4]], [[[np.nan]], [[np.inf]]]),
    (Box(-np.inf, np.inf, (1,), np.float32), [[-1e30], [1e30]], [[[np.nan]], [[-np.inf]]]),
]


@pytest.mark.parametrize(("space", "good", "outside"), SPACES)
def test_check_action_accepts_valid_actions_only(space: gymnasium.Space, good: list, outside: list):
    good = np.array(good, space.dtype)
    spaces.check_action(good, space, 2)
    for bad in outside:
        bad = np.concatenate([good[:1], np.array(bad, space.dtype)])
        with pytest.raises(ValueError, match="for env 1"):
            spaces.check_action(bad, space, 2)


def test_check_action_names_the_expected_and_actual_structure():
    with pytest.raises(ValueError, match=r"int32\[2\].*got int64\[3\]"):
        spaces.check_action(np.zeros(3, np.int64), Discrete(2, dtype=np.int32), 2)
    with pytest.raises(ValueError, match="expected a NumPy action, got list"):
        spaces.check_action([0, 1], Discrete(2, dtype=np.int32), 2)
