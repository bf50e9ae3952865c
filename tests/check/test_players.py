"""What the check asks of agents whose environment has several players."""

import dataclasses

import pytest

from sebulba.check.evidence import Evidence
from sebulba.check.recording import record
from sebulba.check.subject import assemble_subject
from sebulba.check.suite import check, results_of
from sebulba.config import ActorConfig, Config, EnvConfig, LearnerConfig
from sebulba_agents.config import ImpalaConfig, PPOConfig, PQNConfig
from sebulba_agents.replay_config import DDQNConfig
from tests.check import faulty_players
from tests.check.faulty_base import FaultyConfig
from tests.check.test_faults import R2D2

CORRIDOR = EnvConfig(suite="jax", id="Corridor-v0")
TIDES = EnvConfig(suite="jax", id="Tides-v0", options={"state": True})
IMPALA = ImpalaConfig(hidden_sizes=(4,))
PPO = PPOConfig(hidden_sizes=(4,), num_minibatches=2, num_epochs=1)
REPLAY = {"batch_size": 16, "replay_capacity": 800, "min_replay_rows": 192}
SOUND = {
    "impala": IMPALA,
    "impala with memory": dataclasses.replace(IMPALA, lstm_size=4),
    "ppo": PPO,
    "ppo with a critic": dataclasses.replace(PPO, critic_observation="state"),
    "pqn": PQNConfig(hidden_sizes=(4,), num_minibatches=2, num_epochs=1),
    "ddqn": DDQNConfig(hidden_sizes=(4,), **REPLAY),
    "r2d2": dataclasses.replace(R2D2, **REPLAY),
}


def config_of(agent, *, env=CORRIDOR, seed=0):
    return Config(
        seed=seed,
        env=env,
        actor=ActorConfig(num_envs=4, trajectory_length=8, threads_per_device=1),
        learner=LearnerConfig(trajectories_per_cycle=2),
        agent=agent,
    )


def ask(agent, name, *, env=CORRIDOR, seed=0):
    config = config_of(agent, env=env, seed=seed)
    (result,) = (each for each in check(config, only=[name]).results if each.name == name)
    return result


@pytest.fixture(scope="module")
def sound():
    """A sound agent and its recording."""
    subject = assemble_subject(config_of(IMPALA))
    yield subject, record(subject)
    subject.close()


def ask_of_recording(agent, subject, recording):
    """Ask about the players of an agent, on the rows that the sound agent has recorded."""
    config = dataclasses.replace(subject.config, agent=agent)
    evidence = Evidence(dataclasses.replace(subject, config=config), recording)
    return {each.name: each for each in results_of(evidence, ["players"])}["players"]


def faulty(name, sound=IMPALA):
    assert hasattr(faulty_players, name)
    return FaultyConfig(name=f"tests.check.faulty_players:{name}", sound=sound)


FAULTS = {
    "ActsOnTheTeam": "expected that of a player to stay when another player",
    "LearnsFromTheTeam": "expected the observations of one player and the rows of another one",
    "LearnsFromWaiting": "of a player that is out",
}


def assert_found(fault, result):
    assert result.status == "fail", result.detail
    assert FAULTS[fault] in result.detail and "likely cause: " in result.detail


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_with_players_is_found_and_named(sound, fault):
    assert_found(fault, ask_of_recording(faulty(fault), *sound))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "agent", "seed"),
    [
        *((fault, "impala", 0) for fault in FAULTS),
        *(
            (fault, agent, seed)
            for fault in FAULTS
            for agent in ("impala with memory", "ppo", "pqn")
            for seed in (1, 2)
            # Few greedy actions of few choices change with what is observed.
            if (fault, agent) != ("ActsOnTheTeam", "pqn")
        ),
    ],
)
def test_the_command_finds_a_fault_with_players(fault, agent, seed):
    assert_found(fault, ask(faulty(fault, SOUND[agent]), "players", seed=seed))


@pytest.mark.parametrize(
    "agent", ["impala", *(pytest.param(each, marks=pytest.mark.slow) for each in SOUND)]
)
def test_a_sound_agent_keeps_its_players_apart(agent):
    is_central = agent == "ppo with a critic"
    result = ask(SOUND[agent], "players", env=TIDES if is_central else CORRIDOR, seed=3)
    assert result.status == "pass", result.detail
    assert "observation" in result.detail and "add up" in result.detail


def test_an_agent_that_says_so_may_mix_players(sound):
    result = ask_of_recording(faulty("SharesRewardsOnPurpose"), *sound)
    assert result.status == "pass" and "says that it mixes players" in result.detail


@pytest.mark.slow
def test_the_policy_acts_the_same_without_what_only_the_value_function_sees():
    agent = SOUND["ppo with a critic"]
    result = ask(agent, "policy-observation", env=TIDES)
    assert result.status == "pass", result.detail
    result = ask(faulty("SeesTheState", agent), "policy-observation", env=TIDES)
    assert result.status == "fail" and "without what" in result.detail
    result = ask(PPO, "policy-observation")
    assert (result.status, result.detail) == ("skip", "the policy sees all of an observation")
