"""Save a pytree of arrays and a dict of JSON values, in the background.

A checkpoint is a directory named after its step, which becomes visible in one rename. It holds
`arrays.npz`, every array by its path, readable with `numpy.load`, and `manifest.json`, the dict and
the shape, dtype and checksum of every array. `sebulba.storage.checkpoints.restore` reads them.

Each host saves its own arrays to its own directory and waits for no other host.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import threading
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from sebulba.pytree import without_key
from sebulba.storage.checkpoints.manifest import Leaf, Manifest, crc32_of, flatten, leaf_of
from sebulba.storage.checkpoints.restore import best_step, steps_in
from sebulba.storage.lock import RunDirectoryError
from sebulba.storage.metrics.files import write_text
from sebulba.storage.names import ARRAYS, MANIFEST
from sebulba.types import PyTree

_TEMPORARY = ".tmp"

StartThread = Callable[[Callable[[], None], str], threading.Thread]
"""Starts a daemon thread that runs a function; takes the function and the thread's name."""


class SaveError(RuntimeError):
    """A checkpoint could not be written, for example to a full disk; older ones are intact."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """A copy of a pytree of arrays in host memory."""

    leaves: dict[str, Leaf]
    arrays: dict[str, np.ndarray]  # of PRNG keys: the key data


def snapshot(state: PyTree) -> Snapshot:
    """Copy every leaf to the host; the caller may donate the arrays afterwards.

    Waits for arrays that are still being computed. A leaf sharded over devices is stored as one
    array.
    """
    leaves = flatten(state)
    arrays = {path: without_key(leaf) for path, leaf in leaves.items()}
    for array in arrays.values():
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    return Snapshot(
        leaves={path: leaf_of(leaf) for path, leaf in leaves.items()},
        arrays={path: _own(array) for path, array in arrays.items()},
    )


class Checkpointer:
    """Saves checkpoints in the background; not thread-safe, and the directory's only writer.

    Keeps the newest `keep` checkpoints, the one with the highest score, and `keep_also`. A save
    that fails removes none.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int,
        keep_also: Callable[[], int | None] = lambda: None,
        start_thread: StartThread | None = None,
        check: Callable[[], None] = lambda: None,
        resumed_from: int = 0,
    ):
        """Create the directory and remove what killed saves have left in it.

        Args:
            directory: receives this host's checkpoints.
            keep: number of recent checkpoints to keep.
            keep_also: returns another step to keep; None: no other.
            start_thread: starts the thread that writes a checkpoint; None: `save` writes it.
            check: called in that thread before it changes the directory; raises
                `RunDirectoryError` if it may not.
            resumed_from: the newest checkpoint, from which the run resumes; 0: there is none.
        """
        if keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, got {keep}")
        self._keep = keep
        self._start_thread = start_thread
        self._check = check
        self._keep_also = keep_also
        self.last_saved = resumed_from  # written by the thread that saves
        self.directory = pathlib.Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        _remove_temporary(self.directory)
        self._thread: threading.Thread | None = None
        # Set by the writing thread, read after it has ended.
        self._failure: SaveError | None = None

    def has(self, step: int) -> bool:
        """Return whether a step is on the disk."""
        try:
            return step in steps_in(self.directory)
        except OSError:
            return False

    def save(
        self, step: int, state: PyTree | Snapshot, meta: dict[str, Any], *, score: float | None
    ) -> None:
        """Start a save, after the previous save has ended.

        `state` and `meta` are copied before this returns. A step that is already stored is not
        saved again.

        Args:
            step: names the checkpoint.
            state: JAX or NumPy arrays, or an earlier snapshot.
            meta: JSON values.
            score: the checkpoint with the highest is "best"; None or NaN: never the best.
        """
        state = state if isinstance(state, Snapshot) else snapshot(state)
        score = None if score is None or math.isnan(score) else float(score)
        meta = json.loads(json.dumps(meta))  # a copy, and what `restore` will return
        self.wait()
        if self.has(step):
            return
        write = functools.partial(self._write, step, state, meta, score)
        if self._start_thread is None:
            write()
            return
        try:
            self._thread = self._start_thread(write, f"checkpoint {step}")
        except Exception as error:  # the system is out of threads or memory
            self._fail(step, error)

    def is_saving(self) -> bool:
        """Return whether a save is running in the background."""
        return self._thread is not None and self._thread.is_alive()

    def check_for_errors(self) -> None:
        """Raise the error of the last save that has ended, once.

        Raises:
            SaveError: that save failed.
        """
        if self.is_saving():
            return
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Wait until no save is running; `check_for_errors` tells how it ended."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, step: int, state: Snapshot, meta: dict[str, Any], score: float | None) -> None:
        path = self.directory / str(step)
        try:
            self._check()
            self.directory.mkdir(exist_ok=True)  # Somebody may have removed it.
            partial = path.with_name(f"{path.name}{_TEMPORARY}")
            partial.mkdir()
            _write_arrays(partial / ARRAYS, state.arrays)
            manifest = Manifest(
                step=step,
                score=score,
                meta=meta,
                leaves=state.leaves,
                crc32={name: crc32_of(array) for name, array in state.arrays.items()},
            )
            write_text(partial / MANIFEST, json.dumps(manifest.to_json()))
            # A power cut must leave no name whose content is missing: first content, then name.
            _sync_directory(partial)
            self._check()
            partial.rename(path)
            _sync_directory(self.directory)
            self.last_saved = step
        except Exception as error:
            self._fail(step, error)
        else:
            self._remove_old()

    def _fail(self, step: int, cause: Exception) -> None:
        reason = (str(cause) or type(cause).__name__).splitlines()[0]
        self._failure = SaveError(
            f"the checkpoint of step {step} was not saved in {self.directory}: {reason}"
        )
        self._failure.__cause__ = cause
        if not isinstance(cause, RunDirectoryError):
            # The partial files may be what fills the disk.
            _remove_temporary(self.directory)

    def _remove_old(self) -> None:
        # A removal that fails is tried again after the next save.
        with contextlib.suppress(OSError):
            steps = steps_in(self.directory)
            for step in set(steps[: -self._keep]) - {best_step(self.directory), self._keep_also()}:
                _remove(self.directory / str(step))


def _own(array: Any) -> np.ndarray:
    """Return the array in memory that nobody else can write to or donate."""
    host = np.asarray(array)
    # On a CPU, `np.asarray` of a JAX array is a view of JAX's own memory. Of an array elsewhere, it
    # is a copy, which JAX keeps with the array but never writes to.
    if isinstance(array, jax.Array) and not _is_on_cpu(array):
        return host
    return host if host.flags.owndata and host is not array else host.copy()


def _is_on_cpu(array: jax.Array) -> bool:
    return any(device.platform == "cpu" for device in array.devices())


def _write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    # Not `np.savez`, which takes the names as keywords: a leaf could not be named `file`.
    with open(path, "wb") as file:
        with zipfile.ZipFile(file, "w", compresslevel=1) as archive:
            for name, array in arrays.items():
                # Pixels shrink about 30-fold, faster than a disk writes. Floating-point numbers
                # shrink by a tenth, at 40 MiB/s.
                archive.compression = (
                    zipfile.ZIP_DEFLATED if array.dtype == np.uint8 else zipfile.ZIP_STORED
                )
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: pathlib.Path) -> None:
    """Remove a checkpoint; rename it first, so that a partial one is never taken for complete."""
    doomed = path.with_name(f"{path.name}{_TEMPORARY}-removed")
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_temporary(directory: pathlib.Path) -> None:
    for path in directory.glob(f"*{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
