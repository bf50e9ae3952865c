"""Saves a pytree of arrays, with a dict beside it, in the background.

A checkpoint is a directory named after its step that appears whole, in one rename. In it are three
items, written by Orbax: `state`, every array by its path; `meta`, the dict; `manifest`, which says
what the other two must be. `sebulba.storage.checkpoints.restore` reads them back.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from sebulba.storage.checkpoints.manifest import (
    Leaf,
    Manifest,
    crc32_of,
    crc32_of_meta,
    flatten,
    is_key,
    leaf_of,
)
from sebulba.storage.checkpoints.orbax_noise import silence_orbax
from sebulba.storage.checkpoints.own_process import (
    composite_handler,
    multiprocessing_options,
    save_args,
)
from sebulba.storage.checkpoints.restore import best_step, steps_in
from sebulba.types import PyTree

_TEMPORARY = ".orbax-checkpoint-tmp"  # Orbax's own mark


class SaveError(RuntimeError):
    """A checkpoint that could not be written, on a full disk say; the older ones are intact."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """A pytree of arrays as of one moment, in host memory."""

    leaves: dict[str, Leaf]
    arrays: dict[str, np.ndarray]  # a key's array is its data


def snapshot(state: PyTree) -> Snapshot:
    """Copies every leaf to the host; once it has returned, the arrays may be donated.

    Waits for arrays that are still being computed. A leaf that is split over devices is stored
    whole.
    """
    leaves = flatten(state)
    arrays = {path: _data(leaf) for path, leaf in leaves.items()}
    for array in arrays.values():
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    return Snapshot(
        leaves={path: leaf_of(leaf) for path, leaf in leaves.items()},
        arrays={path: _own(array) for path, array in arrays.items()},
    )


class Checkpointer:
    """Saves checkpoints in the background; not thread-safe, and the directory's only writer.

    The newest `keep` and the one with the greatest score stay. A save that fails removes none.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int):
        """Creates the directory, and removes what killed saves have left in it."""
        if keep < 1:
            raise ValueError(f"expected to keep at least 1 checkpoint, got {keep}")
        self.directory = pathlib.Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        _remove_temporary(self.directory)
        self._keep = keep
        silence_orbax()
        self._saver = ocp.AsyncCheckpointer(
            composite_handler(),
            multiprocessing_options=multiprocessing_options(),
            # Otherwise a save that fails to begin leaves threads that wait for its directories for
            # minutes, and the process's end waits for them.
            async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
        )
        self._saving: int | None = None
        self._failure: SaveError | None = None

    def save(
        self, step: int, state: PyTree | Snapshot, meta: dict[str, Any], *, score: float | None
    ) -> None:
        """Begins to save; waits for the save before this one, if that is still running.

        All that is read of `state` and `meta` has been read on return. A step that is there
        already is not saved again.

        Args:
            step: names the checkpoint.
            state: arrays, NumPy's too, or an earlier snapshot of some.
            meta: JSON values.
            score: the checkpoint with the greatest is "best"; None: not in the running.
        """
        state = state if isinstance(state, Snapshot) else snapshot(state)
        meta = json.loads(json.dumps(meta))  # as it will be read: lists for tuples, string keys
        manifest = Manifest(
            step=step,
            score=None if score is None or math.isnan(score) else float(score),
            meta_crc32=crc32_of_meta(meta),
            leaves=state.leaves,
            crc32={path: crc32_of(array) for path, array in state.arrays.items()},
        )
        self.wait()
        if step in steps_in(self.directory):
            return
        args = ocp.args.Composite(
            # Orbax refuses arrays without elements; the manifest says all there is to them.
            state=save_args({p: x for p, x in state.arrays.items() if x.size}),
            meta=ocp.args.JsonSave(meta),
            manifest=ocp.args.JsonSave(manifest.to_json()),
        )
        try:
            self._saver.save(self.directory / str(step), args=args)
            self._saving = step
        except Exception as error:
            self._fail(step, error)

    def is_saving(self) -> bool:
        """Whether a save is running in the background."""
        if self._saving is None:
            return False
        try:
            self._saver.check_for_errors()
        except Exception as error:
            self._fail(self._saving, error)
            return False
        if self._saving in steps_in(self.directory):
            self.wait()
        return self._saving is not None

    def check_for_errors(self) -> None:
        """Raises what ended the last save, once; the next one is tried as if nothing had been.

        Raises:
            SaveError: the last save failed.
        """
        self.is_saving()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Waits until no save is running; how it ended, `check_for_errors` tells."""
        saving = self._saving
        if saving is None:
            return
        try:
            self._saver.wait_until_finished()
            self._saving = None
        except Exception as error:
            self._fail(saving, error)
        else:
            self._remove_old()

    def discard_after(self, step: int) -> None:
        """Removes the checkpoints of later steps: the run goes on from this one."""
        self.wait()
        for later in steps_in(self.directory):
            if later > step:
                _remove(self.directory / str(later))

    def close(self) -> None:
        """Waits until no save is running and ends Orbax's threads; may be called twice."""
        self.wait()
        self._saver.close()

    def _fail(self, step: int, cause: Exception) -> None:
        reason = (str(cause) or type(cause).__name__).splitlines()[0]
        self._failure = SaveError(
            f"the checkpoint of step {step} was not saved in {self.directory}: {reason}"
        )
        self._failure.__cause__ = cause
        self._saving = None
        # What was written of it may be what fills the disk.
        _remove_temporary(self.directory)

    def _remove_old(self) -> None:
        steps = steps_in(self.directory)
        kept = {*steps[-self._keep :], best_step(self.directory)}
        for step in steps:
            if step not in kept:
                # It is tried again after the next save.
                with contextlib.suppress(OSError):
                    _remove(self.directory / str(step))


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _own(array: Any) -> np.ndarray:
    """Returns the array in memory that nobody else can write to or donate."""
    host = np.asarray(array)
    # On CPU that is a view of JAX's own memory.
    return host if host.flags.owndata and host is not array else host.copy()


def _remove(path: pathlib.Path) -> None:
    """Removes a checkpoint: first its name, so that no half of one is ever taken for a whole."""
    doomed = path.with_name(f"{path.name}{_TEMPORARY}-removed")
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_temporary(directory: pathlib.Path) -> None:
    for path in directory.glob(f"*{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
