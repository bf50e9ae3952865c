"""Episodes that end as soon as they begin are told once, with their numbers."""

import gymnasium
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.ring.records import CycleReport, FinishedEpisodes, UnrollInfo
from sebulba.run import training
from sebulba.run.short_episodes import ShortEpisodes
from tests.evaluation.runs import tiny_config


def told_of(*cycles):
    """Returns the messages after learner cycles with episodes of these lengths."""
    messages = []
    observer = ShortEpisodes(on_message=messages.append)
    for number, lengths in enumerate(cycles):
        episodes = FinishedEpisodes(
            episode_return=np.zeros(len(lengths), np.float32),
            episode_length=np.array(lengths, np.int32),
            has_results=np.ones(len(lengths), bool),
        )
        info = UnrollInfo(
            actor_id=0,
            sequence_number=number,
            policy_version=0,
            env_steps=100,
            num_episodes=len(episodes),
            episodes=episodes,
        )
        observer.on_cycle(
            CycleReport(num_cycles=number, infos=[info], policy_lags=[0], metrics=[], queue_depth=0)
        )
    return messages


def test_episodes_of_one_step_after_longer_ones_are_told_once():
    (message,) = told_of([40, 37], [1] * 60, [1] * 60, [1] * 60)
    assert "100 of the last 100 episodes lasted at most 2 env steps" in message
    assert "the longest one of the run 40" in message
    assert "reset of the environment does not clear" in message
    (message,) = told_of([7, *[2] * 49], [9, *[1] * 49])
    assert message.startswith("warning: 98 of the last 100 episodes")


def test_episodes_that_never_lasted_longer_are_a_note():
    (message,) = told_of([1] * 99, [1], [1] * 100)
    assert message.startswith("note: each of the last 100 episodes lasted 1 env step")


@pytest.mark.parametrize(
    "cycles",
    [
        ([1] * 99,),
        ([40], [1] * 94, [3] * 6),
        ([2] * 200,),  # a task of two steps
        ([5, 6, 7] * 50,),
    ],
)
def test_other_episodes_are_not_told(cycles):
    assert told_of(*cycles) == []


class Forgetful(gymnasium.Env):
    """Ends its first episode after 8 steps, and does not clear its flag in `reset`."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        return np.zeros(2, np.float32), 1.0, self.num_steps >= 8, False, {}


def test_the_console_tells_of_an_environment_that_forgets_to_clear_its_flag(tmp_path, capsys):
    env = EnvConfig(suite="gymnasium", id=f"{__name__}:Forgetful")
    assert training.train_to_exit_code(tiny_config("impala", tmp_path, env=env)) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "lasted" in line]
    assert len(lines) == 1
    assert "the longest one of the run 8" in lines[0]
