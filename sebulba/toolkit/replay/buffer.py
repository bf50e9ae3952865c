"""Replay of sequences on one learner device: pure functions over a pytree.

Layout. An actor and the position of an environment in its batch identify a *stream*, which has no
gaps. Each stream has a circular buffer of `capacity` rows. A row is stored once its action is
known, so a trajectory of `T` transitions adds its rows 0 … T − 1; its row T is row 0 of the next.
All environments of an actor write at the same position: adding is one contiguous write per leaf,
in place if the state is donated.

    stream   … │ row 38  row 39 │ row 40  row 41 …                      row 79 │ row 80 …
    start           ·               sequence of start 40: sequence_length + 1 rows ──►

A sequence is any `sequence_length + 1` consecutive rows (the last one to bootstrap from) that start
at a multiple of `stride`. Sequences overlap and share rows. Reading can include `num_context_rows`
rows before the first, to rebuild frame stacks. Recurrent states are stored for the rows at which
sequences start.

A sequence is identified by `(stream, start)`, where `start` counts the stream's rows since the run
began and is never reused. The stream's row count alone determines whether a sequence is complete
and not yet overwritten. New priorities of overwritten sequences are dropped, and incomplete
sequences are never drawn.

Draws follow `p^α` within the device's shard. With `D` devices that each draw their share of the
batch from their own shard, a sequence is drawn with probability `P = p^α / (D · Σ_shard p^α)`. All
shards hold the same number of sequences `N / D`, since each gets its part of every trajectory. So
the `N · P` of the importance weights is `(N / D) · p^α / Σ_shard p^α`. `Sample` returns these two
factors, and the devices need not communicate. The weights correct the actual probabilities, which
differ from those of a single shard by the ratio of the shards' mean masses.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.replay import wide_rows
from sebulba.toolkit.replay.priorities import draw, priority_mass
from sebulba.types import PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """The sizes of one learner device's replay.

    Raises:
        ValueError: stride, capacity and sequence length do not suit each other.
    """

    num_actors: int
    num_envs: int  # environments of one actor on this device
    trajectory_length: int  # rows that a trajectory adds to each of its streams
    capacity: int  # rows per stream
    sequence_length: int  # transitions per sequence, which has one more row
    stride: int  # rows between the starts of consecutive sequences
    num_context_rows: int = 0  # rows before a sequence's first that must be stored, too
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
        """Sequences per stream."""
        return self.capacity // self.stride


@pytree_dataclass
class ReplayState:
    """The stored rows and priorities; donate it to update in place."""

    rows: PyTree  # [streams, capacity, ...]; many elements in a row: `WideRows`
    recurrent: PyTree  # [streams, slots, ...], likewise, before the first row of each sequence
    mass: jax.Array  # [streams, slots] float32, p^α; meaningless where no sequence is stored
    num_rows: jax.Array  # [actors] int32, rows ever added to each stream of the actor


@pytree_dataclass
class SequenceIds:
    """Identities of sequences, never reused."""

    stream: jax.Array  # [n] int32, actor · num_envs + position in the batch
    start: jax.Array  # [n] int32, rows of the stream before the sequence's first


@pytree_dataclass
class Sequences:
    """The rows and recurrent states of sequences."""

    rows: PyTree  # [context + length + 1, n, ...]
    recurrent: PyTree  # [n, ...], before the row after the context


@pytree_dataclass
class Sample:
    """Sequences drawn by `sample`."""

    sequences: Sequences
    ids: SequenceIds
    probability: jax.Array  # [n] float32, within this device's shard
    num_sequences: jax.Array  # [] int32, drawable sequences in this device's shard


def init(spec: ReplaySpec, row: PyTree, recurrent: PyTree) -> ReplayState:
    """Return an empty replay.

    Args:
        spec: the sizes.
        row: one row of one stream, as `jax.ShapeDtypeStruct`s.
        recurrent: one recurrent state of one stream, likewise; `()` if there is none.
    """

    def empty(tree: PyTree, length: int) -> PyTree:
        return jax.tree.map(functools.partial(wide_rows.zeros, spec.num_streams, length), tree)

    return ReplayState(
        rows=empty(row, spec.capacity),
        recurrent=empty(recurrent, spec.num_slots),
        mass=jnp.zeros((spec.num_streams, spec.num_slots), jnp.float32),
        num_rows=jnp.zeros((spec.num_actors,), jnp.int32),
    )


def add(
    spec: ReplaySpec, state: ReplayState, rows: PyTree, recurrent: PyTree, actor_id: jax.Array
) -> ReplayState:
    """Append a trajectory's rows to the streams of an actor.

    The sequences that it completes, see `newest`, get the greatest stored priority, or 1.

    Args:
        spec: the sizes.
        state: donate it to write in place.
        rows: `[T, B, ...]`: rows 0 … T − 1 of the trajectory.
        recurrent: `[T / stride, B, ...]`, before rows 0, stride, 2 · stride …
        actor_id: `[]` int32, on this host.
    """
    stream = actor_id * spec.num_envs
    num_rows = state.num_rows[actor_id]
    place = num_rows % spec.capacity

    def write(new: PyTree, stored: PyTree, place: jax.Array) -> PyTree:
        return jax.tree.map(lambda x, old: wide_rows.write(old, x, stream, place), new, stored)

    default = jnp.max(state.mass, initial=0.0)
    state = dataclasses.replace(
        state,
        rows=write(rows, state.rows, place),
        recurrent=write(recurrent, state.recurrent, place // spec.stride),
        num_rows=state.num_rows.at[actor_id].set(num_rows + spec.trajectory_length),
    )
    default = jnp.where(default > 0.0, default, 1.0)
    return _set_mass(spec, state, newest(spec, state, actor_id), default)


def newest(spec: ReplaySpec, state: ReplayState, actor_id: jax.Array) -> SequenceIds:
    """Return the sequences that the actor's latest trajectory completed: `[B · T / stride]`.

    While the streams are short, some have a negative start; these are not stored, and
    `update_priorities` ignores them.
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
    """Return sequences, time-major; the rows of sequences that are not stored are arbitrary.

    Context rows before the beginning of a stream are arbitrary, too.
    """
    offset = jnp.arange(-spec.num_context_rows, spec.sequence_length + 1, dtype=jnp.int32)
    row = (ids.start[None] + offset[:, None]) % spec.capacity
    slot = ids.start // spec.stride % spec.num_slots
    return Sequences(
        rows=_gather(state.rows, ids.stream[None], row),
        recurrent=_gather(state.recurrent, ids.stream, slot),
    )


