"""Stacks rebuilt from single frames are those that the agent saw."""

import dataclasses
import functools

import envpool
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit import replay
from sebulba.toolkit.frame_stack import (
    last_row,
    newest_frame,
    older_frames,
    with_older_frames,
    with_single_frames,
    with_stacks,
)
from sebulba.toolkit.frame_stack import rebuild_stacks as rebuild
from sebulba.toolkit.replay import ReplaySpec
from sebulba.types import EnvStep, FrameStack, Trajectory
from tests.toys import toy_run_spec

STACK = FrameStack(size=3, axis=0)
rebuild_stacks = jax.jit(rebuild, static_argnums=2)


def _plain_stacks(frames, starts, fill, size=3):
    """Pushes frame by frame, as an environment does. One environment; row 0 begins an episode."""
    stacks, stack = [], None
    for frame, start in zip(frames, starts, strict=True):
        if start:
            stack = [frame if fill == "repeat" else 0] * (size - 1) + [frame]
        else:
            stack = [*stack[1:], frame]
        stacks.append(stack)
    return np.array(stacks)


@pytest.mark.parametrize("fill", ["repeat", "zeros"])
@pytest.mark.parametrize("first_row", range(2, 12))
def test_rebuild_stacks_equals_pushing_frame_by_frame(fill, first_row):
    frames = np.arange(1, 21, dtype=np.uint8)
    starts = np.isin(np.arange(20), [0, 4, 5, 11])
    seen = _plain_stacks(frames, starts, fill)
    window = slice(first_row - 2, first_row + 8)
    stack = FrameStack(size=3, axis=0, fill=fill)
    rebuilt = rebuild_stacks(frames[window, None], starts[window, None], stack)
    np.testing.assert_array_equal(rebuilt[:, 0], seen[first_row : first_row + 8])


def test_rebuild_stacks_ignores_context_before_a_start():
    frames = np.array([[99], [98], [1], [2]], np.uint8)
    starts = np.array([[False], [False], [True], [False]])
    rebuilt = rebuild_stacks(frames, starts, STACK)
    np.testing.assert_array_equal(rebuilt[:, 0], [[1, 1, 1], [1, 1, 2]])


def test_rebuild_stacks_puts_the_stack_on_its_axis():
    frames = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2)
    starts = np.arange(6)[:, None] == 0
    last = rebuild_stacks(frames, starts, FrameStack(size=3, axis=2))
    first = rebuild_stacks(frames, starts, STACK)
    assert last.shape == (4, 1, 2, 2, 3)
    np.testing.assert_array_equal(last, np.moveaxis(first, 2, -1))


def test_newest_frame_refuses_another_stack_size():
    with pytest.raises(AssertionError, match=r"equal to '3' on axis '2' but got '4'"):
        newest_frame(jnp.zeros((5, 2, 4, 84, 84), jnp.uint8), STACK)


@pytest.mark.parametrize("game", [pytest.param("Pong-v5", marks=pytest.mark.slow), "Breakout-v5"])
def test_replayed_stacks_are_the_observations_of_envpool(game):
    num_envs, length, stack = 2, 8, FrameStack(size=4, axis=0)
    spec = ReplaySpec(
        num_actors=1,
        num_envs=num_envs,
        trajectory_length=length,
        capacity=5 * length,
        sequence_length=2 * length,
        stride=length,
        num_context_rows=stack.num_context_rows,
    )
    env = envpool.make(game, env_type="gymnasium", num_envs=num_envs, max_episode_steps=11, seed=1)
    rng = np.random.default_rng(0)
    observation, _ = env.reset()
    seen, starts = [observation], [np.ones(num_envs, bool)]
    done = np.zeros(num_envs, bool)
    for _ in range(9 * length - 1):
        starts.append(done)
        observation, _, terminated, truncated, _ = env.step(rng.integers(0, 4, num_envs))
        done = terminated | truncated
        seen.append(observation)
    env.close()
    seen, starts = np.stack(seen), np.stack(starts)

    row = (jax.ShapeDtypeStruct((84, 84), jnp.uint8), jax.ShapeDtypeStruct((), bool))
    state = jax.jit(lambda: replay.init(spec, row, ()))()
    add = jax.jit(functools.partial(replay.add, spec))
    for begin in range(0, 9 * length, length):
        rows = seen[begin : begin + length], starts[begin : begin + length]
        rows = newest_frame(rows[0], stack), rows[1]
        state = add(state, rows, (), np.int32(0))
    drawn = jax.jit(replay.sample, static_argnums=(0, 3))(spec, state, jax.random.key(0), 16)
    rebuilt = np.asarray(rebuild_stacks(*drawn.sequences.rows, stack))
    assert len(set(drawn.ids.start.tolist())) == 2
    for b, (stream, start) in enumerate(
        zip(*map(np.asarray, (drawn.ids.stream, drawn.ids.start)), strict=True)
    ):
        lived = seen[start : start + 2 * length + 1, stream]
        np.testing.assert_array_equal(rebuilt[:, b], lived)


