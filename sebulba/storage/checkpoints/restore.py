"""Read checkpoints, and return exactly what was saved or raise an error.

Nothing is unpickled, so no content of a checkpoint is ever executed.
"""

import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np

from sebulba.pytree import is_key, key_implementation
from sebulba.storage.checkpoints.manifest import (
    Manifest,
    Mismatch,
    compare,
    crc32_of,
    flatten,
    leaf_of,
    table,
)
from sebulba.storage.names import ARRAYS, MANIFEST
from sebulba.types import PyTree

Which = Literal["latest", "best"] | int

_MAX_HEADER = 1 << 16  # bytes of an array's description
_EARLIER_MANIFEST = "manifest/metadata"  # of format 1
# Experience once held the count of env steps, which `progress` in the dict of a checkpoint has.
_OBSOLETE = re.compile(
    r"learner\.experience\.(.*\.)?clock"
    r"\.(step|env_steps_low|env_steps_high|cycle_env_steps|num_trajectories)"
)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; none of it was returned.

    Attributes:
        fits: whether another checkpoint of the run may be used instead.
    """

    def __init__(self, message: str, *, fits: bool = True):
        self.fits = fits
        super().__init__(message)


def steps_in(directory: str | os.PathLike[str]) -> list[int]:
    """Return the steps of the checkpoints in a directory in order; none if it does not exist."""
    path = pathlib.Path(directory)
    if not path.is_dir():
        return []
    return sorted(int(x.name) for x in path.iterdir() if x.name.isdecimal() and x.is_dir())


def restore(
    directory: str | os.PathLike[str],
    which: Which,
    like: PyTree,
    *,
    partial: bool = False,
    ignored: tuple[str, ...] = (),
) -> tuple[PyTree, dict[str, Any]]:
    """Return what was saved, after verifying every leaf.

    Args:
        directory: of a `Checkpointer`, which may be saving to it.
        which: a step, the latest step, or the step with the best score.
        like: the expected pytree, of arrays or `jax.ShapeDtypeStruct`. Each restored leaf gets the
            sharding of its counterpart; without one it stays in host memory.
        partial: whether to ignore stored leaves that `like` lacks; they are not read.
        ignored: with what the paths of stored leaves begin that `like` may lack.

    Returns:
        The pytree and the dict.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it differs from `like`.
            Another checkpoint is never used instead.
    """
    directory = pathlib.Path(directory).resolve()
    step = find_step(directory, which)
    try:
        return _restore(directory, step, like, partial=partial, ignored=ignored)
    except CheckpointError as error:
        if not error.fits:
            raise
        needed = {path: _storage(leaf) for path, leaf in flatten(like).items()}
        whole = next(whole_steps(directory, needed), None)
        advice = "No checkpoint is whole."
        if whole is not None:
            advice = f"The newest that is whole is {whole}."
        raise CheckpointError(f"{error}\n{advice}") from error.__cause__


def read_meta(directory: str | os.PathLike[str], which: Which) -> dict[str, Any]:
    """Return the dict of a checkpoint; its arrays are not read.

    Raises:
        CheckpointError: there is no such checkpoint, or its manifest is damaged.
    """
    directory = pathlib.Path(directory).resolve()
    return _read_manifest(directory, find_step(directory, which)).meta


def _restore(
    directory: pathlib.Path,
    step: int,
    like: PyTree,
    *,
    partial: bool,
    ignored: tuple[str, ...] = (),
) -> tuple[PyTree, dict[str, Any]]:
    expected = flatten(like)
    manifest = _read_manifest(directory, step)
    stored = {
        path: leaf
        for path, leaf in manifest.leaves.items()
        if path in expected
        or not (partial or path.startswith(ignored) or _OBSOLETE.fullmatch(path))
    }
    mismatches = compare(stored, {path: leaf_of(leaf) for path, leaf in expected.items()})
    if mismatches:
        raise CheckpointError(
            f"checkpoint {step} in {directory} is of other networks, another agent or another"
            f" number of devices or environments than this run's:\n{table(mismatches)}",
            fits=False,
        )
    data = {path: _storage(leaf) for path, leaf in expected.items()}
    arrays = _read_arrays(directory, step, data)
    mismatches = _verify(arrays, manifest.crc32, data)
    if mismatches:
        raise _damaged(directory, step, f"the data is not what was saved:\n{table(mismatches)}")
    leaves = [_place(arrays[path], leaf) for path, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), manifest.meta


def restore_fitting(
    directory: str | os.PathLike[str], which: Which, like: PyTree, *, prefix: str
) -> tuple[dict[str, Any], list[Mismatch]]:
    """Return the leaves of a checkpoint that fit a pytree, after verifying them.

    Args:
        directory: of a `Checkpointer`, which may be saving to it.
        which: as for `restore`.
        like: the expected pytree; as for `restore`.
        prefix: begins the paths of `like`; other stored leaves are ignored.

    Returns:
        The leaves by path, and where names and types of stored and expected leaves differ.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    directory = pathlib.Path(directory).resolve()
    step = find_step(directory, which)
    stored = {
        path: leaf
        for path, leaf in _read_manifest(directory, step).leaves.items()
        if path.startswith(prefix)
    }
    expected = {path: leaf_of(leaf) for path, leaf in flatten(like).items()}
    fitting = {
        path: leaf for path, leaf in flatten(like).items() if stored.get(path) == expected[path]
    }
    leaves, _ = _restore(directory, step, fitting, partial=True)
    return leaves, compare(stored, expected)


