"""The checkpoints of a run: whether they are what it saved, and what is repeated from them."""

import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sebulba.storage.checksums import NETWORKS, ChecksumRow
from sebulba.storage.names import ARRAYS, CHECKPOINTS, MANIFEST
from sebulba.storage.run_files import read_json

_PREFIX = "learner."  # of the names of arrays, before those of the rows


def changed_networks(run_dir: pathlib.Path, rows: Sequence[ChecksumRow]) -> str | None:
    """Return the first array of a checkpoint that is not what the run's checksums say.

    So that the same bits of a repetition are also those of the policy that is evaluated. None: all
    networks are. A checkpoint of a learner cycle without a row is not looked at.

    Args:
        run_dir: of the run.
        rows: its checksums.
    """
    for row in rows:
        path = run_dir / CHECKPOINTS / str(row.num_cycles) / ARRAYS
        if not path.is_file():
            continue
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
                for name, leaf in row.leaves.items():
                    if name.startswith(f"{NETWORKS}."):
                        crc32 = f"{zlib.crc32(stored[_PREFIX + name].tobytes()):08x}"
                        if crc32 != leaf.crc32:
                            return f"{path}: {name}: expected CRC32 {leaf.crc32}, got {crc32}"
        except Exception as error:  # A damaged archive raises almost anything.
            return f"{path}: {(str(error) or type(error).__name__).splitlines()[0]}"
    return None


def has_networks(run_dir: pathlib.Path, num_cycles: int) -> bool:
    """Return whether a run has a checkpoint of a learner cycle."""
    return (run_dir / CHECKPOINTS / str(num_cycles) / ARRAYS).is_file()


def continues_environments(
    run_dir: pathlib.Path, num_cycles: int, config: Mapping[str, Any]
) -> bool:
    """Return whether a resume from a checkpoint steps the environments as the run did.

    So it is at the levels exact and exact-reset of `sebulba.run.resume`, but not at the level
    restart, at which environments begin new episodes.

    Args:
        run_dir: of the run.
        num_cycles: learner cycles of the checkpoint.
        config: the run's; keys are dotted.
    """
    manifest = read_json(run_dir / CHECKPOINTS / str(num_cycles) / MANIFEST) or {}
    leaves, meta = manifest.get("leaves", {}), manifest.get("meta", {})
    if any(name.startswith("actors.") and ".env_state" in name for name in leaves):
        return True
    every = config.get("checkpoint.exact_reset_cycles")
    cycles = meta.get("actors", {}).get("num_cycles", [1])
    return every is not None and all(cycle % every == 0 for cycle in cycles)


def link_checkpoint(run_dir: pathlib.Path, num_cycles: int, into: pathlib.Path) -> None:
    """Give another run directory a checkpoint of a run, whose files, maybe large, are not copied.

    Args:
        run_dir: of the run.
        num_cycles: learner cycles of the checkpoint.
        into: the other directory.
    """
    target = into / CHECKPOINTS / str(num_cycles)
    target.mkdir(parents=True)
    for file in (run_dir / CHECKPOINTS / str(num_cycles)).iterdir():
        (target / file.name).symlink_to(file.resolve())
