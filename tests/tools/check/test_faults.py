"""Every planted fault fails the check that is about it; a sound agent passes all checks."""

import dataclasses

import pytest

from sebulba.config import ActorConfig, Config, EnvConfig, LearnerConfig
from sebulba.tools.check import acting, efficiency, learner_devices, learning, randomness
from sebulba.tools.check.recording import record
from sebulba.tools.check.sensitivity import LossSensitivity
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
    """A sound agent and its recording."""
    subject = assemble_subject(config_of(IMPALA))
    return subject, record(subject)


def with_fault(subject, fault):
    """Return the subject with a faulty agent; it is checked on the sound agent's recording."""
    config = dataclasses.replace(subject.config, agent=faulty(fault, subject.config.agent))
    agent, _ = dataclasses.replace(subject, config=config).agent_on(1)
    return dataclasses.replace(subject, config=config, agent=agent)


def failures(results):
    return {result.name: result.detail for result in results if result.status == "fail"}


def learn(subject, recording):
    return learning.check_learning(subject, LossSensitivity(subject, recording))


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
    assert efficiency.check_compilation(subject, recording).status == "pass"
    assert efficiency.check_donation(subject, recording).status == "pass"


def test_late_compilations_and_kept_buffers_are_named(sound):
    subject, recording = sound
    recording = dataclasses.replace(
        recording, late_compilations=("jit(cycle)",), kept_learner_leaf="learner state.step"
    )
    detail = efficiency.check_compilation(subject, recording).detail
    assert detail.startswith("jit(cycle): expected no compilation")
    assert efficiency.check_donation(subject, recording).detail.startswith("learner state.step")


@pytest.mark.parametrize(
    ("fault", "name", "expected"),
    [
        ("ShiftedReward", learning.REWARDS, "ignore the reward in a reset row (actor"),
        ("MergedDone", learning.TRUNCATION, "use the observation in a truncated row (actor"),
        (
            "NeverResetInLearner",
            learning.MEMORY,
            "ignore initial_state where row 0 is a reset",
        ),
    ],
)
def test_a_fault_of_learning_is_found_and_named(sound, fault, name, expected):
    subject, recording = sound
    found = failures(learn(with_fault(subject, fault), recording))
    assert found[name].startswith(f"expected the loss to {expected}")
    for part in ("row", "env", "changing it", "likely cause: "):
        assert part in found[name]


def test_an_agent_rewarded_for_final_observations_has_no_failure(sound):
    subject, recording = sound
    assert failures(learn(with_fault(subject, "RewardsObservations"), recording)) == {}


def test_an_agent_that_never_terminates_is_found_by_the_terminated_flag(sound):
    subject, recording = sound
    found = failures(learn(with_fault(subject, "RewardsObservationsWithoutEnd"), recording))
    assert found[learning.TERMINATION].startswith(
        "expected the loss to use the terminated flag in a terminated row (actor"
    )


def test_an_lstm_that_is_not_reset_is_found_and_named(sound):
    subject, recording = sound
    result = acting.check_forgetting(with_fault(subject, "NeverReset"), recording)
    assert result.status == "fail"
    assert result.detail.startswith("greedy act: ")
    assert "(actor 0, row " in result.detail


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
def test_a_state_split_along_the_wrong_axis_is_found(sound, fault, status):
    subject, _ = sound
    if fault is not None:
        subject = with_fault(subject, fault)
    result = learner_devices.check_splitting(subject)
    assert result.status == status
    if status == "fail":
        leaf, _, rest = result.detail.partition(": ")
        assert leaf.startswith("actor state.memory.core.")
        assert rest.startswith("expected it split along axis 0, got it split along axis 1")


@pytest.mark.parametrize(("fault", "status"), [(None, "pass"), ("EpsilonPerActor", "fail")])
def test_an_epsilon_per_actor_is_found(fault, status):
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
        ("WrongAxis", IMPALA, learner_devices.SPLITTING),
        ("EpsilonPerActor", R2D2, randomness.EXPLORATION),
        ("LocalMean", IMPALA, learner_devices.EQUALITY),
    ],
)
def test_the_whole_check_finds_a_fault(fault, agent, name):
    report = check(config_of(faulty(fault, agent)))
    assert report.has_failures
    assert name in failures(report.results)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [IMPALA, R2D2], ids=["impala", "r2d2"])
def test_the_whole_check_of_a_sound_agent_has_no_failure(agent):
    assert failures(check(config_of(agent)).results) == {}
