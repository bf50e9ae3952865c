"""The choice of evaluation episodes, and their reproducibility."""

import jax
import pytest

from sebulba.config import EnvConfig
from sebulba.envs.base import EnvironmentTimeout
from sebulba.evaluation.episodes import EvaluationPlan, Evaluator
from sebulba.toolkit.prng import environment_seed
from tests.evaluation import scripted
from tests.toys import ToyAgent, ToyConfig, toy_run_spec

SCRIPTED = "tests.evaluation.scripted:make"


def make_plan(**changes):
    settings = {
        "env": EnvConfig(suite=SCRIPTED, id="Scripted"),
        "episodes": 6,
        "num_envs": 3,
        "max_episode_steps": 100,
        "greedy": True,
        "seed": 1,
    }
    return EvaluationPlan(**settings | changes)


def play(evaluation):
    while not evaluation.is_done:
        evaluation.advance()
    evaluation.close()
    return evaluation.result()


def play_toy(plan, **kwargs):
    agent = ToyAgent(ToyConfig(), toy_run_spec())
    networks = agent.init_networks(jax.random.key(0))
    evaluator = Evaluator(agent, plan, device=jax.devices()[0], num_training_envs=8, **kwargs)
    return play(evaluator.start(networks, env_steps=0))


def play_stored(stored, *, times=1, **changes):
    plan = make_plan(env=stored.config.env, **changes)
    evaluator = Evaluator(
        stored.agent, plan, device=stored.device, num_training_envs=stored.num_training_envs
    )
    return [
        play(evaluator.start(stored.networks, env_steps=stored.env_steps)) for _ in range(times)
    ]


def test_short_episodes_do_not_crowd_out_long_ones():
    # Environment b's episodes take b + 1 steps; the first six to end would have length 1 or 2.
    played = play_toy(make_plan())
    assert [[record.episode_length for record in records] for records in played.episodes] == [
        [1, 1],
        [2, 2],
        [3, 3],
    ]
    assert played.unfinished == 0


@pytest.mark.parametrize(("episodes", "quota"), [(6, [2, 2, 2]), (7, [3, 2, 2]), (2, [1, 1])])
def test_quota_adds_up_to_the_requested_episodes(episodes, quota):
    assert make_plan(episodes=episodes).quota.tolist() == quota


def test_a_lost_life_does_not_end_an_episode():
    plan = make_plan(env=EnvConfig(suite=SCRIPTED, id="Scripted", options={"lives": 3}))
    played = play_toy(plan)
    assert [record.episode_return for record in played.episodes[1]] == [6.0, 6.0]


def test_endless_episodes_do_not_block_the_evaluation():
    plan = make_plan(env=EnvConfig(suite=SCRIPTED, id="Scripted", options={"never_ends": True}))
    played = play_toy(plan)
    assert played.records == []
    assert played.unfinished == 6


def test_a_timeout_of_an_environment_ends_the_evaluation():
    plan = make_plan(env=EnvConfig(suite=SCRIPTED, id="Scripted", options={"hangs": True}))
    with pytest.raises(EnvironmentTimeout, match=r"no answer within 2\.5 s"):
        play_toy(plan, env_timeout_s=2.5)


@pytest.mark.parametrize(
    ("name", "greedy"),
    [
        ("impala", True),
        pytest.param("r2d2", True, marks=pytest.mark.slow),
        pytest.param("sac", False, marks=pytest.mark.slow),
        ("cartpole", False),
    ],
)
def test_the_same_seed_plays_bitwise_the_same_episodes(policy_of, name, greedy):
    first, second = play_stored(policy_of(name).stored, times=2, greedy=greedy)
    assert first == second
    assert len(first.records) == 6


@pytest.mark.slow
def test_another_seed_plays_different_episodes(policy_of):
    stored = policy_of("sac").stored
    assert play_stored(stored, seed=1) != play_stored(stored, seed=2)


def test_evaluations_of_neighbouring_seeds_and_training_share_no_environment_seed():
    """Suites give environment `i` of a batch the seed of the batch plus `i`."""
    num_envs, made = 3, []
    for seed in (0, 1, 2):
        scripted.SEEDS.clear()
        play_toy(make_plan(seed=seed, num_envs=num_envs))
        made += scripted.SEEDS
    made += [environment_seed(seed, "actor", actor) for seed in (0, 1, 2) for actor in (0, 1)]
    seeds = {seed + number for seed in made for number in range(num_envs)}
    assert len(seeds) == num_envs * len(made) == num_envs * 9
