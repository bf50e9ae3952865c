"""Replay of sequences on one learner device: pure functions over a pytree.

Layout. An actor and the position of an environment in its batch name a *stream*, which never has a
gap. Each stream has a ring of `capacity` rows; a row is what arrived together and what was chosen
from it, so it is stored once its action is known, and a trajectory of `T` transitions adds its rows
0 … T − 1 (its row T comes again as the next one's row 0). All environments of an actor write at the
same place: adding is one contiguous write for each leaf, in place if the state is donated.

    stream   … │ row 38  row 39 │ row 40  row 41 …                      row 79 │ row 80 …
    start           ·               sequence of start 40: sequence_length + 1 rows ──►

A sequence is any `sequence_length + 1` consecutive rows (the last one to bootstrap from) beginning
at a multiple of `stride`. Sequences overlap, and share their rows. `num_context_rows` rows before
the first can be had too, to rebuild frame stacks from. Recurrent states are kept for the first row
of each trajectory; a recurrent agent therefore takes the trajectory's length as its stride.

A sequence's identity is `(stream, start)`, `start` counting the rows of the stream since the run
began: a number that is never used again. Whether the sequence is complete, and not yet overwritten
in any of its rows, follows from the stream's count alone; a priority that comes for one that has
left is dropped, and the place of one not yet complete is never drawn.

Draws follow `p^α` within the device's shard. With `D` devices that each draw their share of the
batch from their own shard, a sequence is drawn with probability `P = p^α / (D · Σ_shard p^α)`, and
all shards hold equally many sequences, `N / D`, since each takes its part of every trajectory. So
`N · P` of the importance weights is the shard's own `(N / D) · p^α / Σ_shard p^α`: `Sample` gives
the two factors, and the devices need not talk to each other. The weights correct the actual
probabilities, which differ from those of a single shard by the ratio of the shards' mean masses.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.replay.priorities import draw, priority_mass
from sebulba.types import PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """The sizes of one learner device's replay.

    Raises:
        ValueError: sizes that do not fit each other.
    """

    num_actors: int
    num_envs: int  # environments of one actor on this device
    trajectory_length: int  # rows that a trajectory adds to each of its streams
    capacity: int  # rows that each stream keeps
    sequence_length: int  # transitions of a sequence; it has one row more
    stride: int  # rows between the starts of two sequences
    num_context_rows: int = 0  # rows before a sequence's first that have to be there
    priority_exponent: float = 0.0  # α; 0: uniform

    def __post_init__(self) -> None:
        if self.trajectory_length % self.stride:
            raise ValueError(
                f"replay: expected a stride that divides the trajectory length"
                f" {self.trajectory_length} (actor.trajectory_length), got {self.stride}"
            )
        if self.capacity % self.trajectory_length:
            raise ValueError(
                f"replay: expected a capacity in whole trajectories of {self.trajectory_length}"
                f" rows for each stream, got {self.capacity}"
            )
        least = self.sequence_length + self.stride + self.num_context_rows
        if self.capacity < least:
            raise ValueError(
                f"replay: expected at least {least} rows for each of the"
                f" {self.num_streams} streams, to hold one sequence of"
                f" {self.sequence_length} transitions at any time, got {self.capacity}"
            )

    @property
    def num_streams(self) -> int:
        """Environments of all actors on this device."""
        return self.num_actors * self.num_envs

    @property
    def num_slots(self) -> int:
        """Places for sequences of one stream."""
        return self.capacity // self.stride


@pytree_dataclass
class ReplayState:
    """What is stored; to be donated."""

    rows: PyTree  # [streams, capacity, ...]
    recurrent: PyTree  # [streams, capacity / T, ...], before the first row of each trajectory
    mass: jax.Array  # [streams, slots] float32, p^α; of no meaning where no sequence is
    num_rows: jax.Array  # [actors] int32, rows that each stream of the actor has ever got


@pytree_dataclass
class SequenceIds:
    """Names sequences for good."""

    stream: jax.Array  # [n] int32, actor · num_envs + position in the batch
    start: jax.Array  # [n] int32, rows of the stream before the sequence's first


@pytree_dataclass
class Sequences:
    """Sequences as they were lived."""

    rows: PyTree  # [context + length + 1, n, ...]
    recurrent: PyTree  # [n, ...], before the row after the context


@pytree_dataclass
class Sample:
    """What `sample` draws."""

    sequences: Sequences
    ids: SequenceIds
    probability: jax.Array  # [n] float32, within this device's shard
    num_sequences: jax.Array  # [] int32, that can be drawn from this device's shard


def init(spec: ReplaySpec, row: PyTree, recurrent: PyTree) -> ReplayState:
    """Return an empty replay.

    Args:
        spec: the sizes.
        row: of `jax.ShapeDtypeStruct`, one row of one stream.
        recurrent: the same, one recurrent state of one stream; `()` if there is none.

    Raises:
        ValueError: recurrent states, and a stride that is not the trajectory's length.
    """
    if jax.tree.leaves(recurrent) and spec.stride != spec.trajectory_length:
        raise ValueError(
            "replay: recurrent states are kept for the first row of a trajectory: expected a"
            f" stride of {spec.trajectory_length} (actor.trajectory_length), got {spec.stride}"
        )

    def zeros(tree: PyTree, length: int) -> PyTree:
        return jax.tree.map(
            lambda leaf: jnp.zeros((spec.num_streams, length, *leaf.shape), leaf.dtype), tree
        )

    return ReplayState(
        rows=zeros(row, spec.capacity),
        recurrent=zeros(recurrent, spec.capacity // spec.trajectory_length),
        mass=jnp.zeros((spec.num_streams, spec.num_slots), jnp.float32),
        num_rows=jnp.zeros((spec.num_actors,), jnp.int32),
    )


def replay_bytes(spec: ReplaySpec, row: PyTree, recurrent: PyTree) -> int:
    """Return the bytes that `init` would allocate, without allocating them."""
    state = jax.eval_shape(lambda: init(spec, row, recurrent))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def add(
    spec: ReplaySpec, state: ReplayState, rows: PyTree, recurrent: PyTree, actor_id: jax.Array
) -> ReplayState:
    """Append a trajectory's rows to the streams of an actor.

    Sequences that it completes get the greatest priority that is stored, or 1; see `newest`.

    Args:
        spec: the sizes.
        state: donate it, and the rows are written in place.
        rows: `[T, B, ...]`: rows 0 … T − 1 of the trajectory.
        recurrent: `[B, ...]`, before row 0.
        actor_id: `[]` int32, whose trajectory it is.
    """
    stream = actor_id * spec.num_envs
    num_rows = state.num_rows[actor_id]
    place = num_rows % spec.capacity

    def write_rows(stored: jax.Array, new: jax.Array) -> jax.Array:
        return _write(stored, jnp.moveaxis(new, 0, 1), stream, place)

    def write_recurrent(stored: jax.Array, new: jax.Array) -> jax.Array:
        return _write(stored, new[:, None], stream, place // spec.trajectory_length)

    default = jnp.max(state.mass, initial=0.0)
    state = ReplayState(
        rows=jax.tree.map(write_rows, state.rows, rows),
        recurrent=jax.tree.map(write_recurrent, state.recurrent, recurrent),
        mass=state.mass,
        num_rows=state.num_rows.at[actor_id].set(num_rows + spec.trajectory_length),
    )
    default = jnp.where(default > 0.0, default, 1.0)
    return _set_mass(spec, state, newest(spec, state, actor_id), default)


def newest(spec: ReplaySpec, state: ReplayState, actor_id: jax.Array) -> SequenceIds:
    """Return the sequences that the actor's latest trajectory completed: `[B · T / stride]`.

    Some have a negative start while the streams are short; they are not stored, and
    `update_priorities` passes over them.
    """
    last = state.num_rows[actor_id] - 1 - spec.sequence_length
    count = spec.trajectory_length // spec.stride
    start = (last // spec.stride - jnp.arange(count, dtype=jnp.int32)) * spec.stride
    stream = actor_id * spec.num_envs + jnp.arange(spec.num_envs, dtype=jnp.int32)
    return SequenceIds(stream=jnp.repeat(stream, count), start=jnp.tile(start, spec.num_envs))


def is_stored(spec: ReplaySpec, state: ReplayState, ids: SequenceIds) -> jax.Array:
    """Return `[n]` bool: the sequence is complete, and not yet overwritten."""
    num_rows = state.num_rows[ids.stream // spec.num_envs]
    return _is_stored(spec, ids.start, num_rows)


def read(spec: ReplaySpec, state: ReplayState, ids: SequenceIds) -> Sequences:
    """Return the sequences, time leading. Of those that are not stored the rows are arbitrary.

    Context rows before the beginning of a stream are arbitrary as well.
    """
    offset = jnp.arange(-spec.num_context_rows, spec.sequence_length + 1, dtype=jnp.int32)
    row = (ids.start[None] + offset[:, None]) % spec.capacity
    trajectory = ids.start // spec.trajectory_length
    trajectory = trajectory % (spec.capacity // spec.trajectory_length)
    return Sequences(
        rows=jax.tree.map(lambda leaf: leaf[ids.stream[None], row], state.rows),
        recurrent=jax.tree.map(lambda leaf: leaf[ids.stream, trajectory], state.recurrent),
    )


def sample(spec: ReplaySpec, state: ReplayState, key: jax.Array, batch_size: int) -> Sample:
    """Draw sequences in proportion to `p^α`, independently, with replacement.

    Args:
        spec: the sizes.
        state: this device's shard. If no sequence is stored, the sample is arbitrary and its
            probabilities are 0.
        key: consumed.
        batch_size: sequences of this device.
    """
    start = _occupants(spec, state)
    can_be_drawn = _is_stored(spec, start, _num_rows_of_streams(spec, state)[:, None])
    mass = jnp.where(can_be_drawn, state.mass, 0.0)
    index, probability = draw(key, mass.reshape(-1), batch_size)
    ids = SequenceIds(stream=index // spec.num_slots, start=start.reshape(-1)[index])
    return Sample(
        sequences=read(spec, state, ids),
        ids=ids,
        probability=probability,
        num_sequences=jnp.sum(mass > 0.0, dtype=jnp.int32),
    )


def update_priorities(
    spec: ReplaySpec, state: ReplayState, ids: SequenceIds, priority: jax.Array
) -> ReplayState:
    """Set priorities; those of sequences that have been overwritten since are dropped.

    Args:
        spec: the sizes.
        state: donate it.
        ids: `[n]`; of one that occurs twice, either priority may be the one that stays.
        priority: `[n]` float32, not negative. 0: the sequence is never drawn, even for α = 0; add
            a little where that is not meant.
    """
    return _set_mass(spec, state, ids, priority_mass(priority, spec.priority_exponent))


def _write(stored: jax.Array, new: jax.Array, *start: jax.Array) -> jax.Array:
    zeros = (jnp.int32(0),) * (stored.ndim - len(start))
    return jax.lax.dynamic_update_slice(stored, new.astype(stored.dtype), (*start, *zeros))


def _set_mass(
    spec: ReplaySpec, state: ReplayState, ids: SequenceIds, mass: jax.Array
) -> ReplayState:
    slot = ids.start // spec.stride % spec.num_slots
    # Out of range, so that the scatter drops it.
    slot = jnp.where(is_stored(spec, state, ids), slot, spec.num_slots)
    mass = state.mass.at[ids.stream, slot].set(mass, mode="drop")
    return dataclasses.replace(state, mass=mass)


def _num_rows_of_streams(spec: ReplaySpec, state: ReplayState) -> jax.Array:
    return jnp.repeat(state.num_rows, spec.num_envs)


def _occupants(spec: ReplaySpec, state: ReplayState) -> jax.Array:
    """Return `[streams, slots]` int32: the start of the newest row of each slot's place."""
    slot_row = jnp.arange(spec.num_slots, dtype=jnp.int32) * spec.stride
    oldest = _num_rows_of_streams(spec, state)[:, None] - spec.capacity
    return oldest + (slot_row[None] - oldest) % spec.capacity


def _is_stored(spec: ReplaySpec, start: jax.Array, num_rows: jax.Array) -> jax.Array:
    # Row 0 of a stream begins an episode, so nothing is missing before it.
    first_context_row = jnp.maximum(start - spec.num_context_rows, 0)
    is_complete = start + spec.sequence_length < num_rows
    return (start >= 0) & is_complete & (first_context_row >= num_rows - spec.capacity)
