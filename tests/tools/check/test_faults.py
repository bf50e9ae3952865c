"""Every planted fault is found, by the check that is about it; the sound agent has none."""

import dataclasses

import pytest

from sebulba.config import ActorConfig, Config, EnvConfig, LearnerConfig
from sebulba.tools.check import acting, learning, placing, randomness, running
from sebulba.tools.check.influence import Lesson
from sebulba.tools.check.recording import record
from sebulba.tools.check.subject import assemble_subject
from sebulba.tools.check.suite import check
from sebulba_agents.config import ImpalaConfig
from sebulba_agents.replay_config import R2D2Config
from tests.tools.check.faulty_agents import faulty

IMPALA = ImpalaConfig(hidden_sizes=(4,), lstm_size=4)
R2D2 = R2D2Config(
    torso="mlp",
    hidden_sizes=(4,),
    lstm_size=4,
    dueling_size=4,
    burn_in=4,
    learn_length=8,
    n_step=2,
    batch_size=16,
    replay_ratio=8.0,
    replay_capacity=800,
    min_replay_rows=120,
)


def config_of(agent):
    return Config(
        env=EnvConfig(suite="jax", id="Recall-v0"),
        actor=ActorConfig(num_envs=4, trajectory_length=8, threads_per_device=2),
        learner=LearnerConfig(trajectories_per_cycle=2),
        agent=agent,
    )


@pytest.fixture(scope="module")
def sound():
    """A sound agent, and what it recorded."""
    subject = assemble_subject(config_of(IMPALA))
    return subject, record(subject)


def with_fault(subject, fault):
    """Returns the subject with a faulty agent, on what the sound one recorded."""
    config = dataclasses.replace(subject.config, agent=faulty(fault, subject.config.agent))
    agent, _ = dataclasses.replace(subject, config=config).agent_on(1)
    return dataclasses.replace(subject, config=config, agent=agent)


def failures(results):
    return {result.name: result.detail for result in results if result.status == "fail"}


def learn(subject, recording):
    return learning.check_learning(subject, Lesson(subject, recording))


def test_a_sound_agent_learns_from_the_right_rows(sound):
    results = learn(*sound)
    assert {result.status for result in results} == {"pass"}


def test_acting_and_rows_of_a_sound_agent_are_right(sound):
    results = [
        check_it(*sound)
        for check_it in (acting.check_alignment, acting.check_states, acting.check_forgetting)
    ]
    assert {result.status for result in results} == {"pass"}


def test_a_ring_donates_its_states_and_compiles_nothing_twice(sound):
    subject, recording = sound
    assert running.check_compilation(recording).status == "pass"
    assert running.check_donation(subject, recording).status == "pass"


def test_late_compilations_and_kept_buffers_are_named(sound):
    subject, recording = sound
    recording = dataclasses.replace(
        recording, late_compilations=("jit(cycle)",), kept_learner_leaf="the learner's state.step"
    )
    assert running.check_compilation(recording).detail.startswith("jit(cycle): expected nothing")
    assert running.check_donation(subject, recording).detail.startswith("the learner's state.step")


@pytest.mark.parametrize(
    ("fault", "name", "expected"),
    [
        ("ShiftedReward", learning.REWARDS, "reward of a reset row (actor"),
        ("MergedDone", learning.TRUNCATION, "observation of a truncated row (actor"),
        ("NeverResetInLearner", learning.MEMORY, "initial_state (actor"),
    ],
)
def test_a_fault_of_learning_is_found_and_named(sound, fault, name, expected):
    subject, recording = sound
    found = failures(learn(with_fault(subject, fault), recording))
    assert found[name].startswith(expected)
    assert "row" in found[name] and "env" in found[name] and "got" in found[name]


def test_an_agent_that_is_paid_for_final_observations_has_no_failure(sound):
    subject, recording = sound
    assert failures(learn(with_fault(subject, "PaidForArriving"), recording)) == {}


def test_one_that_never_takes_an_episode_for_over_is_found_by_the_kind_of_end(sound):
    subject, recording = sound
    found = failures(learn(with_fault(subject, "PaidAndNeverOver"), recording))
    assert found[learning.TERMINATION].startswith("kind of end of a terminated row (actor")


def test_an_lstm_that_is_not_reset_is_found_and_named(sound):
    subject, recording = sound
    result = acting.check_forgetting(with_fault(subject, "NeverReset"), recording)
    assert result.status == "fail"
    assert result.detail.startswith("act's ")
    assert "(actor 0), row" in result.detail


@pytest.mark.parametrize("fault", [None, "SharedKey"])
def test_actors_that_share_a_key_are_found(sound, fault):
    subject, recording = sound
    if fault is not None:
        subject = assemble_subject(config_of(faulty(fault, IMPALA)))
    actors, environments = randomness.check_randomness(subject, recording)
    assert actors.status == ("fail" if fault else "pass")
    assert environments.status == "pass"
    assert not fault or "actors 0 and 1" in actors.detail


@pytest.mark.parametrize(("fault", "status"), [(None, "pass"), ("WrongAxis", "fail")])
def test_a_state_that_is_split_along_the_wrong_axis_is_found(sound, fault, status):
    subject, _ = sound
    if fault is not None:
        subject = with_fault(subject, fault)
    result = placing.check_splitting(subject)
    assert result.status == status
    if status == "fail":
        leaf, _, rest = result.detail.partition(": ")
        assert leaf.startswith("actor state.memory.core.")
        assert rest == "expected a split of axis 0 of (4, 4), got a split of axis 1"


@pytest.mark.parametrize(("fault", "status"), [(None, "pass"), ("EpsilonOfThread", "fail")])
def test_an_epsilon_of_a_thread_is_found(fault, status):
    agent = R2D2 if fault is None else faulty(fault, R2D2)
    result = randomness.check_exploration(assemble_subject(config_of(agent)))
    assert result.status == status
    assert "epsilon" in result.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "agent", "name"),
    [
        ("ShiftedReward", IMPALA, learning.REWARDS),
        ("ShiftedReward", R2D2, learning.REWARDS),
        ("MergedDone", IMPALA, learning.TRUNCATION),
        ("MergedDone", R2D2, learning.TRUNCATION),
        ("NeverReset", IMPALA, acting.FORGETTING),
        ("NeverReset", R2D2, acting.FORGETTING),
        ("SharedKey", IMPALA, randomness.ACTORS),
        ("SharedKey", R2D2, randomness.ACTORS),
        ("WrongAxis", IMPALA, placing.SPLITTING),
        ("EpsilonOfThread", R2D2, randomness.EXPLORATION),
        ("LocalMean", IMPALA, placing.EQUALITY),
    ],
)
def test_the_whole_check_finds_a_fault(fault, agent, name):
    report = check(config_of(faulty(fault, agent)))
    assert report.has_failures
    assert report.result(name).status == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("agent", [IMPALA, R2D2], ids=["impala", "r2d2"])
def test_the_whole_check_of_a_sound_agent_has_no_failure(agent):
    assert failures(check(config_of(agent)).results) == {}