def sample(spec: ReplaySpec, state: ReplayState, key: jax.Array, batch_size: int) -> Sample:
    """Draw sequences in proportion to `p^α`, independently, with replacement.

    Args:
        spec: the sizes.
        state: this device's shard. If no sequence is stored, the sample is arbitrary and its
            probabilities are 0.
        key: consumed.
        batch_size: sequences that this device draws.
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
    """Set priorities; drop those of sequences that have been overwritten.

    Args:
        spec: the sizes.
        state: donate it.
        ids: `[n]`; if a sequence occurs twice, either priority may win.
        priority: `[n]` float32, not negative. A sequence of priority 0 is never drawn, even for
            α = 0.
    """
    return _set_mass(spec, state, ids, priority_mass(priority, spec.priority_exponent))


def _gather(stored: PyTree, stream: jax.Array, place: jax.Array) -> PyTree:
    return jax.tree.map(
        lambda rows: wide_rows.gather(rows, stream, place),
        stored,
        is_leaf=lambda node: isinstance(node, wide_rows.WideRows),
    )


def _set_mass(
    spec: ReplaySpec, state: ReplayState, ids: SequenceIds, mass: jax.Array
) -> ReplayState:
    slot = ids.start // spec.stride % spec.num_slots
    # An index out of range, which the scatter drops.
    slot = jnp.where(is_stored(spec, state, ids), slot, spec.num_slots)
    mass = state.mass.at[ids.stream, slot].set(mass, mode="drop")
    return dataclasses.replace(state, mass=mass)


def _num_rows_of_streams(spec: ReplaySpec, state: ReplayState) -> jax.Array:
    return jnp.repeat(state.num_rows, spec.num_envs)


def _occupants(spec: ReplaySpec, state: ReplayState) -> jax.Array:
    """Return the start of the newest sequence in each slot: `[streams, slots]` int32."""
    slot_row = jnp.arange(spec.num_slots, dtype=jnp.int32) * spec.stride
    oldest = _num_rows_of_streams(spec, state)[:, None] - spec.capacity
    return oldest + (slot_row[None] - oldest) % spec.capacity


def _is_stored(spec: ReplaySpec, start: jax.Array, num_rows: jax.Array) -> jax.Array:
    # Row 0 of a stream begins an episode, so no frame stack needs rows before it.
    first_context_row = jnp.maximum(start - spec.num_context_rows, 0)
    is_complete = start + spec.sequence_length < num_rows
    return (start >= 0) & is_complete & (first_context_row >= num_rows - spec.capacity)
