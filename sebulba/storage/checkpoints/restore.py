"""Reads checkpoints, and hands out what was saved or nothing at all.

There is no pickle anywhere: nothing that lies in a checkpoint is ever executed.
"""

import json
import os
import pathlib
from typing import Any, Literal

import jax
import numpy as np
import orbax.checkpoint as ocp

from sebulba.storage.checkpoints.manifest import (
    Manifest,
    Mismatch,
    compare,
    crc32_of,
    crc32_of_meta,
    flatten,
    is_key,
    leaf_of,
    table,
)
from sebulba.storage.checkpoints.orbax_noise import silence_orbax
from sebulba.storage.checkpoints.own_process import (
    composite_handler,
    multiprocessing_options,
    restore_args,
)
from sebulba.types import PyTree

Which = Literal["latest", "best"] | int

_KEY_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; nothing of it was handed out."""


def steps_in(directory: str | os.PathLike[str]) -> list[int]:
    """Returns the steps of the checkpoints in a directory, in order; it need not exist."""
    path = pathlib.Path(directory)
    if not path.is_dir():
        return []
    return sorted(int(x.name) for x in path.iterdir() if x.name.isdecimal() and x.is_dir())


def restore(
    directory: str | os.PathLike[str], which: Which, like: PyTree, *, partial: bool = False
) -> tuple[PyTree, dict[str, Any]]:
    """Returns what was saved, every leaf verified before any is handed out.

    Args:
        directory: as `Checkpointer` was given it; may be in use by one.
        which: a step, or the one with the greatest step or score.
        like: what to expect. A leaf is placed as the array or `jax.ShapeDtypeStruct` in its place
            is, and stays in host memory where that has no sharding.
        partial: whether leaves that `like` does not have may be stored; they are not read.

    Returns:
        The pytree and the dict.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged, or of something else than
            `like`. Another one is never taken in its place.
    """
    directory = pathlib.Path(directory).resolve()
    step = _choose(directory, which)
    expected = flatten(like)
    manifest = _read_manifest(directory, step)
    stored = {
        path: leaf for path, leaf in manifest.leaves.items() if not partial or path in expected
    }
    mismatches = compare(stored, {path: leaf_of(leaf) for path, leaf in expected.items()})
    if mismatches:
        raise CheckpointError(
            f"checkpoint {step} in {directory} is of other networks, another agent or another"
            f" number of devices or environments than this run's:\n{table(mismatches)}"
        )
    arrays, meta = _read(directory, step, expected)
    mismatches = _verify(arrays, meta, manifest, expected)
    if mismatches:
        raise _damaged(directory, step, f"the data is not what was saved:\n{table(mismatches)}")
    leaves = [_place(arrays[path], leaf) for path, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), meta


def _choose(directory: pathlib.Path, which: Which) -> int:
    steps = steps_in(directory)
    listing = ", ".join(map(str, steps)) or "none"
    if which == "best":
        step = best_step(directory)
        if step is None and steps:
            raise CheckpointError(
                f"no checkpoint in {directory} has a score; take one of: {listing} (--resume STEP)"
            )
    elif which == "latest":
        step = steps[-1] if steps else None
    else:
        step = which if which in steps else None
    if step is None:
        raise CheckpointError(f"expected checkpoint {which!r} in {directory}, which has: {listing}")
    return step


def best_step(directory: pathlib.Path) -> int | None:
    """Returns the step with the greatest score, of several the last."""
    scores = []
    for step in steps_in(directory):
        try:
            score = _read_manifest(directory, step).score
        except CheckpointError:
            continue
        if score is not None:
            scores.append((score, step))
    return max(scores)[1] if scores else None


def _read_manifest(directory: pathlib.Path, step: int) -> Manifest:
    path = directory / str(step) / "manifest" / "metadata"
    try:
        manifest = Manifest.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise _damaged(directory, step, f"{path}: {error}") from error
    if manifest.step != step:
        raise _damaged(directory, step, f"{path} is of step {manifest.step}")
    return manifest


def _read(
    directory: pathlib.Path, step: int, like: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns every array that `like` names, and the dict; none is verified."""
    data = {path: _storage(leaf) for path, leaf in like.items()}
    wanted = {path: leaf for path, leaf in data.items() if leaf.size}
    # Orbax reads no empty pytree.
    state = {"state": restore_args(wanted)} if wanted else {}
    args = ocp.args.Composite(**state, meta=ocp.args.JsonRestore())
    silence_orbax()
    try:
        options = multiprocessing_options()
        with ocp.Checkpointer(composite_handler(), multiprocessing_options=options) as reader:
            restored = reader.restore(directory / str(step), args=args)
        arrays = {
            path: np.asarray(restored.state[path])
            if leaf.size
            else np.zeros(leaf.shape, leaf.dtype)
            for path, leaf in data.items()
        }
    # Orbax and TensorStore raise what they like on files that are not as they wrote them.
    except Exception as error:
        # TensorStore puts the whole specification of the array behind what went wrong.
        reason = (str(error) or type(error).__name__).splitlines()[0].split(" [tensorstore_spec")[0]
        raise _damaged(directory, step, reason) from error
    return arrays, restored.meta


def _verify(
    arrays: dict[str, np.ndarray],
    meta: dict[str, Any],
    manifest: Manifest,
    like: dict[str, Any],
) -> list[Mismatch]:
    stored, expected = {}, {}
    for path, array in arrays.items():
        # Equal bytes do not make an equal array, and those of Python objects are pointers.
        leaf, wanted = leaf_of(array), leaf_of(_storage(like[path]))
        crc32 = f"CRC32 {crc32_of(array)}" if leaf == wanted else ""
        stored[path] = f"{leaf} {crc32}".rstrip()
        expected[path] = f"{wanted} CRC32 {manifest.crc32[path]}"
    stored["(meta)"] = f"CRC32 {crc32_of_meta(meta)}"
    expected["(meta)"] = f"CRC32 {manifest.meta_crc32}"
    return compare(stored, expected)


def _damaged(directory: pathlib.Path, step: int, reason: str) -> CheckpointError:
    others = [other for other in steps_in(directory) if other != step]
    advice = (
        f"Other checkpoints: {', '.join(map(str, others))}; take one with --resume STEP."
        if others
        else "There is no other checkpoint."
    )
    return CheckpointError(f"checkpoint {step} in {directory} is damaged: {reason}\n{advice}")


def _storage(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the type of the array that a leaf is stored as."""
    if is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _place(array: Any, like: Any) -> Any:
    if is_key(like):
        array = jax.random.wrap_key_data(array, impl=_key_implementation(like.dtype))
    sharding = getattr(like, "sharding", None)
    return array if sharding is None else jax.device_put(array, sharding)


def _key_implementation(dtype: Any) -> str:
    for name in _KEY_IMPLEMENTATIONS:
        if jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype == dtype:
            return name
    raise ValueError(f"expected keys of one of {', '.join(_KEY_IMPLEMENTATIONS)}, got {dtype}")
