"""Agents learn every kind of action space; their policies act in the units of the environment.

The best action differs by component and context. What is trained in either suite is loaded, and
steps the Gymnasium environment, which refuses what is not in its own space.
"""

import dataclasses

import gymnasium
import numpy as np
import pytest

import sebulba
from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from sebulba.envs.gymnasium_wrappers import DiscretizedBoxes
from sebulba.export.__main__ import _parser, export
from sebulba.export.loader import Policy as ExportedPolicy
from sebulba.process import EXIT_DONE
from sebulba.run import training
from tests.envs.units import CONTINUOUS, DISCRETE, NUM_CONTEXTS, ONE_CHOICE

NUM_EPISODES = 60
IDS = {"jax": "tests.envs.units:UnitsTask", "gymnasium": "tests.envs.units:Units-v0"}
CASES = [
    *(("ppo_bandit", kind) for kind in DISCRETE),
    *(("impala_bandit", kind) for kind in DISCRETE),
    *((f"{agent}_bandit", kind) for agent in ("ddqn", "pqn") for kind in ONE_CHOICE),
    *(("r2d2_recall", kind) for kind in ONE_CHOICE),
    *(("ppo_continuous_bandit", kind) for kind in CONTINUOUS),
    *(("sac_bandit", kind) for kind in CONTINUOUS),
]
BINS = {
    "jax": "sebulba.envs.discretized:Discretized",
    "gymnasium": "sebulba.envs.gymnasium_wrappers:DiscretizedBoxes",
}


def mean_return(policy, env):
    """Return the mean over episodes in which every context is drawn."""
    returns, contexts = [], set()
    for episode in range(NUM_EPISODES):
        observation, _ = env.reset(seed=episode)
        action, _ = policy(observation)
        returns.append(env.step(action)[1])
        contexts.add(int(observation.argmax()))
    assert len(contexts) == NUM_CONTEXTS
    return np.mean(returns)


def train(run_dir, suite, name, kind, arguments=()):
    """Train a config of the project in the bandit, and return its policy."""
    arguments = [*arguments, "--seed", "1020", "--run-dir", str(run_dir)]
    arguments += ["--env.suite", suite, "--env.id", IDS[suite]]
    arguments += ["--env.options", f"{{kind: {kind}}}", "--run.total-env-steps", "40_000"]
    arguments += ["--run.stop-at-return", "0.95" if kind in CONTINUOUS else "0.97"]
    config = load_config(f"configs/{name}.yaml", arguments)
    config = dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    assert training.train_to_exit_code(config) == 0
    return sebulba.load_policy(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("suite", IDS)
def test_ppo_learns_numbers_and_choices_with_a_wrapper(tmp_path, suite):
    wrappers = ["--env.wrappers", f"[{{{BINS[suite]}: {{bins: 9}}}}]"]
    policy = train(tmp_path / "run", suite, "ppo_bandit", "mixed", wrappers)
    env = DiscretizedBoxes(gymnasium.make("Units-v0", kind="mixed"), bins=9)
    assert mean_return(policy, env) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("suite", IDS)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_agent_learns_the_best_action_of_each_component(tmp_path, suite, name, kind):
    policy = train(tmp_path / "run", suite, name, kind)
    env = gymnasium.make("Units-v0", kind=kind)
    # Random actions get 0.1 to 0.5.
    assert mean_return(policy, env) >= (0.9 if kind in CONTINUOUS else 0.97)
    assert np.mean(sebulba.evaluate(policy, episodes=NUM_EPISODES).returns) >= 0.9
    arguments = [str(tmp_path / "run"), "-o", str(tmp_path / "export"), "--num-envs", "1"]
    assert export(_parser().parse_args(arguments)) == EXIT_DONE
    exported = ExportedPolicy(tmp_path / "export")

    def first(tree):
        if isinstance(tree, dict):
            return {name: first(each) for name, each in tree.items()}
        return tuple(map(first, tree)) if isinstance(tree, tuple) else tree[0]

    def act(observation):
        action, state = exported(observation[None])
        return first(action), state

    assert mean_return(act, env) == pytest.approx(mean_return(policy, env), abs=0.02)
