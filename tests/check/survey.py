"""Check sound agents, one after another, and write what became of each into the documentation.

    python -m tests.check.survey [--only PART …] [--list] [--results FILE] [--again] [--table]

They are every shipped config, every shipped agent with its defaults for four kinds of tasks, and
the agents of `tests/check/sound_*.py`. A check that takes longer than `--limit-s` counts as one
that does not fit. Runs with the same `--results FILE` add up, and `--table` replaces the rows of
those that were checked.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sebulba.check.suite import REFUSES_SETTINGS
from sebulba.config.loading import load_config
from sebulba.config.shipped import shipped_configs

if TYPE_CHECKING:
    from sebulba.config import Config

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "docs" / "check_matrix.md"
_BEGIN, _END = "<!-- sound agents -->\n", "<!-- end of sound agents -->\n"
_LIMIT_S = 600
# By the ends of their names: the smallest first.
_SIZES = ("bandit", "discrete", "recall", "catch", "cartpole", "vector", "pendulum", "continuous")

AGENTS = (
    "a2c",
    "ddqn",
    "gumbel_muzero",
    "impala",
    "policy_gradient",
    "ppo",
    "pqn",
    "r2d2",
    "rainbow",
    "random",
    "sac",
    "skills",
)
TASKS = {
    "vector": "{suite: envpool, id: CartPole-v1}",
    "discrete": "{suite: gymnasium, id: FrozenLake-v1}",
    "continuous": "{suite: envpool, id: Pendulum-v1}",
    "image": "{suite: envpool, id: Pong-v5}",
}
"""An environment of each kind: vectors, numbers and images as observations, continuous actions."""


def three_lines(agent: str, task: str) -> str:
    """Return the shortest config of an agent and a kind of task."""
    return f"env: {TASKS[task]}\nagent: {{name: {agent}}}\nrun: {{total_env_steps: 100_000}}\n"


def names() -> list[str]:
    """Return the names of all sound agents, the smallest first."""
    from tests.check.test_sound import SOUND

    defaults = [f"{agent}: {task}" for agent in AGENTS for task in TASKS]
    outside = [f"outside: {name}" for name in SOUND]

    def size(name: str) -> int:
        found = [number for number, end in enumerate(_SIZES) if name.endswith(end)]
        return found[0] if found else len(_SIZES)

    return [*outside, *sorted([*shipped_configs(), *defaults], key=size)]


def make_config(name: str) -> "Config":
    """Return the config of a sound agent."""
    kind, _, rest = name.partition(": ")
    if kind == "outside":
        from tests.check.test_sound import sound_config

        return sound_config(rest)
    if not rest:
        return load_config(str(ROOT / "configs" / f"{name}.yaml"), [])
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "three_lines.yaml"
        path.write_text(three_lines(kind, rest))
        return load_config(str(path), [])


def examine(name: str, limit_s: float) -> dict[str, Any]:
    """Check a sound agent in a process of its own, and return a row of the results."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "report.json"
        command = [sys.executable, "-m", "tests.check.survey", "--one", name, "--json", str(path)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return {"name": name, "outcome": f"does not fit {limit_s:g} s"}
        seconds = round(time.monotonic() - start)
        if not path.exists():
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return {"name": name, "outcome": "not checked", "why": last, "seconds": seconds}
        checks = json.loads(path.read_text())["checks"]
    found = {each["name"]: each for each in checks}
    by_status = {
        status: [key for key, each in found.items() if each["status"] == status]
        for status in ("pass", "fail", "unclear", "skip")
    }
    accusations = {key: found[key]["detail"] for key in by_status["fail"]}
    unclear = {key: found[key]["detail"] for key in by_status["unclear"]}
    return {
        "name": name,
        "outcome": "accused" if accusations else "passed",
        "passed": len(by_status["pass"]),
        "skipped": by_status["skip"],
        "refused": [
            key for key in by_status["skip"] if found[key]["detail"].startswith(REFUSES_SETTINGS)
        ],
        "unclear": unclear,
        "accusations": accusations,
        "seconds": seconds,
    }


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row of the results after the agent's name."""
    seconds, commit = str(row.get("seconds", "")), row["commit"]
    if "passed" not in row:
        return [row.get("why", row["outcome"]), "", "", "", seconds, commit]
    accused, unclear = (
        ", ".join(f"`{name}`" for name in row[key]) for key in ("accusations", "unclear")
    )
    return [str(row["passed"]), accused, unclear, str(len(row["skipped"])), seconds, commit]


def make_table(rows: Mapping[str, Sequence[str]]) -> str:
    """Return the table of the documentation from the cells of each agent."""
    columns = ["agent", "✓", "✗", "?", "–", "seconds", "commit"]
    lines = [columns, ["---"] * len(columns), *([name, *cells] for name, cells in rows.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def read_table(text: str) -> dict[str, list[str]]:
    """Return the cells of each agent after its name, from the documentation."""
    table = text.partition(_BEGIN)[2].partition(_END)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {name: cells for name, *cells in rows}


def main() -> None:
    """Check sound agents, print a line for each, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--only", nargs="+", help="those whose names contain one of these")
    parser.add_argument("--results", type=pathlib.Path, help="JSON, to continue from and to")
    parser.add_argument("--again", action="store_true", help="also those in the results")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S)
    parser.add_argument("--table", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        from sebulba.check.command import run_check

        os._exit(run_check(make_config(options.one), options.json))
    wanted = [
        name for name in names() if not options.only or any(part in name for part in options.only)
    ]
    if options.list:
        print("\n".join(wanted))
        return
    describe = ["git", "describe", "--always", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    path = options.results
    rows = json.loads(path.read_text()) if path is not None and path.exists() else {}
    for name in wanted:
        if name not in rows or options.again:
            rows[name] = examine(name, options.limit_s) | {"commit": commit}
            if path is not None:
                path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        row = rows[name]
        print(name, row["outcome"], row.get("seconds", ""), *row.get("accusations", ()))
        sys.stdout.flush()
    if options.table:
        text = TABLE.read_text()
        cells = read_table(text) | {name: cells_of(row) for name, row in rows.items()}
        table = make_table({name: cells[name] for name in names() if name in cells})
        before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
        TABLE.write_text(f"{before}{_BEGIN}{table}{_END}{after}")


if __name__ == "__main__":
    main()
