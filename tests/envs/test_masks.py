"""Masks of EnvPool and Gymnasium environments, compared with what their observations say."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from benchmarks.illegal_actions import count_illegal
from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.masks import ActionMasks
from sebulba.errors import ConfigError
from tests.envs.cases import play

NUM_ENVS = 2


def make(name, *, suite="envpool", seed=1, **options):
    config = EnvConfig(suite=suite, id=name, options=options)
    return make_environment(config, num_envs=NUM_ENVS, seed=seed)


def play_legal(environment, *, num_steps, choose):
    """Return rows, stacked, and the actions that `choose` takes from each row's mask."""
    rows, actions = [environment.reset()], []
    for _ in range(num_steps):
        actions.append(np.stack([choose(mask) for mask in rows[-1].action_mask]).astype(np.int32))
        rows.append(environment.step(actions[-1]))
    environment.close()
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows), np.stack(actions)


def random_legal(rng):
    return lambda mask: rng.choice(np.flatnonzero(mask))


def test_a_mask_of_combinations_makes_the_action_one_discrete():
    environment = make("Minesweeper-v0")
    assert environment.spec.action_space == Discrete(100, dtype=np.int32)
    assert "action_mask" not in environment.spec.observation
    choose = random_legal(np.random.default_rng(0))
    rows, actions = play_legal(environment, num_steps=30, choose=choose)
    is_closed = (rows.observation["board"] == -1).reshape(31, NUM_ENVS, 100)
    np.testing.assert_array_equal(rows.action_mask, is_closed)
    chosen = np.take_along_axis(is_closed[1:], actions[..., None], axis=-1)[..., 0]
    assert not chosen[~rows.is_first[1:]].any()  # the cell with that number is open afterwards
    assert rows.is_first[1:].any()
    again = play(make("Minesweeper-v0"), actions, fused=True)
    jax.tree.map(np.testing.assert_array_equal, again, rows)


def test_a_mask_with_a_row_per_component_keeps_the_components():
    environment = make("Cleaner-v0")
    assert environment.spec.action_space == MultiDiscrete([4, 4, 4], dtype=np.int32)

    def choose(mask):
        return np.array([row.argmax() for row in mask.reshape(3, 4)])

    rows, _ = play_legal(environment, num_steps=20, choose=choose)
    grid = np.pad(rows.observation["grid"], ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=2)
    for row, env in np.ndindex(21, NUM_ENVS):
        for agent, (y, x) in enumerate(rows.observation["agents_locations"][row, env] + 1):
            around = [grid[row, env, y + i, x + j] for i, j in ((-1, 0), (0, 1), (1, 0), (0, -1))]
            mask = rows.action_mask[row, env].reshape(3, 4)[agent]
            np.testing.assert_array_equal(mask, np.array(around) != 2)


def test_envpool_masks_in_info_are_those_of_the_row():
    choose = random_legal(np.random.default_rng(0))
    rows, _ = play_legal(make("Play2048-v1"), num_steps=200, choose=choose)
    assert rows.is_first[1:].any()
    boards = rows.observation.argmax(axis=-1)
    for board, mask, ended in zip(
        boards.reshape(-1, 4, 4),
        rows.action_mask.reshape(-1, 4),
        rows.terminated.ravel(),
        strict=True,
    ):
        moved = [_can_move_left(np.rot90(board, turns)) for turns in range(4)]  # left, up, right …
        assert ended or mask.tolist() == moved


def _can_move_left(board):
    left, right = board[:, :-1], board[:, 1:]
    return bool(((right > 0) & ((left == 0) | (left == right))).any())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_taxi_has_the_mask_of_its_info(mode):
    name = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
    choose = random_legal(np.random.default_rng(0))
    environment = make(name, suite="gymnasium", vectorization_mode=mode, max_episode_steps=20)
    rows, _ = play_legal(environment, num_steps=50, choose=choose)
    assert rows.is_first[1:].any()
    mask_of = gymnasium.make(name).unwrapped.action_mask
    expected = [[mask_of(int(state)) for state in states] for states in rows.observation]
    np.testing.assert_array_equal(rows.action_mask, np.array(expected, bool))


def test_masks_in_info_that_no_wrapper_uses_are_refused():
    environment = make("tests.envs.masked:Masked-v0", suite="gymnasium")
    with pytest.raises(ConfigError, match=r"Set env.wrappers: \[.*:MaskFromInfo\]"):
        environment.reset()


@pytest.mark.parametrize(
    ("action", "mask", "expected"),
    [
        (
            Discrete(3),
            (4,),
            r"expected an action mask of shape \(3,\) or \(3,\) for .*, got \(4,\)",
        ),
        (MultiDiscrete([2, 3]), (3, 2), r"shape \(5,\) or \(2, 3\) for .*, got \(3, 2\)"),
        (Box(-1.0, 1.0, (2,)), (2,), "expected Discrete actions or a vector of MultiDiscrete"),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(action, mask, expected):
    observation = gymnasium.spaces.Dict({"x": Box(0, 1), "action_mask": MultiBinary(mask)})
    with pytest.raises(ConfigError, match=expected):
        ActionMasks(observation, action)


def test_training_takes_no_illegal_action():
    counted = count_illegal(suite="envpool", name="Snake-v1", num_env_steps=500, agent="a2c")
    assert counted.actions >= 500
    assert 0.0 < counted.share_forbidden < 1.0
    assert counted.illegal == 0
