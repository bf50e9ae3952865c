"""Train recurrent cores on tasks of memory, and list the env steps until the goal.

    python -m benchmarks.memory --agents ppo r2d2 [--tasks "Recall, 100 steps" …] [--cores lru …]

Each agent has the settings of one config that comes with Sebulba, whatever the core is, except for
what a task needs (`TASKS`): the gradient ends at row 0 of a trajectory (R2D2: of what is learned
from), so there are more rows than the delay. GTrXL has one layer, whose memory reaches every row of
an episode. R2D2 learns from fewer sequences the longer they are, so that a longer delay does not
leave it with few updates.

The tasks of POPGym (Morad et al. 2023, arXiv 2303.01859) need the package `popgym`. Runs that
`benchmarks/memory.json` has are not repeated. Without `--agents`, only the table is printed.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness, learning
from sebulba.config.loading import load_config
from sebulba.storage.metrics.files import write_json

RECORDS = pathlib.Path(__file__).with_suffix(".json")
SEEDS = (6501, 6502, 6503)  # no setting was chosen on them
CORES = ("lstm", "gru", "lru", "gtrxl")

CONFIGS = {"ppo": "ppo_recall", "r2d2": "r2d2_recall"}
_HUNDRED = {"rows": 128, "learned": 128, "batch": 8}  # for events of up to 100 steps ago


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task, the budget of each agent, and what it needs beside an agent's config."""

    env: Mapping[str, Any]
    memory_length: int  # rows that GTrXL sees
    env_steps: Mapping[str, int]  # at most, by agent
    settings: Mapping[str, Mapping[str, Any]]  # by agent
    has_goal: bool = True  # that of the agent's config


def _delayed(
    env: Mapping[str, Any],
    delay: int,
    *,
    rows: int,
    learned: int,
    batch: int,
    ppo_steps: int = 500_000,
    r2d2_steps: int = 100_000,
) -> Task:
    """Return a task whose answer pays `delay` steps after the cue.

    Args:
        env: the section `env` of its config.
        delay: steps from the cue to the answer.
        rows: env steps of a trajectory of PPO.
        learned: transitions of a sequence that R2D2 learns from.
        batch: sequences of an update of R2D2.
        ppo_steps: env steps of PPO, at most.
        r2d2_steps: env steps of R2D2, at most.
    """
    sequences = {"agent.learn_length": learned, "agent.batch_size": batch}
    sequences["agent.min_replay_rows"] = max(1_000, 32 * learned)
    return Task(
        env=env,
        memory_length=delay + 4,
        env_steps={"ppo": ppo_steps, "r2d2": r2d2_steps},
        settings={"ppo": {"actor.trajectory_length": rows}, "r2d2": sequences},
    )


def _recall(delay: int, **sizes: int) -> Task:
    env = {"suite": "jax", "id": "Recall-v0", "options": {"delay": delay}}
    return _delayed(env, delay, **sizes)


def _popgym(name: str, ppo_steps: int) -> Task:
    """Return a task of POPGym, with the trajectories and the memory of `ppo_recall_100`."""
    env = {"suite": "gymnasium", "id": f"popgym:popgym-{name}-v0"}
    task = _delayed(env, 100, **_HUNDRED, ppo_steps=ppo_steps)
    of_ppo = {**task.settings["ppo"], "actor.threads_per_device": 1}
    return dataclasses.replace(task, settings={**task.settings, "ppo": of_ppo}, has_goal=False)


