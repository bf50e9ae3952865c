"""Train Stable-Baselines3 with its defaults on the runs of `benchmarks.defaults`.

Needs an environment of its own: `pip install stable-baselines3 shimmy dm_control
"gymnasium[box2d,mujoco]" "mujoco<4"`. Each run has one environment and one thread of torch, as
`PPO("MlpPolicy", env)` has.
"""

import argparse
import ast
import json
import pathlib
import time

import gymnasium
import numpy as np
import shimmy
import torch
from stable_baselines3 import DQN, PPO, SAC

_ALGORITHMS = {"ppo": PPO, "sac": SAC, "ddqn": DQN}
_EPISODES = 20
_MAX_EPISODE_STEPS = 1_000  # Some tasks have no limit, and a bad policy no end.


def main():
    """Train each run that the file of results does not have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102])
    options = parser.parse_args()
    torch.set_num_threads(1)
    gymnasium.register_envs(shimmy)
    text = options.into.read_text() if options.into.is_file() else ""
    done = [json.loads(line) for line in text.splitlines()]
    for seed in options.seeds:
        for agent, _, task, env_steps in runs():
            name = _ALGORITHMS[agent].__name__.lower()
            key = {"agent": name, "env": task, "steps": env_steps, "seed": seed}
            if not any(key.items() <= row.items() for row in done):
                with options.into.open("a") as file:
                    file.write(json.dumps({**key, **train(agent, task, env_steps, seed)}) + "\n")


def runs():
    """Return `RUNS` of `benchmarks.defaults`, which this environment cannot import."""
    tree = ast.parse(pathlib.Path(__file__).parents[1].joinpath("defaults.py").read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "RUNS"
    )
    return ast.literal_eval(value)


def make(task):
    """Return one environment, with float32 vectors as observations."""
    limit = {"max_episode_steps": 3_000} if task.startswith("CliffWalking") else {}
    env = gymnasium.make(task, **limit)
    if isinstance(env.observation_space, gymnasium.spaces.Dict):
        env = gymnasium.wrappers.FlattenObservation(env)
    if env.observation_space.dtype == np.float64:
        env = gymnasium.wrappers.DtypeObservation(env, np.float32)
    return env


def train(agent, task, env_steps, seed):
    """Return the results of one run as JSON values."""
    begin = time.time()
    model = _ALGORITHMS[agent]("MlpPolicy", make(task), seed=seed, device="cpu")
    model.learn(env_steps)
    seconds = time.time() - begin
    returns = [float(episode["r"]) for episode in model.ep_info_buffer]
    return {
        "training": float(np.mean(returns)) if returns else None,
        "episodes": len(returns),
        "greedy": float(np.mean([play(model, make(task), i) for i in range(_EPISODES)])),
        "seconds": seconds,
    }


def play(model, env, number):
    """Return the return of one episode of greedy actions."""
    observation, _ = env.reset(seed=10_000 + number)
    total = 0.0
    for _ in range(_MAX_EPISODE_STEPS):
        action, _ = model.predict(observation, deterministic=True)
        # Toy text looks the action up in a dict, where an array is no key.
        observation, reward, terminated, truncated, _ = env.step(
            action if action.ndim else int(action)
        )
        total += float(reward)
        if terminated or truncated:
            break
    return total


if __name__ == "__main__":
    main()
