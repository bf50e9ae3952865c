"""Jumanji's environments; skipped if the extra is not installed."""

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError

pytest.importorskip("jumanji")

from jumanji import specs

from sebulba.envs.jumanji import _gymnasium_space

pytestmark = pytest.mark.usefixtures("lenient_jax")

CUBE = {"cube_size": 3, "num_scrambles_on_reset": 1}
MAZE = {"generator": {"num_rows": 5, "num_cols": 5}}


def make(name, *, num_envs=3, **options):
    config = EnvConfig(suite="jumanji", id=name, options=options)
    return make_environment(config, num_envs=num_envs, seed=1)


def first_legal(row):
    return np.argmax(row.action_mask, axis=-1).astype(np.int32)


def last_legal(row):
    num_actions = row.action_mask.shape[-1]
    return (num_actions - 1 - np.argmax(row.action_mask[:, ::-1], axis=-1)).astype(np.int32)


def cell(row, name):
    """Return row and column of the agent or of the target, `[B, 2]`."""
    return np.stack(
        [row.observation[f"{name}_position.{axis}"].argmax(axis=-1) for axis in ("row", "col")], -1
    )


def test_a_maze_ends_at_its_target_and_is_cut_at_the_time_limit():
    environment = make("Maze-v0", num_envs=32, **MAZE)
    rng = np.random.default_rng(0)
    row = environment.reset()
    steps = np.zeros(32, int)
    ends = []
    for _ in range(60):
        legal = np.array([rng.choice(np.flatnonzero(mask)) for mask in row.action_mask])
        was_done = row.done
        row = environment.step(legal.astype(np.int32))
        steps = np.where(was_done, 0, steps + 1)
        arrived = (cell(row, "agent") == cell(row, "target")).all(axis=-1)
        np.testing.assert_array_equal(row.terminated, arrived & ~was_done & (row.reward == 1.0))
        np.testing.assert_array_equal(row.truncated, (steps == 25) & ~row.terminated)
        ends += [*steps[row.done]]
    assert 25 in ends and min(ends) < 25


def test_observations_are_one_hot_vectors_and_masks_are_apart():
    row = make("Maze-v0", **MAZE).reset()
    assert {name: leaf.shape for name, leaf in row.observation.items()} == {
        "agent_position.row": (3, 5),
        "agent_position.col": (3, 5),
        "target_position.row": (3, 5),
        "target_position.col": (3, 5),
        "walls": (3, 5, 5),
    }
    assert all(leaf.dtype == np.float32 for leaf in row.observation.values())
    moves = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
    for mask, position, walls in zip(
        row.action_mask, cell(row, "agent"), row.observation["walls"], strict=True
    ):
        for is_legal, (i, j) in zip(mask, position + moves, strict=True):
            is_inside = 0 <= i < 5 and 0 <= j < 5
            assert is_legal == (is_inside and not walls[i, j])


def test_actions_of_several_components_are_numbered_row_by_row():
    environment = make("RubiksCube-partly-scrambled-v0", generator=CUBE, max_episode_steps=4)
    assert environment.spec.action_space.n == 6 * 1 * 3
    assert environment.spec.native_action_space == MultiDiscrete([6, 1, 3], dtype=np.int32)
    solved = environment.reset().observation
    assert solved.shape == (3, 6, 3, 3, 6)
    turned = environment.step(np.full(3, 5, np.int32)).observation  # face 1, half turn
    again = environment.step(np.full(3, 5, np.int32)).observation
    assert (turned != solved).any()
    np.testing.assert_array_equal(again, solved)


def test_masks_of_components_become_one_of_their_combinations():
    environment = make("Cleaner-v0")  # three agents with a common reward
    row = environment.reset()
    for _ in range(5):
        joint = row.action_mask.reshape(3, 4, 4, 4)
        own = [joint.any(axis=axes) for axes in ((2, 3), (1, 3), (1, 2))]
        expected = own[0][:, :, None, None] & own[1][:, None, :, None] & own[2][:, None, None]
        np.testing.assert_array_equal(joint, expected)
        assert joint.any(axis=(1, 2, 3)).all() and not joint.all()
        row = environment.step(last_legal(row))
        assert not row.terminated.any()  # an illegal action would end the episode


def test_too_many_combinations_are_choices_of_their_own():
    environment = make("JobShop-v0")
    assert environment.spec.action_space == MultiDiscrete([21] * 10, dtype=np.int32)
    row = environment.reset()
    for _ in range(3):
        legal = row.action_mask.reshape(3, 10, 21)
        row = environment.step(legal.argmax(axis=-1).astype(np.int32))
        assert not row.terminated.any()  # an illegal action would end the episode


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FlatPack-v0", r"mask of 47 choices, or of at most 4096 .* got \(25, 4, 9, 9\)"),
        ("MultiCVRP-v0", r"mask of 44 choices, .* got \(2, 21\)"),  # of 0 to 21, as it declares
    ],
)
def test_a_mask_of_other_or_too_many_actions_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        make(name)


def test_numbers_with_bounds_are_spaces():
    integers = specs.BoundedArray((2,), np.int16, -1, 3)
    assert _gymnasium_space(integers) == Box(-1, 3, (2,), np.int16)
    assert _gymnasium_space(specs.BoundedArray((), np.float32, 0.0, 1.0)) == Box(0.0, 1.0, ())


def test_fused_stream_equals_the_stepped_one():
    stepped, fused = make("Maze-v0", **MAZE), make("Maze-v0", **MAZE)
    row = stepped.reset()
    fused.reset()
    traceable = fused.fused()
    state, step = traceable.state, jax.jit(traceable.step)
    for _ in range(30):
        action = first_legal(row)
        row = stepped.step(action)
        state, fused_row = step(state, action)
        jax.tree.map(np.testing.assert_array_equal, fused_row, row)


@pytest.mark.parametrize("name", ["Game2048-v1", "Tetris-v0", "Knapsack-v1", "Snake-v1"])
def test_other_environments_step(name):
    environment = make(name)
    row = environment.step(first_legal(environment.reset()))
    assert row.reward.dtype == np.float32 and not row.is_first.any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Maze-v1", {}, "Jumanji has no 'Maze-v1'; did you mean Maze-v0"),
        ("Maze-v0", {"time_limit": 10}, "use max_episode_steps"),
        ("Maze-v0", {"max_episode_steps": 0}, "expected an int of at least 1, got 0"),
        ("Maze-v0", {"generator": {"rows": 5}}, "env.options: Jumanji does not create 'Maze-v0'"),
        ("Maze-v0", {"size": 5}, "env.options: Jumanji does not create 'Maze-v0'"),
        ("LevelBasedForaging-v0", {}, r"expected one reward, got rewards of shape \(2,\)"),
    ],
)
def test_a_wrong_name_or_option_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)