def stacked_rows(frames, starts, *, axis, fill, lives):
    """Return rows `[R, 1]` over frames `[R, 2, 2]` as an environment shows them."""
    shown, stack = [], None
    for frame, start in zip(frames, starts, strict=True):
        if start:
            older = frame if fill == "repeat" else np.zeros_like(frame)
            stack = [older, older, frame]
        else:
            stack = [*stack[1:], frame]
        shown.append(np.concatenate(stack, axis=axis))
    num_rows = len(frames)
    flags = np.zeros((num_rows, 1), bool)
    # With lives, each row is a reset, whether its stack is new or not.
    return EnvStep(
        observation=np.stack(shown)[:, None],
        reward=np.zeros((num_rows, 1), np.float32),
        terminated=flags,
        truncated=flags,
        is_first=~flags if lives else np.array(starts)[:, None],
        episode_over=flags if lives else None,
    )


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("fill", ["repeat", "zeros"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_])
def test_rows_with_single_frames_give_their_stacks_again_bit_for_bit(axis, fill, lives, dtype):
    stack = FrameStack(size=3, axis=axis, fill=fill)
    rng = np.random.default_rng(0)
    # Few values, so that stacks look new that are not; -0.0 is another number than 0.0.
    values = np.array([0.0, 1.0] if dtype != np.float32 else [0.0, -0.0, 1.0], dtype)
    frames = values[rng.integers(0, len(values), (60, 2, 2))]
    frames[rng.random(60) < 0.6] = values[1 if dtype == np.float32 else 0]
    starts = rng.random(60) < 0.2
    starts[0] = True
    rows = stacked_rows(frames, starts, axis=axis, fill=fill, lives=lives)
    single = jax.jit(with_single_frames, static_argnums=1)(rows, stack)
    assert single.observation.newest.size == rows.observation.size // 3
    for first, last in ((0, 59), (2, 9), (9, 10), (20, 40)):
        window = slice(first, last + 1)
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda leaf, w=window: leaf[w], single), action=(), extras=()
        )
        older = older_frames(jnp.asarray(rows.observation[first]), stack)
        trajectory = with_older_frames(trajectory, older)
        seen = jax.jit(with_stacks)(trajectory).env_steps
        expected = jax.tree.map(lambda leaf, w=window: leaf[w], rows)
        assert np.asarray(seen.observation).tobytes() == expected.observation.tobytes()
        in_host_memory = jax.tree.map(np.asarray, trajectory.env_steps)
        assert last_row(in_host_memory).observation.tobytes() == rows.observation[last].tobytes()


def test_a_trajectory_without_single_frames_stays_as_it_is():
    rows = stacked_rows(
        np.zeros((4, 2, 2)), [True, False, False, False], axis=0, fill="zeros", lives=False
    )
    trajectory = Trajectory(env_steps=rows, action=(), extras=())
    assert with_stacks(trajectory) is trajectory
    assert with_single_frames(rows, None) is rows
    np.testing.assert_array_equal(last_row(rows).observation, rows.observation[-1])


def test_a_replay_refuses_to_fill_new_stacks_otherwise_than_the_environment():
    environment = dataclasses.replace(
        toy_run_spec().environment,
        observation=jax.ShapeDtypeStruct((3, 8, 8), np.uint8),
        frame_stack=FrameStack(size=3, axis=0, fill="zeros"),
    )
    run_spec = toy_run_spec(environment=environment)
    assert replay.frame_stack(3, "zeros", run_spec) == environment.frame_stack
    with pytest.raises(ConfigError, match=r"frame_stack_fill: expected zeros, .*, got repeat"):
        replay.frame_stack(3, "repeat", run_spec)
