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


def test_the_choices_of_8_bits_end_where_their_sum_would_overflow():
    space = Dict(
        {
            "many": Discrete(100, start=28, dtype=np.int8),
            "more": MultiDiscrete([100], start=[28], dtype=np.int8),
        }
    )
    assert spaces.observation_choices(space) == [(range(28, 128),)] * 2


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