_CHAIN = {"suite": "gymnax", "id": "MemoryChain-bsuite", "options": {"memory_length": 100}}
TASKS: dict[str, Task] = {
    "Recall, 10 steps": _recall(10, rows=32, learned=16, batch=32),
    "Recall, 30 steps": _recall(30, rows=64, learned=48, batch=16),
    "Recall, 100 steps": _recall(100, **_HUNDRED),
    "MemoryChain, 100 steps": _delayed(_CHAIN, 100, **_HUNDRED),
    "Recall, 300 steps": _recall(300, rows=384, learned=384, batch=4),
    # They differ in what is to be remembered: the last cards, all cards in reverse order, numbers
    # of cards, and velocities under noise.
    "RepeatPreviousEasy": _popgym("RepeatPreviousEasy", 300_000),
    "AutoencodeEasy": _popgym("AutoencodeEasy", 150_000),
    "CountRecallEasy": _popgym("CountRecallEasy", 150_000),
    "NoisyPositionOnlyCartPoleEasy": _popgym("NoisyPositionOnlyCartPoleEasy", 150_000),
}


def overrides(task: Task, agent: str, core: str) -> dict[str, Any]:
    """Return what differs from the agent's config."""
    # GTrXL's memory reaches the whole episode, so one layer suffices.
    options = {"memory_length": task.memory_length, "layers": 1} if core == "gtrxl" else {}
    return {
        **{f"env.{key}": value for key, value in task.env.items()},
        **task.settings[agent],
        **({} if task.has_goal else {"run.stop_at_return": None}),
        "agent.core": core,
        "agent.core_options": options,
        "run.total_env_steps": task.env_steps[agent],
    }


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """Return settings as arguments of a command line."""
    return [
        f"--{key.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
    ]


def measure(task: Task, agent: str, core: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Train with all seeds; return what each reached, and after how many env steps it ended."""
    started = time.perf_counter()
    changes = overrides(task, agent, core)
    goal = load_config(CONFIGS[agent], changes).run.stop_at_return
    summaries = learning.train(CONFIGS[agent], seeds, as_flags(changes))
    stamp = harness.stamp()
    return {
        "seeds": list(seeds),
        "env_steps": [each["env_steps"] for each in summaries],
        "best_return": [each["best_episode_return_mean"] for each in summaries],
        "final_return": [each["final_episode_return_mean"] for each in summaries],
        "solved": [
            goal is not None and each["best_episode_return_mean"] >= goal for each in summaries
        ],
        "most_env_steps": task.env_steps[agent],
        "wall_time_s": round(time.perf_counter() - started, 1),
        "commit": stamp["commit"],
        "machine": f"{os.cpu_count()} cores",
    }


def table(records: Mapping[str, Any]) -> str:
    """Return a row for each task and agent, with the three seeds of each core."""
    lines = [
        f"| task | agent | at most | {' | '.join(f'`{core}`' for core in CORES)} |",
        f"|---|---|---|{'---|' * len(CORES)}",
    ]
    for name, task in TASKS.items():
        for agent, most in task.env_steps.items():
            found = records.get(name, {}).get(agent, {})
            if found:
                cells = " | ".join(_cell(found.get(core)) for core in CORES)
                lines.append(f"| {name} | `{agent}` | {most:,} | {cells} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, Any] | None) -> str:
    """Return for each seed the env steps until the goal, or the best mean return in brackets."""
    if found is None:
        return "–"
    seeds = zip(found["env_steps"], found["best_return"], found["solved"], strict=True)
    return " · ".join(
        f"{env_steps:,}" if solved else f"({best:.2f})".replace("-", "−")
        for env_steps, best, solved in seeds
    )


def main() -> None:
    """Train what the records lack, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", nargs="+", choices=CONFIGS, default=[])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--cores", nargs="+", choices=CORES, default=CORES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--json", type=pathlib.Path, default=RECORDS, help="where the records are")
    arguments = parser.parse_args()
    records = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for name, agent, core in itertools.product(arguments.tasks, arguments.agents, arguments.cores):
        if agent not in TASKS[name].env_steps:
            continue
        of_agent = records.setdefault(name, {}).setdefault(agent, {})
        if core in of_agent:
            continue
        of_agent[core] = measure(TASKS[name], agent, core, arguments.seeds)
        print(f"{name}, {agent}, {core}: {_cell(of_agent[core])}", flush=True)
        write_json(arguments.json, records)
    print(table(records))


if __name__ == "__main__":
    main()
