"""What crosses between a learner's host and a process that acts: arrays, numbers and text.

No class of ours is among them, so nothing is unpickled that another version has made, and typed
PRNG keys, which no process can pickle, cross as their data.
"""

import functools
from typing import Any

import jax
import numpy as np

from sebulba.pytree import from_arrays, is_key, leaf_name, to_arrays
from sebulba.ring.records import ActCarry, Collected, Point, StreamBoundary, StreamStart, Tally
from sebulba.toolkit.frame_stack import last_row
from sebulba.types import PyTree, Trajectory

Record = dict[str, Any]
"""Numbers, text, and lists and dictionaries of these."""
Arrays = list[np.ndarray]
"""The leaves of a pytree, in its order."""

# The process needs to know that a stream ended, not with which episodes.
_ENDED = StreamBoundary(finished=None, num_interrupted=0)  # type: ignore[arg-type]


def pack(tree: PyTree) -> Arrays:
    """Return the leaves of a pytree in host memory."""
    return [np.asarray(leaf) for leaf in to_arrays(tree)]


def unpack(arrays: Arrays, *, like: PyTree, what: str) -> PyTree:
    """Return the pytree of `pack`.

    Args:
        arrays: the leaves.
        like: a pytree of the same structure, or of its shapes.
        what: what it is, for errors.

    Raises:
        ValueError: a leaf has another shape or dtype.
    """
    expected = [_shape_of_data(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(like)]
    got = [(leaf.shape, leaf.dtype) for leaf in arrays]
    if got != expected:
        names = [leaf_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(like)]
        differing = [
            f"{name}: expected {dtype}{list(shape)}, got {leaf.dtype}{list(leaf.shape)}"
            for name, (shape, dtype), leaf in zip(names, expected, arrays, strict=False)
            if (leaf.shape, leaf.dtype) != (shape, dtype)
        ]
        raise ValueError(
            f"{what}: expected {len(expected)} arrays, got {len(got)}. {'; '.join(differing[:3])}"
        )
    return from_arrays(arrays, like=like)


@functools.cache  # Tracing takes 0.2 ms, and a trajectory that crosses is unpacked in 0.3 ms.
def _shape_of_data(shape: tuple[int, ...], dtype: Any) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of a leaf's data, which is another array if the leaf is a key."""
    leaf = jax.ShapeDtypeStruct(shape, dtype)
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    return data.shape, data.dtype


def pack_point(point: Point) -> tuple[Record, Arrays, Any]:
    """Return a point without its episodes: numbers, its carry, and its actions."""
    began = None if point.began is None else [point.began.cycle, point.began.attempt]
    numbers = {
        "cycle": point.cycle,
        "attempt": point.attempt,
        "began": began,
        "has_ended": point.boundary is not None,
    }
    # Only environments that have to be brought to the point again need its actions.
    actions = None if point.actions is None else [pack(each) for each in point.actions]
    return numbers, pack(point.carry), actions


def unpack_point(
    numbers: Record, carry: Arrays, actions: list[Arrays] | None, *, like: ActCarry, action: PyTree
) -> Point:
    """Return the point of `pack_point`.

    Args:
        numbers: its first result.
        carry: its second result.
        actions: its third result.
        like: a carry, or its shapes.
        action: a pytree with the structure of actions.
    """
    structure, began = jax.tree.structure(action), numbers["began"]
    return Point(
        cycle=numbers["cycle"],
        carry=unpack(carry, like=like, what="carry"),
        boundary=_ENDED if numbers["has_ended"] else None,
        attempt=numbers["attempt"],
        began=None if began is None else StreamStart(cycle=began[0], attempt=began[1]),
        actions=None
        if actions is None
        else tuple(jax.tree.unflatten(structure, each) for each in actions),
    )


def pack_collected(collected: Collected) -> tuple[Arrays, Arrays, Arrays]:
    """Return tally, carry and trajectory, each to be sent apart.

    The carry outlives the others, and would keep them in memory. Its row is the trajectory's last,
    and crosses once.
    """
    return pack(collected.tally), pack(_without_row(collected.carry)), pack(collected.trajectory)


def unpack_collected(
    tally: Arrays, carry: Arrays, trajectory: Arrays, *, like: Collected
) -> Collected:
    """Return what was collected. The carry is a copy; the others may lie in memory of the sender.

    Args:
        tally: the first result of `pack_collected`.
        carry: its second result.
        trajectory: its third result.
        like: the shapes of what is collected.
    """
    rows: Trajectory = unpack(trajectory, like=like.trajectory, what="trajectory")
    copied = [np.array(each) for each in carry]
    actor_state, statistics, env_state = unpack(copied, like=_without_row(like.carry), what="carry")
    after = ActCarry(
        actor_state=actor_state,
        env_step=jax.tree.map(np.array, last_row(rows.env_steps)),
        statistics=statistics,
        env_state=env_state,
    )
    counts: Tally = unpack(tally, like=like.tally, what="tally")
    return Collected(carry=after, trajectory=rows, tally=counts)


def _without_row(carry: ActCarry) -> tuple[PyTree, PyTree, PyTree]:
    return carry.actor_state, carry.statistics, carry.env_state
