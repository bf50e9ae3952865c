"""Keep the trained policies of runs: `python -m benchmarks.policies NAME=RUN_DIR …`.

A kept policy, `docs/results/policies/NAME`, is a run directory with the config and one checkpoint,
which holds the networks alone. `sebulba.evaluate`, `sebulba.export` and `sebulba.load_policy` read
it; training cannot be resumed from it. With the run's checksums and the record of its machine,
`sebulba.verify` trains it again.
"""

import argparse
import json
import pathlib
from typing import Any

import jax
import yaml

from benchmarks.results import FOLDER
from sebulba.devices.variables import decides_bits
from sebulba.devices.xla_flags import VARIABLE
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.checkpoints.manifest import ARRAYS, MANIFEST, Manifest
from sebulba.storage.checkpoints.restore import find_step, restore
from sebulba.storage.checksums import CHECKSUMS
from sebulba.storage.metrics.files import write_json, write_text
from sebulba.storage.run_dir import CHECKPOINTS, CONFIG, RUN, SOURCES, read_run_json

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
    checkpointer.close()
    checkpointer.check_for_errors()
    config = yaml.safe_load((run_dir / CONFIG).read_text())
    config["run_dir"] = None  # a path of one machine
    (target / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    if (run_dir / CHECKSUMS).is_file():
        write_text(target / CHECKSUMS, (run_dir / CHECKSUMS).read_text())
        write_json(target / RUN, _without_places(read_run_json(run_dir)))
    return (target / CHECKPOINTS / str(step) / ARRAYS).stat().st_size


def _without_places(process: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of `run.json` without paths of one machine."""
    kept = {key: value for key, value in process.items() if key not in ("argv", SOURCES)}
    names = [name for name in process["environment"] if decides_bits(name) or name == VARIABLE]
    return kept | {"environment": {name: process["environment"][name] for name in names}}


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