def whole_steps(
    directory: str | os.PathLike[str], needed: Mapping[str, jax.ShapeDtypeStruct] | None = None
) -> Iterator[int]:
    """Return the steps whose arrays are what was saved, newest first; each is read first.

    Args:
        directory: of a `Checkpointer`.
        needed: the arrays that count, and that are read; None: all.
    """
    directory = pathlib.Path(directory).resolve()
    for step in reversed(steps_in(directory)):
        with contextlib.suppress(CheckpointError):
            manifest = _read_manifest(directory, step)
            with _opened(directory, step) as stored:
                if needed is not None:
                    _check_sizes(stored, needed)
                is_whole = all(
                    crc32_of(stored[name]) == manifest.crc32[name]
                    for name in needed or manifest.crc32
                )
            if is_whole:
                yield step


def find_step(directory: pathlib.Path, which: Which) -> int:
    """Return the step that `which` means.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    steps = steps_in(directory)
    listing = ", ".join(map(str, steps)) or "none"
    if which == "best":
        step = best_step(directory)
        if step is None and steps:
            _read_manifest(directory, steps[-1])  # a damaged manifest has no score either
            raise CheckpointError(
                f"no checkpoint in {directory} has a score, so none is the best: choose one of"
                f" {listing}"
            )
    elif which == "latest":
        step = steps[-1] if steps else None
    else:
        step = which if which in steps else None
    if step is None:
        raise CheckpointError(f"expected checkpoint {which!r} in {directory}, which has: {listing}")
    return step


def best_step(directory: pathlib.Path) -> int | None:
    """Return the step with the highest score, of equals the last."""
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
    path = directory / str(step) / MANIFEST
    if not path.exists() and (path.parent / _EARLIER_MANIFEST).exists():
        raise CheckpointError(
            f"checkpoint {step} in {directory} was saved by an earlier version of Sebulba, with"
            " Orbax; use it with that version, or start a new run"
        )
    try:
        manifest = Manifest.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(directory, step, f"{MANIFEST}: {error}") from error
    if manifest.step != step:
        raise _damaged(directory, step, f"{MANIFEST} is of step {manifest.step}")
    return manifest


def _read_arrays(
    directory: pathlib.Path, step: int, like: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, np.ndarray]:
    """Return every array that `like` names, none of them verified."""
    with _opened(directory, step) as stored:
        _check_sizes(stored, like)
        arrays = {path: np.asarray(stored[path]) for path in like}
        # Files have no types such as bfloat16: NumPy stores these as opaque bytes.
        return {
            path: array.view(like[path].dtype) if array.dtype.kind == "V" else array
            for path, array in arrays.items()
        }


def _check_sizes(stored: np.lib.npyio.NpzFile, like: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Raise a ValueError if an array is larger than expected, before it is decompressed."""
    archive = stored.zip
    assert archive is not None  # it is closed later
    for path, leaf in like.items():
        expected = math.prod(leaf.shape) * leaf.dtype.itemsize
        size = archive.getinfo(f"{path}.npy").file_size
        if size > expected + _MAX_HEADER:
            raise ValueError(f"{path}: expected {expected:,} bytes, got {size:,}")


@contextlib.contextmanager
def _opened(directory: pathlib.Path, step: int) -> Iterator[np.lib.npyio.NpzFile]:
    """Open the arrays of a checkpoint; errors in the body are those of a damaged one."""
    try:
        # NumPy does not close a file that it opened and could not read.
        with (
            open(directory / str(step) / ARRAYS, "rb") as file,
            np.load(file, allow_pickle=False) as stored,
        ):
            yield stored
    # A damaged archive raises almost anything: `BadZipFile`, `zlib.error`, `NotImplementedError` …
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise _damaged(directory, step, f"{ARRAYS}: {reason}") from error


def _verify(
    arrays: dict[str, np.ndarray], crc32: dict[str, str], like: dict[str, jax.ShapeDtypeStruct]
) -> list[Mismatch]:
    stored, expected = {}, {}
    for path, array in arrays.items():
        # Equal bytes do not make an equal array.
        leaf, wanted = leaf_of(array), leaf_of(like[path])
        stored[path] = f"{leaf} CRC32 {crc32_of(array)}" if leaf == wanted else str(leaf)
        expected[path] = f"{wanted} CRC32 {crc32[path]}"
    return compare(stored, expected)


def _damaged(directory: pathlib.Path, step: int, reason: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {step} in {directory} is damaged: {reason}")


def _storage(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the type of the array that a leaf is stored as."""
    if is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _place(array: Any, like: Any) -> Any:
    if is_key(like):
        array = jax.random.wrap_key_data(array, impl=key_implementation(like.dtype))
    sharding = getattr(like, "sharding", None)
    return array if sharding is None else jax.device_put(array, sharding)
