"""Every planted fault fails the check that is about it; a sound agent passes all checks."""

import dataclasses

import pytest

from sebulba.check.evidence import Evidence
from sebulba.check.recording import record
from sebulba.check.subject import assemble_subject
from sebulba.check.suite import QUESTIONS, check, results_of
from sebulba.config import ActorConfig, Config, EnvConfig, LearnerConfig
from sebulba.errors import ConfigError
from sebulba_agents.config import ImpalaConfig, PPOConfig, PQNConfig
from sebulba_agents.replay_config import DDQNConfig, GumbelMuZeroConfig, R2D2Config, SACConfig
from tests.check.faulty_base import faulty
from tests.check.small_agents import SmallConfig
from tests.extras import needs_search

IMPALA = ImpalaConfig(hidden_sizes=(4,), lstm_size=4)
R2D2 = R2D2Config(
    network="mlp",
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


SMALL_REPLAY = {"batch_size": 16, "replay_ratio": 8.0, "replay_capacity": 800}
AGENTS = {
    "impala": IMPALA,
    "r2d2": R2D2,
    "ppo": PPOConfig(hidden_sizes=(4,), num_minibatches=4, num_epochs=2),
    "lagging ppo": PPOConfig(
        hidden_sizes=(4,),
        num_minibatches=4,
        num_epochs=2,
        objective="decoupled",
        targets="vtrace",
    ),
    "ddqn": DDQNConfig(hidden_sizes=(4,), min_replay_rows=120, **SMALL_REPLAY),
    "prioritised ddqn": DDQNConfig(
        hidden_sizes=(4,), min_replay_rows=120, priority_exponent=0.6, **SMALL_REPLAY
    ),
    "muzero": GumbelMuZeroConfig(
        hidden_sizes=(8,),
        latent_size=8,
        model_sizes=(8,),
        num_simulations=2,
        unroll_length=3,
        n_step=2,
        num_bins=11,
        priority_exponent=1.0,
        min_replay_rows=120,
        **SMALL_REPLAY,
    ),
    "pqn": PQNConfig(hidden_sizes=(4,), num_minibatches=4, num_epochs=2),
    "sac": SACConfig(hidden_sizes=(8,), min_replay_rows=120, **SMALL_REPLAY),
    "small": SmallConfig(),
    "continuous": SmallConfig(discount=0.8),
}


def config_of(agent, seed=0):
    is_continuous = agent in (AGENTS["sac"], AGENTS["continuous"])
    return Config(
        seed=seed,
        env=EnvConfig(suite="jax", id="ContinuousBandit-v0" if is_continuous else "Recall-v0"),
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


def ask(subject, recording, *names):
    results = results_of(Evidence(subject, recording), names)
    return {result.name: result for result in results if result.name in names}


LEARNING = ("rewards", "termination", "masks", "truncation", "memory", "episodes")


def test_a_sound_agent_learns_from_the_right_rows(sound):
    results = ask(*sound, *LEARNING)
    assert {result.status for result in results.values()} == {"pass"}


def test_acting_and_rows_of_a_sound_agent_are_right(sound):
    results = ask(*sound, "rows", "states", "resets", "donation", "compilation")
    assert {result.status for result in results.values()} == {"pass"}


def test_late_compilations_and_kept_buffers_are_named(sound):
    subject, recording = sound
    recording = dataclasses.replace(
        recording, late_compilations=("jit(cycle)",), kept_leaf="learner state.step"
    )
    results = ask(subject, recording, "donation", "compilation")
    assert results["compilation"].detail.startswith("jit(cycle): expected no compilation")
    assert results["donation"].detail.startswith("learner state.step")


@pytest.mark.parametrize(
    ("fault", "name", "expected"),
    [
        ("ShiftedReward", "rewards", "ignore the reward in a reset row (actor"),
        ("MergedDone", "truncation", "use the observation in a truncated row (actor"),
        ("BootstrapsFromReset", "truncation", "use the observation in a truncated row (act"),
        ("NeverResetInLearner", "memory", "ignore initial_state where row 0 is a reset"),
    ],
)
def test_a_fault_of_learning_is_found_and_named(sound, fault, name, expected):
    subject, recording = sound
    found = ask(with_fault(subject, fault), recording, name)[name]
    assert found.status == "fail"
    assert found.detail.startswith(f"expected the loss to {expected}")
    for part in ("row", "env", "changing it", "likely cause: "):
        assert part in found.detail


def core(name):
    """Return settings of an agent with a core of `tests/check/cores.py`."""
    return dataclasses.replace(IMPALA, core=f"tests.check.cores:{name}")


@pytest.mark.parametrize("name", ["LRU", pytest.param("Attention", marks=pytest.mark.slow)])
def test_the_memory_of_a_complex_state_and_of_attention_after_a_layer_norm_is_seen(name):
    subject = assemble_subject(config_of(core(name)))
    recording = record(subject)
    sound = ask(subject, recording, "memory")["memory"]
    assert (sound.status, sound.detail[:31]) == ("pass", "the loss uses initial_state, an")
    for fault, words in (
        ("ForgetsStoredState", "expected the loss to use it where row 0 is no reset"),
        ("NeverResetInLearner", "expected the loss to ignore initial_state where row 0 is a reset"),
    ):
        found = ask(with_fault(subject, fault), recording, "memory")["memory"]
        assert found.status == "fail"
        assert words in found.detail


@pytest.mark.slow
def test_a_complex_state_that_acting_never_zeroes_is_found():
    subject = assemble_subject(config_of(core("KeepsComplexState")))
    results = ask(subject, None, "resets", "memory")
    assert {result.status for result in results.values()} == {"fail"}


@pytest.mark.slow
def test_extras_may_hold_the_memory_before_a_reset():
    agent = dataclasses.replace(R2D2, stride=4, learn_length=4)
    result = ask(assemble_subject(config_of(agent)), None, "resets")["resets"]
    assert result.status == "pass", result.detail


def test_a_loss_that_goes_on_into_the_next_episode_is_found(sound):
    subject, recording = sound
    found = ask(with_fault(subject, "NeverResetInLearner"), recording, "episodes")["episodes"]
    assert found.status == "fail"
    assert "the rows of the next one" in found.detail


def test_moments_that_mix_all_environments_are_no_fault(sound):
    subject, recording = sound
    found = ask(with_fault(subject, "StandardisesRewards"), recording, "episodes")["episodes"]
    assert (found.status, "other environments" in found.detail) == ("skip", True)


def test_an_entropy_of_masked_rows_is_found_though_its_weight_is_small(sound):
    subject, recording = sound
    found = ask(with_fault(subject, "UnmaskedEntropy"), recording, "padding")["padding"]
    assert found.status == "fail"


def test_a_question_whose_settings_the_agent_refuses_is_skipped(sound):
    subject, recording = sound
    subject = with_fault(subject, "RefusesGreatEntropyCosts")
    result = ask(subject, recording, "padding")["padding"]
    assert (result.status, result.detail) == (
        "skip",
        "the agent refuses the settings of this question: agent.entropy_cost: expected 0 to 1, got"
        " 10.0",
    )


def test_an_agent_rewarded_for_final_observations_has_no_failure(sound):
    subject, recording = sound
    results = ask(with_fault(subject, "RewardsObservations"), recording, *LEARNING)
    assert failures(results.values()) == {}


def test_rounding_is_no_bootstrap_at_a_termination(sound):
    subject, recording = sound
    result = ask(with_fault(subject, "RoundsAtTerminations"), recording, "termination")
    assert result["termination"].status == "pass"


def test_an_agent_that_never_terminates_is_found_by_the_terminated_flag(sound):
    subject, recording = sound
    subject = with_fault(subject, "RewardsObservationsWithoutEnd")
    assert ask(subject, recording, "termination")["termination"].detail.startswith(
        "expected the loss to use the terminated flag in a terminated row (actor"
    )


def test_an_lstm_that_is_not_reset_is_found_and_named(sound):
    subject, recording = sound
    result = ask(with_fault(subject, "NeverReset"), recording, "resets")["resets"]
    assert result.status == "fail"
    assert result.detail.startswith("greedy act: ")
    assert "(actor 0, row " in result.detail


@pytest.mark.parametrize("fault", [None, "SharedKey"])
def test_actors_that_share_a_key_are_found(sound, fault):
    subject, recording = sound
    if fault is not None:
        subject = assemble_subject(config_of(faulty(fault, IMPALA)))
    results = ask(subject, recording, "actor-keys", "env-keys")
    assert results["actor-keys"].status == ("fail" if fault else "pass")
    assert results["env-keys"].status == "pass"
    assert not fault or "actors 0 and 1" in results["actor-keys"].detail


@pytest.mark.parametrize(("fault", "status"), [(None, "pass"), ("WrongAxis", "fail")])
def test_a_state_split_along_the_wrong_axis_is_found(sound, fault, status):
    subject, recording = sound
    if fault is not None:
        subject = with_fault(subject, fault)
    result = ask(subject, recording, "splitting")["splitting"]
    assert result.status == status
    if status == "fail":
        leaf, _, rest = result.detail.partition(": ")
        assert leaf.startswith("actor state.memory.core.")
        assert rest.startswith("expected it split along axis 0, got it split along axis 1")


@pytest.mark.parametrize(("fault", "status"), [(None, "pass"), ("EpsilonPerActor", "fail")])
def test_an_epsilon_per_actor_is_found(fault, status):
    agent = R2D2 if fault is None else faulty(fault, R2D2)
    result = ask(assemble_subject(config_of(agent)), None, "exploration")["exploration"]
    assert result.status == status
    assert "epsilon" in result.detail


def test_a_target_network_may_be_of_no_use_without_a_discount(sound):
    subject, recording = sound
    agent = dataclasses.replace(subject.config.agent, discount=0.0)
    subject = dataclasses.replace(subject, config=dataclasses.replace(subject.config, agent=agent))
    networks = {"online": recording.networks, "target": recording.networks}
    recording = dataclasses.replace(recording, networks=networks)
    result = ask(with_fault(subject, "WeighsByTarget"), recording, "updates")["updates"]
    assert result.status == "pass", result.detail


def test_players_are_not_asked_of_a_single_one(sound):
    result = ask(*sound, "players")["players"]
    assert (result.status, result.detail) == ("skip", "the environment has one player")


def test_a_frozen_leaf_is_found(sound):
    subject, recording = sound
    result = ask(with_fault(subject, "FrozenLeaf"), recording, "updates")["updates"]
    assert result.status == "fail"
    assert result.detail.startswith("networks.params.params.core.Dense_0.bias (updates 0 … 7): ")


def test_a_dead_unit_is_no_leaf_that_optimize_leaves_out(sound):
    subject, recording = sound
    result = ask(with_fault(subject, "DeadUnits"), recording, "updates")["updates"]
    assert result.status == "pass"


@pytest.mark.parametrize(
    ("fault", "words"), [("CurrentPolicyRatio", "use the extras"), ("ModeRatio", "actions taken")]
)
def test_a_ratio_without_the_behaviour_policy_is_found(sound, fault, words):
    subject, recording = sound
    result = ask(with_fault(subject, fault), recording, "correction")["correction"]
    assert result.status == "fail"
    assert words in result.detail


@pytest.mark.parametrize(("fault", "status"), [(None, "pass"), ("ClipsRatiosFromBelow", "fail")])
def test_weights_that_are_clipped_from_below_are_found(sound, fault, status):
    subject, recording = sound
    subject = with_fault(subject, fault) if fault else subject
    result = ask(subject, recording, "ratios")["ratios"]
    assert result.status == status
    assert "0.61 times as much" in result.detail
    assert ("expected" in result.detail) == bool(fault)


FAULTS = [
    ("ShiftedReward", "impala", "rewards"),
    ("ShiftedReward", "r2d2", "rewards"),
    ("MergedDone", "impala", "truncation"),
    ("MergedDone", "r2d2", "truncation"),
    ("BootstrapsFromReset", "impala", "truncation"),
    ("BootstrapsFromReset", "ppo", "truncation"),
    ("BootstrapsFromReset", "ddqn", "truncation"),
    ("BootstrapsFromReset", "r2d2", "truncation"),
    ("RewardsObservationsWithoutEnd", "impala", "termination"),
    ("NeverReset", "impala", "resets"),
    ("NeverReset", "r2d2", "resets"),
    ("NeverResetInActing", "impala", "resets"),
    ("NeverResetInLearner", "impala", "memory"),
    ("IgnoresStoredState", "r2d2", "memory"),
    ("ForgetsStoredState", "impala", "memory"),
    ("NeverResetInLearner", "impala", "episodes"),
    pytest.param("UnrollsIntoTheNextEpisode", "muzero", "episodes", marks=needs_search),
    ("CurrentPolicyRatio", "impala", "correction"),
    ("ModeRatio", "impala", "correction"),
    ("ExchangesPolicies", "lagging ppo", "ratios"),
    ("ClipsWeightsFromBelow", "lagging ppo", "ratios"),
    ("ClipsTargetsFromBelow", "lagging ppo", "ratios"),
    ("ClipsRatiosFromBelow", "impala", "ratios"),
    ("WeighsTwice", "lagging ppo", "ratios"),
    ("ModeLogProb", "small", "log-probs"),
    ("ModeLogProb", "continuous", "log-probs"),
    ("SharedKey", "impala", "actor-keys"),
    ("SharedKey", "r2d2", "actor-keys"),
    ("SharedNumber", "impala", "env-keys"),
    ("SameKey", "impala", "step-keys"),
    ("SameKey", "ddqn", "step-keys"),
    ("SameKey", "sac", "step-keys"),
    ("IgnoresGreedy", "impala", "greedy"),
    ("IgnoresGreedy", "ddqn", "greedy"),
    ("IgnoresGreedy", "sac", "greedy"),
    ("WrongAxis", "impala", "splitting"),
    ("EpsilonPerActor", "r2d2", "exploration"),
    ("ReversesMemory", "impala", "states"),
    ("CountsWeakly", "impala", "compilation"),
    ("LocalMean", "impala", "devices"),
    ("OptimizesOnOneDevice", "impala", "replicas"),
    ("FrozenTarget", "ddqn", "updates"),
    ("FrozenTarget", "r2d2", "updates"),
    ("FollowsAtOnce", "ddqn", "updates"),
    ("StepsFromTarget", "ddqn", "updates"),
    ("ActsWithTarget", "ddqn", "updates"),
    ("FrozenLeaf", "impala", "updates"),
    ("Ascends", "impala", "updates"),
    ("NegatedReward", "impala", "preference"),
    ("NegatedReward", "ppo", "preference"),
    ("NegatedReward", "ddqn", "preference"),
    ("NegatedReward", "r2d2", "preference"),
    ("NegatedReward", "sac", "preference"),
    ("EntropyCost", "impala", "entropy"),
    ("EntropyCost", "ppo", "entropy"),
    ("ValueCost", "impala", "values"),
    ("ValueCost", "ppo", "values"),
    ("AddsValues", "ppo", "baseline"),
    ("BootstrapsFromItself", "ppo", "baseline"),
    ("BootstrapsFromItself", "lagging ppo", "baseline"),
    ("IgnoresPenalties", "ppo", "symmetry"),
    ("KeepsTheMean", "ppo", "advantages"),
    ("IgnoresMask", "ddqn", "legal"),
    ("LearnsIllegalActions", "ddqn", "legal"),
    ("PrioritiesOfOthers", "r2d2", "priorities"),
    ("IgnoresImportance", "prioritised ddqn", "importance"),
    pytest.param("IgnoresImportanceOfSequences", "muzero", "importance", marks=needs_search),
    ("TakesTheGreaterTwin", "sac", "next-values"),
    ("TargetOfStoredAction", "sac", "next-values"),
    ("TargetWithoutEntropy", "sac", "entropy"),
    ("UnmaskedMean", "impala", "padding"),
    ("UnmaskedEntropy", "impala", "padding"),
    ("NormalisesMaskedRows", "ppo", "padding"),
    ("DrawsWithReplacement", "ppo", "epochs"),
    ("LeavesOneOut", "ppo", "epochs"),
    ("DiscountsTwice", "impala", "discount"),
    ("DiscountsTwice", "ppo", "discount"),
    ("DiscountsTwice", "ddqn", "discount"),
    ("DiscountsTwice", "sac", "discount"),
]


def fault_config(fault, agent, short_name, seed):
    """Return the config of a faulty agent, on a task that the question about the fault needs."""
    config = config_of(AGENTS[agent], seed)
    if short_name == "legal":
        env = EnvConfig(suite="jax", id="tests.envs.masked:MaskedTask")
        config = dataclasses.replace(config, env=env)
    if fault == "ModeLogProb":
        name = f"tests.check.small_agents:{fault}"
        config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, name=name))
    else:
        config = dataclasses.replace(config, agent=faulty(fault, config.agent))
    return config


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("fault", "agent", "short_name"), FAULTS)
def test_the_command_finds_a_fault_and_names_its_place(fault, agent, short_name, seed):
    config = fault_config(fault, agent, short_name, seed)
    report = check(config, only=[short_name])
    found = failures(report.results)
    assert list(found) == [short_name]
    (detail,) = found.values()
    assert "expected" in detail
    assert any(word in detail for word in (" got ", "changing "))
    assert "likely cause: " in detail


