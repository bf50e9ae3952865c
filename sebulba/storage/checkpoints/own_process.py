"""Orbax in one process of several, each of which saves to a directory of its own.

Orbax takes the processes of `jax.distributed` for one, which save one pytree together: it waits for
all of them, and process 0 alone writes NumPy arrays. Here no process waits for another, so that a
dead host keeps none from saving, and every one writes its own.
"""

import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_args import CheckpointArgs, register_with_handler

_ARRAYS = "arrays.npz"


def composite_handler() -> ocp.CompositeCheckpointHandler:
    """Returns the handler of the items `state`, `meta` and `manifest`."""
    if jax.process_count() == 1:
        return ocp.CompositeCheckpointHandler()
    options = multiprocessing_options()
    return ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(
            multiprocessing_options=options,
            # An item is written at once, and otherwise its directory may not be there yet.
            async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
        ),
        state=(
            ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
            if jax.process_index() == 0
            else _ArraysHandler()
        ),
        meta=ocp.JsonCheckpointHandler(multiprocessing_options=options),
        manifest=ocp.JsonCheckpointHandler(multiprocessing_options=options),
    )


def multiprocessing_options() -> ocp.options.MultiprocessingOptions:
    """Returns that this process is alone."""
    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    process = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process-{process}",
    )


def save_args(arrays: dict[str, np.ndarray]) -> CheckpointArgs:
    """Returns what saves arrays, none of them empty."""
    if jax.process_index() == 0:
        return ocp.args.PyTreeSave(arrays)
    return _ArraysArgs(arrays)


def restore_args(like: dict[str, jax.ShapeDtypeStruct]) -> CheckpointArgs:
    """Returns what restores the arrays of these names; others may be stored."""
    if jax.process_index() == 0:
        return ocp.args.PyTreeRestore(like, partial_restore=True)
    return _ArraysArgs(like)


class _ArraysHandler(ocp.CheckpointHandler):
    """Writes the bytes of each array into one file; the manifest says what they are."""

    def save(self, directory: Any, args: "_ArraysArgs") -> None:
        """Writes `arrays.npz`."""
        data: dict[str, Any] = {
            path: np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for path, array in args.arrays.items()
        }
        np.savez(pathlib.Path(directory) / _ARRAYS, **data)

    def restore(self, directory: Any, args: "_ArraysArgs") -> dict[str, np.ndarray]:
        """Reads the arrays that are asked for."""
        with np.load(pathlib.Path(directory) / _ARRAYS, allow_pickle=False) as stored:
            return {
                path: stored[path].view(leaf.dtype).reshape(leaf.shape)
                for path, leaf in args.arrays.items()
            }


@register_with_handler(_ArraysHandler, for_save=True, for_restore=True)
class _ArraysArgs(CheckpointArgs):
    def __init__(self, arrays: dict[str, Any]):
        self.arrays = arrays
