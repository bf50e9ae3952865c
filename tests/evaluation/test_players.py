"""Evaluations and videos of several players count environments, and an episode is a team's."""

import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.evaluation.episodes import EvaluationPlan, Evaluator
from sebulba.evaluation.recording import Recording
from sebulba.evaluation.statistics import summarize
from tests.envs.leavers import FIRST_LEAVES
from tests.toys import ToyAgent, ToyConfig, toy_run_spec

LEAVERS = EnvConfig(suite="jax", id="tests.envs.leavers:Leavers")
LENGTHS = {FIRST_LEAVES + 4 + late for late in range(4)}


def play(*, episodes, num_envs, greedy=True):
    environment = make_environment(LEAVERS, num_envs=1, seed=0)
    agent = ToyAgent(ToyConfig(), toy_run_spec(environment=environment.spec, num_envs=4))
    plan = EvaluationPlan(
        env=LEAVERS,
        episodes=episodes,
        num_envs=num_envs,
        max_episode_steps=100,
        greedy=greedy,
        seed=1,
    )
    evaluator = Evaluator(agent, plan, device=jax.devices()[0], num_training_envs=24)
    evaluation = evaluator.start(agent.init_networks(jax.random.key(0)), env_steps=0)
    while not evaluation.is_done:
        evaluation.advance()
    evaluation.close()
    return evaluation.environment, evaluation.result()


@pytest.mark.parametrize("greedy", [True, False])
def test_players_that_are_out_are_no_episodes_of_an_evaluation(greedy):
    environment, played = play(episodes=5, num_envs=2, greedy=greedy)
    assert environment.num_envs == 2
    assert [len(each) for each in played.episodes] == [3, 2]
    assert played.unfinished == 0
    for record in played.records:
        assert record.episode_length in LENGTHS
        # The mean over players that receive at least 1 in each step and leave 2 steps apart.
        assert record.episode_return >= record.episode_length - 2
        assert len(record.returns_of_players) == 3
        assert record.episode_return == pytest.approx(np.mean(record.returns_of_players))
    means = [summarize(played.records, seed=0)[f"return_mean_of_player_{p}"] for p in range(3)]
    assert means == sorted(means)  # who leaves later has received more


def test_an_evaluation_of_fewer_episodes_than_players_has_an_environment_for_each():
    environment, played = play(episodes=2, num_envs=8)
    assert environment.num_envs == 2
    assert [len(each) for each in played.episodes] == [1, 1]


def test_a_video_ends_with_the_last_player():
    environment = make_environment(LEAVERS, num_envs=2, seed=0)
    recording = Recording(environment, episodes=1)
    recording.reset()
    for _ in range(30):
        recording.step(np.zeros(6, np.int32))
    frames = [int(frame[0, 0, 0]) for frame in recording.frames()]
    assert len(frames) - 1 in LENGTHS
    assert frames == list(range(len(frames)))
