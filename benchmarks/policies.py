"""Keep the trained policies of runs: `python -m benchmarks.policies NAME=RUN_DIR …`.

A kept policy, `docs/results/policies/NAME`, is a run directory with the config and one checkpoint,
which holds the networks alone. `sebulba.evaluate`, `sebulba.export` and `sebulba.load_policy` read
it; training cannot be resumed from it. With the run's checksums and the record of its machine,
`sebulba.verify` trains it again.
"""

import argparse
import json
import pathlib

import jax

from benchmarks.certificates import keep_start
from benchmarks.records import FOLDER
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.checkpoints.manifest import Manifest
from sebulba.storage.checkpoints.restore import find_step, restore
from sebulba.storage.names import ARRAYS, CHECKPOINTS, MANIFEST

POLICIES = FOLDER / "results" / "policies"
_NETWORKS = "learner.networks."


def keep(run_dir: pathlib.Path, target: pathlib.Path) -> int:
    """Write the policy of a run's newest checkpoint; return the bytes of its arrays.

    Args:
        run_dir: of the run.
        target: of the policy.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    step = find_step((run_dir / CHECKPOINTS).resolve(), "latest")
    path = run_dir / CHECKPOINTS / str(step) / MANIFEST
    manifest = Manifest.from_json(json.loads(path.read_bytes()))
    like = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for name, leaf in manifest.leaves.items()
        if name.startswith(_NETWORKS)
    }
    networks, meta = restore(run_dir / CHECKPOINTS, step, like, partial=True)
    kept = {
        "learner": meta["learner"],
        "progress": {"env_steps": meta["progress"]["env_steps"]},
    }
    checkpointer = Checkpointer(target / CHECKPOINTS, keep=1)
    checkpointer.save(step, networks, kept, score=manifest.score)
    checkpointer.wait()
    checkpointer.check_for_errors()
    keep_start(run_dir, target)
    return (target / CHECKPOINTS / str(step) / ARRAYS).stat().st_size


def main() -> None:
    """Parse the command line and keep the policies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="+", metavar="NAME=RUN_DIR")
    for argument in parser.parse_args().policies:
        name, _, run_dir = argument.partition("=")
        size = keep(pathlib.Path(run_dir), POLICIES / name)
        print(f"{name}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
