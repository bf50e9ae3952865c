"""Train configs of three lines, and compare their returns with those of another system's defaults.

    python -m benchmarks.defaults --into ours.jsonl [--seeds 101 102]
    python benchmarks/peers/peer_sb3_defaults.py --into peer.jsonl     (in its own environment)
    python -m benchmarks.defaults --table ours.jsonl peer.jsonl

A config names a task, an agent and the number of env steps; everything else is a default. Runs that
a file has already are not repeated, so a list of runs can be interrupted. The table has the mean
return of the last 100 episodes in training and, in brackets, of 20 episodes of greedy actions. The
lines below it are interquartile means over tasks of what was learned: 0 is random actions, and 1 is
what the peer learned. Tasks on which the peer learned nothing are left out.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

import sebulba
from sebulba.evaluation.statistics import interquartile_mean

# Agent, task in EnvPool, the same task in Gymnasium, env steps.
RUNS = (
    ("ppo", "Pendulum-v1", "Pendulum-v1", 100_000),
    ("ppo", "LunarLander-v3", "LunarLander-v3", 100_000),
    ("ppo", "MountainCarContinuous-v0", "MountainCarContinuous-v0", 60_000),
    ("ppo", "HalfCheetah-v5", "HalfCheetah-v5", 60_000),
    ("ppo", "FrozenLake-v1", "FrozenLake-v1", 60_000),
    ("ppo", "Taxi-v3", "Taxi-v4", 60_000),
    ("ppo", "CartPole-v1", "CartPole-v1", 20_000),
    ("ppo", "InvertedPendulum-v5", "InvertedPendulum-v5", 20_000),
    ("ppo", "FrozenLake-v1", "FrozenLake-v1", 20_000),
    ("ppo", "Acrobot-v1", "Acrobot-v1", 20_000),
    ("ppo", "Reacher-v5", "Reacher-v5", 20_000),
    ("ppo", "Hopper-v5", "Hopper-v5", 20_000),
    ("ppo", "MountainCar-v0", "MountainCar-v0", 20_000),
    ("ppo", "CliffWalking-v1", "CliffWalking-v1", 20_000),
    ("ppo", "CheetahRun-v1", "dm_control/cheetah-run-v0", 20_000),
    ("ddqn", "CartPole-v1", "CartPole-v1", 20_000),
    ("ddqn", "Acrobot-v1", "Acrobot-v1", 20_000),
    ("ddqn", "LunarLander-v3", "LunarLander-v3", 20_000),
    ("ddqn", "MountainCar-v0", "MountainCar-v0", 20_000),
    ("sac", "Pendulum-v1", "Pendulum-v1", 6_000),
    ("sac", "InvertedPendulum-v5", "InvertedPendulum-v5", 6_000),
    ("sac", "MountainCarContinuous-v0", "MountainCarContinuous-v0", 6_000),
    ("sac", "Reacher-v5", "Reacher-v5", 6_000),
)
_PEER_AGENTS = {"ddqn": "dqn"}
_EPISODES = 20
_RANDOM_STEPS = 20_000


def main() -> None:
    """Train, or print the table of what was trained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=pathlib.Path, help="file of results, one line each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102])
    parser.add_argument("--agents", nargs="+", default=["ppo", "sac", "ddqn", "random"])
    parser.add_argument("--table", type=pathlib.Path, nargs=2, metavar=("OURS", "PEER"))
    options = parser.parse_args()
    if options.table is not None:
        print(table(*map(read, options.table)))
        return
    if options.into is None:
        parser.error("expected --into FILE or --table OURS PEER")
    done = {key_of(row) for row in read(options.into)}
    tasks = dict.fromkeys(task for _, task, _, _ in RUNS)
    runs = [*RUNS, *(("random", task, "", _RANDOM_STEPS) for task in tasks)]
    for seed in options.seeds:
        for agent, task, _, env_steps in runs:
            if agent in options.agents and (agent, task, env_steps, seed) not in done:
                row = train(agent, task, env_steps, seed)
                print(json.dumps(row), flush=True)
                with options.into.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def train(agent: str, task: str, env_steps: int, seed: int) -> dict[str, Any]:
    """Return the result of a config of three lines, as JSON values."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "three_lines.yaml")
        lines = (
            f"env: {{id: {task}}}\n"
            f"agent: {{name: {agent}}}\n"
            f"run: {{total_env_steps: {env_steps}}}\n"
        )
        path.write_text(lines)
        run_dir = str(path.parent / "run")
        result = sebulba.train(sebulba.load_config(path, {"seed": seed, "run_dir": run_dir}))
        greedy = sebulba.evaluate(run_dir, episodes=_EPISODES)
    return {
        "agent": agent,
        "env": task,
        "steps": env_steps,
        "seed": seed,
        "training": result.summary["final_episode_return_mean"],
        "episodes": result.summary["episodes"],
        "greedy": greedy.return_mean,
        "seconds": result.summary["wall_time_s"],
    }


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the rows of a file; an absent file has none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def key_of(row: dict[str, Any]) -> tuple[str, str, int, int]:
    """Return what was trained."""
    return row["agent"], row["env"], row["steps"], row["seed"]


def table(ours: Sequence[dict[str, Any]], peer: Sequence[dict[str, Any]]) -> str:
    """Return the results beside those of a peer, in Markdown."""
    lines = [
        "| task | agent | env steps | Sebulba | Stable-Baselines3 | random actions |",
        "|---|---|---|---|---|---|",
    ]
    scores: dict[str, list[float]] = {"training": [], "greedy": []}
    for agent, task, other, env_steps in RUNS:
        groups = [
            sorted((row for row in rows if key_of(row)[:3] == key), key=key_of)
            for rows, key in (
                (ours, (agent, task, env_steps)),
                (peer, (_PEER_AGENTS.get(agent, agent), other, env_steps)),
                (ours, ("random", task, _RANDOM_STEPS)),
            )
        ]
        cells = ["; ".join(map(_cell, rows)) or "–" for rows in groups]
        lines.append(f"| {task} | {agent} | {env_steps:,} | {' | '.join(cells)} |")
        for kind, found in scores.items():
            score = _score(*([row[kind] for row in rows] for rows in groups))
            found += [] if score is None else [score]
    lines += [
        f"\n{kind}: {float(interquartile_mean(np.array(found))):.2f} over {len(found)} tasks"
        for kind, found in scores.items()
        if found
    ]
    return "\n".join(lines)


def _score(
    ours: Sequence[float | None], peer: Sequence[float | None], random: Sequence[float | None]
) -> float | None:
    """Return how much was learned, beside what the peer learned; None: that is nothing."""
    returns = [[each for each in group if each is not None] for group in (ours, peer, random)]
    if not all(returns):
        return None
    learned, learned_by_peer, start = map(statistics.mean, returns)
    return (learned - start) / (learned_by_peer - start) if learned_by_peer > start else None


def _cell(row: dict[str, Any]) -> str:
    if row["training"] is None and row["greedy"] is None:
        return "no episode ended"
    return f"{_number(row['training'])} ({_number(row['greedy'])})"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


if __name__ == "__main__":
    main()
