"""Train an agent on bsuite's experiments, and score it as bsuite does.

`python -m benchmarks.bsuite --agent ppo --experiments catch cartpole`

bsuite (Osband et al. 2020, arXiv 1908.03568) has 23 experiments of up to 22 settings each. Its
protocol is followed: one environment, which bsuite wraps to log its own episodes, for the number of
episodes of the experiment. Its own analysis scores the logs, from 0 to 1. The three experiments
with MNIST are left out: they download it. Where an experiment leaves its seed open, it is `--seed`.

Each agent has its defaults, but for what one environment requires (`AGENTS`), and is trained on
`--settings` of each experiment, by default on one in three. Records are in
`benchmarks/bsuite.json`, `--page` writes their table into a page, and `--radar` draws bsuite's
figure of the agents that were trained on all experiments.
"""

import argparse
import importlib.metadata
import inspect
import json
import math
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sebulba
from benchmarks import harness
from sebulba.figures.drawing import COLOURS, save

if TYPE_CHECKING:
    import dm_env

RECORDS = pathlib.Path(__file__).with_suffix(".json")
BEGIN, END = "<!-- bsuite: begin -->", "<!-- bsuite: end -->"
_STRIDE = 3  # one setting in three
_EXPLORATION_STEPS = 10_000  # at most, env steps over which ε falls

_ONE_ENVIRONMENT = {"actor.threads_per_device": 1, "actor.num_envs": 1}
_PPO = {**_ONE_ENVIRONMENT, "agent.name": "ppo", "actor.trajectory_length": 128}
AGENTS: dict[str, dict[str, Any]] = {
    "ppo": _PPO,
    # The unroll of one environment is one minibatch.
    "ppo_lstm": {**_PPO, "agent.lstm_size": 128, "agent.num_minibatches": 1},
    "ddqn": {**_ONE_ENVIRONMENT, "agent.name": "ddqn", "actor.trajectory_length": 8},
    "pqn": {**_ONE_ENVIRONMENT, "agent.name": "pqn", "actor.trajectory_length": 32},
    "r2d2": {**_ONE_ENVIRONMENT, "agent.name": "r2d2"},
}
"""What differs from the defaults of an agent, by the name of a row."""
_SCHEDULED_EXPLORATION = ("ddqn", "pqn")

# In the order of bsuite's plots, by what they measure.
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "basic": ("bandit", "catch", "mountain_car", "cartpole"),
    "noise": ("bandit_noise", "catch_noise", "mountain_car_noise", "cartpole_noise"),
    "scale": ("bandit_scale", "catch_scale", "mountain_car_scale", "cartpole_scale"),
    "exploration": ("deep_sea", "deep_sea_stochastic", "cartpole_swingup"),
    "credit assignment": ("umbrella_length", "umbrella_distract", "discounting_chain"),
    "memory": ("memory_len", "memory_size"),
}

_NAMES = [name for names in EXPERIMENTS.values() for name in names]


def make(
    bsuite_id: str, results_dir: str = "", purpose: str = "inspect", seed: int = 0
) -> "dm_env.Environment":
    """Return an environment; one for training logs its episodes to `results_dir`."""
    import bsuite
    from bsuite.logging import csv_logging
    from bsuite.sweep import SETTINGS

    name, _, _ = bsuite_id.partition("/")
    load, settings = bsuite.bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[name], dict(SETTINGS[bsuite_id])
    if "seed" in inspect.signature(load).parameters and settings.get("seed") is None:
        settings["seed"] = seed
    environment = load(**settings)
    if purpose != "train":
        return environment
    return csv_logging.wrap_environment(environment, bsuite_id, results_dir, overwrite=True)