@pytest.mark.slow
def test_a_policy_gradient_that_ignores_masks_does_not_even_run():
    """An illegal action has probability 0, so its log-probability is not finite."""
    env = EnvConfig(suite="jax", id="tests.envs.masked:MaskedTask")
    config = dataclasses.replace(config_of(faulty("IgnoresMask", IMPALA)), env=env)
    found = failures(check(config).results)
    assert "not finite" in found["pipeline"]


@pytest.mark.parametrize(
    "task", ["MaskedTask", pytest.param("MaskedChoicesTask", marks=pytest.mark.slow)]
)
def test_the_behaviour_policy_of_legal_actions_is_found_in_the_loss(task):
    env = EnvConfig(suite="jax", id=f"tests.envs.masked:{task}")
    agent = dataclasses.replace(IMPALA, lstm_size=None)
    config = dataclasses.replace(config_of(agent), env=env)
    results = check(config, only=["correction"]).results
    assert {result.name: result.status for result in results}["correction"] == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "agent", ["impala", "r2d2", "ppo", "lagging ppo", "ddqn", "sac", "small", "continuous"]
)
def test_the_whole_check_of_a_sound_agent_has_no_failure(agent, seed):
    assert failures(check(config_of(AGENTS[agent], seed)).results) == {}


def test_only_the_named_checks_run():
    seen = []
    report = check(config_of(IMPALA), only=["splitting"], on_progress=seen.append)
    assert [result.name for result in report.results] == ["protocol", "splitting"]
    assert seen == [each.property for each in QUESTIONS[:2]]


def test_a_loss_without_a_clock_is_refused_by_its_own_name():
    config = config_of(SmallConfig(name="tests.check.small_agents:WithoutClock"))
    (result,) = check(config, only=["splitting"]).results
    assert (result.name, result.status) == ("protocol", "fail")
    assert result.detail.startswith("WithoutClock.loss: expected `def loss(self, networks,")


def test_an_unknown_name_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="'truncations'; did you mean truncation"):
        check(config_of(IMPALA), only=["truncations"])
