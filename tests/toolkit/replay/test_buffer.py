"""The ring of rows: what is stored, what is complete, what has been overwritten."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit import replay
from sebulba.toolkit.replay import ReplaySpec, SequenceIds

SPEC = ReplaySpec(
    num_actors=2,
    num_envs=3,
    trajectory_length=4,
    capacity=20,
    sequence_length=6,
    stride=4,
    priority_exponent=1.0,
)
ROW = jax.ShapeDtypeStruct((2,), jnp.float32)
RECURRENT = jax.ShapeDtypeStruct((), jnp.float32)


def _rows(spec, actor_id, first):
    """Row `n` of stream `s` is `[s, n]`."""
    stream = actor_id * spec.num_envs + np.arange(spec.num_envs)
    row = first + np.arange(spec.trajectory_length)
    return np.stack(np.broadcast_arrays(stream[None], row[:, None]), -1).astype(np.float32)


@functools.cache
def _jitted(spec):
    return jax.jit(functools.partial(replay.add, spec), donate_argnums=0)


@functools.cache
def _jitted_sample(spec):
    return jax.jit(functools.partial(replay.sample, spec), static_argnames="batch_size")


@functools.cache
def _jitted_init(spec, row, recurrent):
    return jax.jit(lambda: replay.init(spec, row, recurrent))


_update_priorities = jax.jit(replay.update_priorities, static_argnums=0)


def _fill(spec, num_trajectories, row=ROW, recurrent=RECURRENT):
    """Each actor `a` adds `num_trajectories[a]`; the recurrent state before row n is n."""
    starts = np.arange(0.0, spec.trajectory_length, spec.stride, np.float32)[:, None]
    state = _jitted_init(spec, row, recurrent)()
    for actor_id, count in enumerate(num_trajectories):
        for trajectory in range(count):
            first = trajectory * spec.trajectory_length
            before = np.broadcast_to(np.float32(first) + starts, (len(starts), spec.num_envs))
            carried = jax.tree.map(lambda _: before, recurrent)  # noqa: B023
            rows = _rows(spec, actor_id, first)
            state = _jitted(spec)(state, rows, carried, np.int32(actor_id))
    return state


def _ids(stream, start):
    return SequenceIds(stream=np.array(stream, np.int32), start=np.array(start, np.int32))


def _stored_starts(spec, num_trajectories):
    """The slow definition: every row of the sequence and of its context is still in the ring."""
    expected = set()
    for actor_id, count in enumerate(num_trajectories):
        num_rows = count * spec.trajectory_length
        present = set(range(max(0, num_rows - spec.capacity), num_rows))
        for start in range(0, num_rows, spec.stride):
            rows = range(max(0, start - spec.num_context_rows), start + spec.sequence_length + 1)
            if present.issuperset(rows):
                streams = range(actor_id * spec.num_envs, (actor_id + 1) * spec.num_envs)
                expected |= {(stream, start) for stream in streams}
    return expected


def _draw_all(spec, state, draws=3000):
    drawn = _jitted_sample(spec)(state, jax.random.key(0), batch_size=draws)
    return drawn, set(zip(np.asarray(drawn.ids.stream), np.asarray(drawn.ids.start), strict=True))


SPECS = {
    "recurrent": SPEC,
    "context": dataclasses.replace(SPEC, num_context_rows=3),
    "transitions": dataclasses.replace(SPEC, stride=1, sequence_length=1),
    "halves": dataclasses.replace(SPEC, stride=2, sequence_length=5, num_context_rows=1),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("counts", [(1, 2), (3, 5), (6, 0), (9, 14)])
def test_sample_draws_exactly_the_complete_sequences(spec, counts):
    state = _fill(spec, counts)
    drawn, identities = _draw_all(spec, state)
    expected = _stored_starts(spec, counts)
    assert int(drawn.num_sequences) == len(expected)
    if expected:
        assert identities == {(np.int32(stream), np.int32(start)) for stream, start in expected}
    else:
        np.testing.assert_array_equal(drawn.probability, 0.0)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_sample_returns_the_rows_of_the_named_sequences(spec):
    state = _fill(spec, (9, 14))
    drawn, _ = _draw_all(spec, state, draws=50)
    offset = np.arange(-spec.num_context_rows, spec.sequence_length + 1)
    rows = np.asarray(drawn.sequences.rows)
    np.testing.assert_array_equal(rows[..., 1], np.asarray(drawn.ids.start) + offset[:, None])
    assert (rows[..., 0] == np.asarray(drawn.ids.stream)).all()
    np.testing.assert_array_equal(drawn.sequences.recurrent, drawn.ids.start)


def test_wide_rows_are_stored_flat_and_read_in_their_shape():
    row = jax.ShapeDtypeStruct((35, 33), jnp.uint8)
    frames = np.random.default_rng(0).integers(0, 256, (12, SPEC.num_envs, 35, 33), np.uint8)
    state = replay.init(SPEC, row, RECURRENT)
    assert state.rows.flat.shape == (6, 20, 1_280)  # 1,155 elements and padding
    before = np.zeros((1, SPEC.num_envs), np.float32)
    for first in range(0, len(frames), SPEC.trajectory_length):
        rows = frames[first : first + SPEC.trajectory_length]
        state = _jitted(SPEC)(state, rows, before, np.int32(1))
    read = jax.jit(replay.read, static_argnums=0)(SPEC, state, _ids([3, 5], [0, 4]))
    expected = np.stack([frames[:7, 0], frames[4:11, 2]], axis=1)
    np.testing.assert_array_equal(read.rows, expected)


def test_add_donates_and_writes_in_place():
    state = _fill(SPEC, (1, 0))
    pointer = state.rows.unsafe_buffer_pointer()
    added = _jitted(SPEC)(state, _rows(SPEC, 0, 4), np.zeros((1, 3), np.float32), np.int32(0))
    assert state.rows.is_deleted()
    assert added.rows.unsafe_buffer_pointer() == pointer


def test_add_copies_nothing_of_the_size_of_the_buffer():
    frame = jax.ShapeDtypeStruct((1_000, 100), jnp.uint8)
    shapes = jax.eval_shape(lambda: replay.init(SPEC, frame, ()))
    rows = jax.ShapeDtypeStruct((4, 3, *frame.shape), jnp.uint8)
    actor_id = jax.ShapeDtypeStruct((), jnp.int32)
    memory = _jitted(SPEC).lower(shapes, rows, (), actor_id).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 2 * rows.size
    assert memory.alias_size_in_bytes >= shapes.rows.flat.size


def test_sequences_get_their_priorities_and_are_drawn_by_them():
    state = _fill(SPEC, (5, 5))
    ids = _ids([0, 5], [4, 8])
    state = _update_priorities(SPEC, state, ids, np.array([30.0, 60.0], np.float32))
    drawn, _ = _draw_all(SPEC, state)
    # The other 22 sequences of 6 streams × 4 starts keep the priority of 1.
    total = 30.0 + 60.0 + 22.0
    assert int(drawn.num_sequences) == 24
    stream, start = np.asarray(drawn.ids.stream), np.asarray(drawn.ids.start)
    first, second = (stream == 0) & (start == 4), (stream == 5) & (start == 8)
    expected = np.where(first, 30.0, np.where(second, 60.0, 1.0)) / total
    np.testing.assert_allclose(drawn.probability, expected, rtol=1e-6)
    assert abs(first.mean() - 30.0 / total) < 0.03
    assert abs(second.mean() - 60.0 / total) < 0.03


def test_new_sequences_get_the_greatest_priority():
    state = _fill(SPEC, (3, 0))
    ids = _ids([0], [0])
    state = _update_priorities(SPEC, state, ids, np.array([7.0], np.float32))
    state = _jitted(SPEC)(state, _rows(SPEC, 0, 12), np.full((1, 3), 12.0, np.float32), np.int32(0))
    # Of starts 0, 4 and 8 the last is new.
    expected = [[7.0, 1.0, 7.0], [1.0, 1.0, 7.0], [1.0, 1.0, 7.0]]
    np.testing.assert_array_equal(state.mass[:3, :3], expected)


def test_newest_names_what_the_latest_trajectory_completed():
    spec = SPECS["halves"]
    state = _fill(spec, (2, 0), recurrent=())
    before = _stored_starts(spec, (2, 0))
    after = _stored_starts(spec, (3, 0))
    state = _jitted(spec)(state, _rows(spec, 0, 8), (), np.int32(0))
    ids = replay.newest(spec, state, np.int32(0))
    assert set(zip(ids.stream.tolist(), ids.start.tolist(), strict=True)) == after - before


def test_update_priorities_passes_over_an_overwritten_sequence():
    state = _fill(SPEC, (5, 0))
    stale, _ = _draw_all(SPEC, state, draws=40)
    for trajectory in range(5, 10):
        rows = _rows(SPEC, 0, 4 * trajectory)
        state = _jitted(SPEC)(state, rows, np.zeros((1, 3), np.float32), np.int32(0))
    mass = np.asarray(state.mass)
    state = _update_priorities(SPEC, state, stale.ids, np.full(40, 1e6, np.float32))
    np.testing.assert_array_equal(state.mass, mass)
    drawn, _ = _draw_all(SPEC, state)
    assert not replay.is_stored(SPEC, state, stale.ids).any()
    assert np.ptp(np.asarray(drawn.probability)) == 0.0


def test_a_partly_overwritten_sequence_leaves_with_its_priority():
    state = _fill(SPEC, (5, 0))
    oldest = _ids([1], [0])
    state = _update_priorities(SPEC, state, oldest, np.array([1e6], np.float32))
    state = _jitted(SPEC)(state, _rows(SPEC, 0, 20), np.zeros((1, 3), np.float32), np.int32(0))
    _, identities = _draw_all(SPEC, state)
    assert (1, 0) not in identities
    assert (1, 20) not in identities  # what took its place is not complete yet


def test_priority_zero_is_never_drawn_even_uniformly():
    spec = dataclasses.replace(SPECS["transitions"], priority_exponent=0.0)
    state = _fill(spec, (5, 0), recurrent=())
    ids = _ids([0, 1, 2], [3, 3, 7])
    state = _update_priorities(spec, state, ids, np.zeros(3, np.float32))
    drawn, identities = _draw_all(spec, state)
    assert identities == _stored_starts(spec, (5, 0)) - {(0, 3), (1, 3), (2, 7)}
    np.testing.assert_allclose(drawn.probability, 1 / (3 * 19 - 3), rtol=1e-6)


def test_a_replay_allocates_no_more_than_it_stores():
    state = replay.init(SPEC, ROW, RECURRENT)
    allocated = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    # Rows, recurrent states and priorities, rows counted.
    assert allocated == 6 * 20 * 8 + 6 * 5 * 8 + 8


@pytest.mark.parametrize(
    "change, message",
    [
        ({"stride": 3}, "stride that divides the trajectory length 4"),
        ({"capacity": 22}, "whole trajectories of 4 rows"),
        ({"capacity": 8}, "at least 10 rows for each of the 6 streams"),
    ],
)
def test_spec_names_what_does_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SPEC, **change)
