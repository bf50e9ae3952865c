"""Run every benchmark of acting and learning, each in its own process.

    python -m benchmarks.all [--only startup scaling …] [--json-dir DIR]

They take about twenty minutes on two cores. Nothing else should run at the same time.
"""

import argparse
import pathlib
import subprocess
import sys
import time

_CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
_CARTPOLE = str(_CONFIGS / "impala_cartpole.yaml")
_PONG = str(_CONFIGS / "impala_pong.yaml")
_NATURE = str(pathlib.Path(__file__).parent / "nature_pong.yaml")

COMMANDS: dict[str, list[str]] = {
    "act_cycle": ["act_cycle"],
    "learner": ["learner", "--torsos", "mlp", "dqn", "deep"],
    "convolutions": ["convolutions", "--torsos", "dqn"],
    "throughput_cartpole": ["throughput", _CARTPOLE, "--env-steps", "150000"],
    "throughput_pong": ["throughput", _NATURE, "--env-steps", "6400"],
    "overlap": ["overlap"],
    "scaling": ["scaling"],
    "instrumentation": ["instrumentation", _CARTPOLE],
    "startup": ["startup"],
    "soak": ["soak"],
}
"""Module and arguments of each benchmark, by the name of its JSON file."""


def main() -> None:
    """Run the benchmarks one after the other; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--json-dir", type=pathlib.Path, help="write each result to a file in it")
    arguments = parser.parse_args()
    if arguments.json_dir:
        arguments.json_dir.mkdir(parents=True, exist_ok=True)
    failed = [name for name in arguments.only if not _run(name, arguments.json_dir)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _run(name: str, json_dir: pathlib.Path | None) -> bool:
    module, *rest = COMMANDS[name]
    command = [sys.executable, "-m", f"benchmarks.{module}", *rest]
    if json_dir:
        command += ["--json", str(json_dir / f"{name}.json")]
    begin = time.perf_counter()
    code = subprocess.run(command).returncode
    print(f"[{name}: {time.perf_counter() - begin:.0f} s, exit code {code}]\n", flush=True)
    return code == 0


if __name__ == "__main__":
    main()
