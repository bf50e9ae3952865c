"""Whether the networks in the checkpoints of a run are those of its checksums."""

import pathlib
import zlib
from collections.abc import Sequence

import numpy as np

from sebulba.storage.checksums import NETWORKS, ChecksumRow
from sebulba.storage.names import ARRAYS, CHECKPOINTS

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