def longest_episode(bsuite_id: str) -> int:
    """Return a bound on the env steps of an episode, with which a run is long enough."""
    from bsuite.sweep import SETTINGS

    settings = SETTINGS[bsuite_id]
    name, _, _ = bsuite_id.partition("/")
    of_settings = {
        "deep_sea": settings.get("size"),
        "deep_sea_stochastic": settings.get("size"),
        "memory_len": settings.get("memory_length", 0) + 1,
        "umbrella_length": settings.get("chain_length"),
    }
    family = name.removesuffix("_noise").removesuffix("_scale")
    of_family = {
        "bandit": 1,
        "catch": 9,
        "discounting_chain": 100,
        "memory_size": 3,
        "umbrella_distract": 20,
    }
    # cartpole, cartpole_swingup and mountain_car end after 1,000 steps; the last by rounding 1,001.
    return of_settings.get(name) or of_family.get(family, 1001)


def train(agent: str, bsuite_id: str, *, results_dir: str, seed: int) -> dict[str, Any]:
    """Train on one setting for the number of episodes of its experiment; return what it took."""
    from bsuite.sweep import EPISODES

    num_episodes = EPISODES[bsuite_id]
    # More than the episodes can take: the run ends by their number.
    total_env_steps = num_episodes * (longest_episode(bsuite_id) + 1)
    with tempfile.TemporaryDirectory() as directory:
        overrides = AGENTS[agent] | {
            "env.suite": "dm_env",
            "env.id": "benchmarks.bsuite:make",
            "env.options": {"bsuite_id": bsuite_id, "results_dir": results_dir},
            "run.total_episodes": num_episodes,
            "run.total_env_steps": total_env_steps,
            "seed": seed,
            "run_dir": f"{directory}/run",
        }
        if agent in _SCHEDULED_EXPLORATION:
            # A tenth of these env steps would be most of the episodes of cartpole, which end early.
            overrides["agent.epsilon"] = {
                "schedule": "linear",
                "start": 1.0,
                "end": 0.05,
                "env_steps": min(total_env_steps // 10, _EXPLORATION_STEPS),
            }
        started = time.perf_counter()
        result = sebulba.train(sebulba.load_config(None, overrides), verbose=False)
    return {
        "bsuite_id": bsuite_id,
        "seed": seed,
        "episodes": result.summary["episodes"],
        "env_steps": result.summary["env_steps"],
        "wall_time_s": round(time.perf_counter() - started, 1),
    }


def score(results_dir: str) -> dict[str, float]:
    """Return bsuite's score of each experiment that has logs."""
    import pandas as pd

    # bsuite 0.3.6 calls it, and pandas has removed it.
    pd.Series.append = lambda self, other: pd.concat([self, other])
    from bsuite.experiments import summary_analysis
    from bsuite.logging import csv_load

    scores = summary_analysis.bsuite_score(csv_load.load_one_result_set(results_dir))
    pairs = zip(scores["bsuite_env"], scores["score"], strict=True)
    return {str(name): round(float(value), 4) for name, value in pairs}


def measure(
    agent: str, bsuite_ids: Sequence[str], records: dict[str, Any], path: pathlib.Path, *, seed: int
) -> None:
    """Train on some settings, and write their scores with the earlier ones of other experiments."""
    experiments = records.setdefault(agent, {})
    for name in dict.fromkeys(each.partition("/")[0] for each in bsuite_ids):
        of_experiment = [each for each in bsuite_ids if each.partition("/")[0] == name]
        with tempfile.TemporaryDirectory() as results_dir:
            runs = [
                train(agent, each, results_dir=results_dir, seed=seed + i)
                for i, each in enumerate(of_experiment)
            ]
            found = score(results_dir)[name]
        experiments[name] = {"score": found, "runs": runs, **_stamp()}
        print(f"{agent} {name}: {found:.2f} over {len(runs)} settings", flush=True)
        path.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


def _stamp() -> dict[str, str]:
    stamp = harness.stamp()
    return {
        "bsuite": importlib.metadata.version("bsuite"),
        "commit": stamp["commit"],
        "machine": f"{os.cpu_count()} cores",
    }


def table(records: Mapping[str, Any]) -> str:
    """Return the scores as a Markdown table: a row for each experiment, and a kind's mean."""
    agents = [name for name in AGENTS if name in records]
    lines = [
        f"| measures | experiment | {' | '.join(f'`{each}`' for each in agents)} |",
        f"|---|---|{'---|' * len(agents)}",
    ]
    for kind, names in EXPERIMENTS.items():
        for name in names:
            found = [records[agent].get(name) for agent in agents]
            if any(found):
                cells = [_cell(each) for each in found]
                lines.append(f"| {kind} | `{name}` | {' | '.join(cells)} |")
        means = [_mean(records[agent], names) for agent in agents]
        if any(means):
            lines.append(f"| **{kind}** | mean | {' | '.join(each or '–' for each in means)} |")
    rows = [each for agent in agents for each in records[agent].values()]
    commits = ", ".join(sorted({f"`{each['commit']}`" for each in rows}))
    return "\n".join([*lines, "", f"Measured at {commits}."])


def _mean(experiments: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the mean score of some experiments; empty unless all were run."""
    if not all(name in experiments for name in names):
        return ""
    return f"**{statistics.mean(experiments[name]['score'] for name in names):.2f}**"


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    numbers = [int(run["bsuite_id"].partition("/")[2]) for run in found["runs"]]
    shown = ", ".join(map(str, numbers))
    if len(numbers) > 3 and numbers == list(range(0, numbers[-1] + 1, _STRIDE)):
        shown = f"0, {_STRIDE} … {numbers[-1]}"
    return f"{found['score']:.2f} ({shown})"


def radar(records: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draw bsuite's radar: the mean score over the experiments of each of its tags.

    It has the agents that were trained on all experiments. bsuite's own fails with pandas 3.
    """
    from bsuite.experiments import summary_analysis
    from matplotlib import style
    from matplotlib.figure import Figure

    style.use("default")  # bsuite sets its own
    tags = sorted(summary_analysis.ALL_TAGS)
    tags_of = {name: summary_analysis.BSUITE_INFO[name].tags for name in _NAMES}
    angles = [2 * math.pi * i / len(tags) for i in range(len(tags) + 1)]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots(subplot_kw={"projection": "polar"})
    complete = [name for name in AGENTS if records.get(name, {}).keys() >= set(_NAMES)]
    for agent, colour in zip(complete, COLOURS, strict=False):
        score = {name: records[agent][name]["score"] for name in _NAMES}
        means = [
            statistics.mean(score[name] for name in _NAMES if tag in tags_of[name]) for tag in tags
        ]
        axes.plot(angles, [*means, means[0]], color=colour, label=agent)
        axes.fill(angles, [*means, means[0]], color=colour, alpha=0.1)
    axes.set_xticks(angles[:-1], [tag.replace("_", " ") for tag in tags])
    axes.set_ylim(0, 1)
    axes.tick_params("x", pad=20)
    figure.legend(loc="outside right lower")
    save(figure, path)


def main() -> None:
    """Train, score, and write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agent", choices=AGENTS)
    parser.add_argument("--experiments", nargs="+", choices=_NAMES, default=_NAMES)
    parser.add_argument("--settings", type=int, nargs="+", help="numbers; default: one in three")
    parser.add_argument("--seed", type=int, default=301)
    parser.add_argument("--json", type=pathlib.Path, default=RECORDS, help="where the records are")
    parser.add_argument("--page", type=pathlib.Path, help="also replace the table of this page")
    parser.add_argument("--radar", type=pathlib.Path, help="also draw bsuite's radar; needs plot")
    arguments = parser.parse_args()
    records = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    if arguments.agent is not None:
        from bsuite import sweep

        chosen = []
        for name in arguments.experiments:
            ids = [each for each in sweep.SWEEP if each.partition("/")[0] == name]
            numbers = arguments.settings or range(0, len(ids), _STRIDE)
            chosen += [ids[i] for i in numbers if i < len(ids)]
        measure(arguments.agent, chosen, records, arguments.json, seed=arguments.seed)
    if arguments.radar is not None:
        radar(records, arguments.radar)
    if arguments.page is not None:
        harness.replace_between(arguments.page, BEGIN, END, table(records))


if __name__ == "__main__":
    main()
