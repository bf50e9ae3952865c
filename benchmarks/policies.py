"""Keep the trained policies of runs: `python -m benchmarks.policies NAME=RUN_DIR …`.

A kept policy, `docs/results/policies/NAME`, is a run directory with the config and one checkpoint,
which holds the networks alone. `sebulba.evaluate`, `sebulba.export` and `sebulba.load_policy` read
it; training cannot be resumed from it.
"""

import argparse
import json
import pathlib

import numpy as np
import yaml

from benchmarks.results import FOLDER
from sebulba.storage.checkpoints.manifest import ARRAYS, MANIFEST, Manifest
from sebulba.storage.checkpoints.restore import find_step
from sebulba.storage.run_dir import CHECKPOINTS, CONFIG

POLICIES = FOLDER / "results" / "policies"
_NETWORKS = "learner.networks."


def keep(run_dir: pathlib.Path, target: pathlib.Path) -> int:
    """Write the policy of a run's newest checkpoint; return the bytes of its arrays.

    Args:
        run_dir: of the run.
        target: of the policy; made or overwritten.
    """
    step = find_step((run_dir / CHECKPOINTS).resolve(), "latest")
    source = run_dir / CHECKPOINTS / str(step)
    manifest = Manifest.from_json(json.loads((source / MANIFEST).read_bytes()))
    names = [name for name in manifest.leaves if name.startswith(_NETWORKS)]
    kept = Manifest(
        step=step,
        score=manifest.score,
        meta={
            "learner": manifest.meta["learner"],
            "progress": {"env_steps": manifest.meta["progress"]["env_steps"]},
        },
        leaves={name: manifest.leaves[name] for name in names},
        crc32={name: manifest.crc32[name] for name in names},
    )
    folder = target / CHECKPOINTS / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(source / ARRAYS) as arrays:
        np.savez(folder / ARRAYS, **{name: arrays[name] for name in names})
    (folder / MANIFEST).write_text(json.dumps(kept.to_json(), indent=1) + "\n")
    config = yaml.safe_load((run_dir / CONFIG).read_text())
    config["run_dir"] = None  # a path of one machine
    (target / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    return (folder / ARRAYS).stat().st_size


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
