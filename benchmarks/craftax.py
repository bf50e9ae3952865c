"""Train on Craftax-Classic, and measure how often each achievement is unlocked.

    python -m benchmarks.craftax --agents ppo ppo_lstm --seeds 301 302 303 [--page PAGE]

Craftax-Classic (Matthews et al. 2024, arXiv 2402.16801) is Crafter (Hafner 2021, arXiv 2109.06780)
in JAX: each of 22 achievements pays 1 once in an episode, and a point of health 0.1. Each agent has
its defaults, or a config that comes with Sebulba, and is trained for 1M env steps on symbolic
observations. Then it plays with sampled actions.

Records are in `benchmarks/craftax.json`; seeds that are there are not trained again. `--page`
writes their tables into a page.
"""

import argparse
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sebulba
from benchmarks import harness

RECORDS = pathlib.Path(__file__).with_suffix(".json")
BEGIN, END = "<!-- craftax: begin -->", "<!-- craftax: end -->"
ID = "Craftax-Classic-Symbolic-v1"
AGENTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "ppo": (None, {"agent.name": "ppo"}),
    "ppo_lstm": (None, {"agent.name": "ppo", "agent.lstm_size": 128}),
    "ppo_craftax_classic": ("ppo_craftax_classic", {}),
}
"""By the name of a row: a config, or None, and what three lines say beside the environment."""


def train(agent: str, seed: int, *, env_steps: int, num_episodes: int) -> dict[str, Any]:
    """Train, play, and return the mean return and the share of episodes with each achievement."""
    with tempfile.TemporaryDirectory() as directory:
        config, settings = AGENTS[agent]
        overrides = settings | {
            "env.suite": "craftax",
            "env.id": ID,
            "run.total_env_steps": env_steps,
            "seed": seed,
            "run_dir": f"{directory}/run",
        }
        started = time.perf_counter()
        result = sebulba.train(sebulba.load_config(config, overrides), verbose=False)
        wall_time_s = time.perf_counter() - started
        policy = sebulba.load_policy(result.run_dir, greedy=False, seed=seed)
    returns, unlocked = play(policy, num_episodes=num_episodes, seed=seed)
    return {
        "seed": seed,
        "env_steps": result.env_steps,
        "return_in_training": result.episode_return_mean,
        "return": float(returns.mean()),
        "achievements": {name: float(share) for name, share in unlocked.items()},
        "wall_time_s": round(wall_time_s, 1),
        "commit": harness.stamp()["commit"],
        "machine": f"{os.cpu_count()} cores",
    }


def play(policy: Any, *, num_episodes: int, seed: int) -> tuple[np.ndarray, dict[str, float]]:
    """Play an episode in each of `num_episodes` worlds.

    Returns:
        The returns, float32 `[num_episodes]`, and the share of episodes with each achievement.
    """
    from craftax.craftax_classic.constants import Achievement
    from craftax.craftax_env import make_craftax_env_from_name

    environment = make_craftax_env_from_name(ID, auto_reset=False)
    params = environment.default_params
    reset = jax.jit(jax.vmap(lambda key: environment.reset_env(key, params)))
    step = jax.jit(jax.vmap(lambda *arguments: environment.step_env(*arguments, params)[:4]))
    key = jax.random.key(seed)
    observation, world = reset(jax.random.split(key, num_episodes))
    over = jnp.zeros(num_episodes, bool)
    returns, unlocked = jnp.zeros(num_episodes), world.achievements
    state, reward = policy.initial_state(num_episodes), None
    while not over.all():  # Craftax ends each episode after 10,000 steps
        action, state = policy(observation, state, reward=reward)
        key, of_step = jax.random.split(key)
        observation, world, reward, is_over = step(
            jax.random.split(of_step, num_episodes), world, jnp.asarray(action)
        )
        returns = returns + jnp.where(over, 0.0, reward)
        unlocked = jnp.where(over[:, None], unlocked, world.achievements)
        over = over | is_over
    shares = np.asarray(unlocked, float).mean(axis=0)
    return np.asarray(returns), {each.name.lower(): shares[each.value] for each in Achievement}


def score(achievements: Mapping[str, float]) -> float:
    """Return Crafter's score, in percent: a geometric mean of the shares of episodes."""
    percent = 100 * np.array(list(achievements.values()))
    return float(np.exp(np.log1p(percent).mean()) - 1)


def tables(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the returns and scores of each agent, and the share of each achievement."""
    lines = [
        "| agent | seeds | return in training | return | return / 22 | score | wall time |",
        "|---|---|---|---|---|---|---|",
    ]
    for agent, runs in records.items():
        returns = ", ".join(f"{run['return']:.2f}" for run in runs)
        training = ", ".join(f"{run['return_in_training']:.2f}" for run in runs)
        share = np.mean([run["return"] for run in runs]) / 22
        scores = ", ".join(f"{score(run['achievements']):.1f}" for run in runs)
        seeds = ", ".join(str(run["seed"]) for run in runs)
        slowest = max(run["wall_time_s"] for run in runs)
        lines.append(
            f"| `{agent}` | {seeds} | {training} | {returns} | {share:.1%} | {scores} %"
            f" | {slowest:,.0f} s |"
        )
    names = next(iter(records.values()))[0]["achievements"]
    means = {
        agent: {name: np.mean([run["achievements"][name] for run in runs]) for name in names}
        for agent, runs in records.items()
    }
    lines += [
        "",
        f"| achievement | {' | '.join(f'`{agent}`' for agent in records)} |",
        f"|---|{'---|' * len(records)}",
    ]
    best_first = sorted(names, key=lambda name: -max(each[name] for each in means.values()))
    for name in best_first:
        cells = " | ".join(f"{each[name]:.1%}" for each in means.values())
        lines.append(f"| {name.replace('_', ' ')} | {cells} |")
    commits = sorted({run["commit"] for runs in records.values() for run in runs})
    measured = ", ".join(f"`{each}`" for each in commits)
    return "\n".join([*lines, "", f"Measured at {measured}."])


def main() -> None:
    """Train, play, and write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[301, 302, 303])
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=256, help="to play after the training")
    parser.add_argument("--json", type=pathlib.Path, default=RECORDS, help="where the records are")
    parser.add_argument("--page", type=pathlib.Path, help="also replace the tables of this page")
    arguments = parser.parse_args()
    records = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for agent in arguments.agents:
        runs = records.setdefault(agent, [])
        for seed in arguments.seeds:
            if any(run["seed"] == seed for run in runs):
                continue
            runs.append(
                train(agent, seed, env_steps=arguments.env_steps, num_episodes=arguments.episodes)
            )
            print(json.dumps({"agent": agent, **runs[-1]}), flush=True)
            arguments.json.write_text(json.dumps(records, indent=1) + "\n")
    if arguments.page is not None:
        harness.replace_between(arguments.page, BEGIN, END, tables(records))


if __name__ == "__main__":
    main()
