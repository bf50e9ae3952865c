"""Train a config with several seeds and list the returns: `python -m benchmarks.learning CONFIG`.

Each seed is a run in its own process, as a user would start it. The wall time is the process's,
including imports and compilation.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any


def train(config: str, seeds: Sequence[int], arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Train with some seeds, compiled once; return the contents of each seed's `summary.json`.

    Raises:
        RuntimeError: the process failed; the message has what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = pathlib.Path(folder) / "run"
        if len(seeds) == 1:  # with `--seeds`, a run is a second process
            flags = ["--seed", str(seeds[0]), "--run-dir", str(run_dir / f"seed-{seeds[0]}")]
        else:
            flags = [f"--seeds={','.join(map(str, seeds))}", "--run-dir", str(run_dir)]
        command = [sys.executable, "-m", "sebulba.train", config, *flags, *arguments]
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
        if run.returncode:
            raise RuntimeError(
                f"expected exit code 0, got {run.returncode}: {' '.join(command)}\n{run.stderr}"
            )
        paths = [run_dir / f"seed-{seed}" / "summary.json" for seed in seeds]
        return [json.loads(path.read_text()) for path in paths]


def learn(config: str, seed: int, arguments: Sequence[str]) -> dict[str, Any]:
    """Train with one seed; return env steps, seconds, and the best and final mean return.

    Raises:
        RuntimeError: the run failed; the message has what it printed.
    """
    started = time.perf_counter()
    (summary,) = train(config, [seed], arguments)
    return {
        "seed": seed,
        "env_steps": summary["env_steps"],
        "process_s": round(time.perf_counter() - started, 1),
        "best_return": summary["best_episode_return_mean"],
        "final_return": summary["final_episode_return_mean"],
    }


def main() -> None:
    """Train with all seeds, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--json", type=pathlib.Path)
    options, arguments = parser.parse_known_args()
    results = []
    for seed in options.seeds:
        results.append(learn(options.config, seed, arguments))
        print(json.dumps(results[-1]), flush=True)
    steps = [result["env_steps"] for result in results]
    worst = min(result["best_return"] for result in results)
    print(f"{options.config}: worst best return {worst:.2f}, most env steps {max(steps):,}")
    if options.json:
        options.json.write_text(json.dumps({"config": options.config, "runs": results}, indent=2))


if __name__ == "__main__":
    main()
