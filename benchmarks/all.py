"""Run every benchmark of acting and learning, each in its own process.

    python -m benchmarks.all [--only startup scaling …] [--json-dir DIR]

They take about twenty minutes on two cores. Nothing else should run at the same time. The last
table sets each part beside its limit.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

_CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
_CARTPOLE = str(_CONFIGS / "impala_cartpole.yaml")
_PONG = str(_CONFIGS / "impala_pong.yaml")
_NATURE = str(pathlib.Path(__file__).parent / "nature_pong.yaml")

COMMANDS: dict[str, list[str]] = {
    "act_cycle": ["act_cycle"],
    "learner": ["learner", "--torsos", "mlp", "dqn", "deep"],
    "throughput_cartpole": ["throughput", _CARTPOLE, "--env-steps", "150000"],
    "throughput_pong": ["throughput", _NATURE, "--env-steps", "6400"],
    "overlap": ["overlap"],
    "scaling": ["scaling"],
    "startup": ["startup"],
}
"""Module and arguments of each benchmark, by the name of its JSON file."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A figure and its limit, as two rates of a result."""

    file: str  # of `COMMANDS`
    result: str  # how the name of the result begins
    figure: str
    limit: str
    binds: str  # what keeps the figure from its limit


SUMMARY = (
    Comparison(
        "act_cycle",
        "act cycle, envpool CartPole",
        "fused, 1 thread",
        "fused serial limit",
        "EnvPool's thread is woken for every step",
    ),
    Comparison(
        "act_cycle",
        "act cycle, envpool Pong",
        "fused, 1 thread",
        "fused serial limit",
        "environment and network take turns; a second thread overlaps them",
    ),
    Comparison(
        "learner",
        "learner, mlp",
        "inside the framework",
        "bare loop",
        "Python between jitted calls",
    ),
    Comparison("learner", "learner, dqn", "inside the framework", "bare loop", "the network"),
    Comparison("learner", "learner, deep", "inside the framework", "bare loop", "the network"),
    Comparison(
        "throughput_cartpole",
        "throughput",
        "end to end",
        "the same actors alone",
        "actors and learner share the cores",
    ),
    Comparison("throughput_pong", "throughput", "end to end", "serial limit", "the network"),
    Comparison("overlap", "overlap", "threads", "serial", "2 is complete overlap"),
)


def main() -> None:
    """Run the benchmarks one after the other; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--json-dir", type=pathlib.Path, help="write each result to a file in it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        json_dir = arguments.json_dir or pathlib.Path(folder)
        json_dir.mkdir(parents=True, exist_ok=True)
        failed = [name for name in arguments.only if not _run(name, json_dir)]
        done = [name for name in arguments.only if name not in failed]
        print("\n".join(summary(json_dir, done)))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def summary(json_dir: pathlib.Path, names: list[str]) -> Iterator[str]:
    """Yield the lines of a table: part, figure, limit, ratio, what binds."""
    yield f"{'part':36} {'figure':>12} {'limit':>12} {'ratio':>6}  what binds"
    for each in SUMMARY:
        if each.file not in names:
            continue
        results = json.loads((json_dir / f"{each.file}.json").read_text())["results"]
        for result in results:
            if result["name"].startswith(each.result):
                yield _line(result, each)


def _line(result: dict[str, Any], each: Comparison) -> str:
    figure, limit = (result["rates"][name] for name in (each.figure, each.limit))
    ratios = sorted(a / b for a, b in zip(figure["values"], limit["values"], strict=True))
    return (
        f"{result['name'][:36]:36} {figure['median']:12,.0f} {limit['median']:12,.0f}"
        f" {ratios[len(ratios) // 2]:6.2f}  {each.binds}"
    )


def _run(name: str, json_dir: pathlib.Path) -> bool:
    module, *rest = COMMANDS[name]
    command = [sys.executable, "-m", f"benchmarks.{module}", *rest]
    command += ["--json", str(json_dir / f"{name}.json")]
    begin = time.perf_counter()
    code = subprocess.run(command).returncode
    print(f"[{name}: {time.perf_counter() - begin:.0f} s, exit code {code}]\n", flush=True)
    return code == 0


if __name__ == "__main__":
    main()
