"""The check accuses no sound agent, whatever its settings are."""

import dataclasses

import pytest

from sebulba.check.suite import check
from sebulba.config import EnvConfig, LearnerConfig
from sebulba_agents.config import A2CConfig, PolicyGradientConfig
from tests.check.small_agents import SmallConfig
from tests.check.sound_agents import AWRConfig, DistributionConfig, TD3Config
from tests.check.sound_new_agents import (
    AttentionPPOConfig,
    MPOConfig,
    MunchausenConfig,
    ReinforceConfig,
    RNDConfig,
    VMPOConfig,
)
from tests.check.sound_outside_agents import (
    EnsembleSACConfig,
    LSTMPPOConfig,
    ShortReinforceConfig,
    SoftConfig,
)
from tests.check.sound_user_agents import (
    DropoutPPOConfig,
    NoisyConfig,
)
from tests.check.test_faults import AGENTS, R2D2, SMALL_REPLAY, config_of
from tests.extras import needs_search

MASKED = EnvConfig(suite="jax", id="tests.envs.masked:MaskedTask")
CONTINUOUS = EnvConfig(suite="jax", id="ContinuousBandit-v0")
REPLAY = {"min_replay_rows": 120, **SMALL_REPLAY}
QRDQN = DistributionConfig(name="tests.check.sound_agents:QRDQN", num_outputs=8, n_step=2, **REPLAY)


def critic(name):
    return TD3Config(name=f"tests.check.sound_critics:{name}", **REPLAY)


def other(agent, **settings):
    return dataclasses.replace(AGENTS[agent], **settings)


def make_config(agent, *, seed=0, num_envs=4, length=8, env=None):
    config = config_of(agent, seed)
    if env is not None:
        config = dataclasses.replace(config, env=env)
    actor = dataclasses.replace(config.actor, num_envs=num_envs, trajectory_length=length)
    learner = config.learner
    if not getattr(agent, "corrects_for_policy_lag", True):
        learner = LearnerConfig(trajectories_per_cycle=2, policy_lag=0)
    return dataclasses.replace(config, actor=actor, learner=learner)


def sound_config(name, seed=0):
    """Return the config of an agent of `SOUND`."""
    agent, settings = SOUND[name]
    return make_config(agent, seed=seed, **settings)


def statuses(agent, *names, **settings):
    results = check(make_config(agent, **settings), only=names).results
    return {result.name: result.status for result in results}


@pytest.mark.slow
@needs_search
def test_stored_policies_of_legal_actions_leave_it_unclear_whether_masks_are_used():
    assert statuses(AGENTS["muzero"], "legal", env=MASKED)["legal"] == "unclear"


@pytest.mark.slow
@needs_search
def test_a_model_that_a_short_search_uses_in_part_is_no_fault():
    agent = other("muzero", reanalyse_fraction=0.5, priority_exponent=0.0)
    found = statuses(agent, "updates", env=EnvConfig(suite="jax", id="Catch-v0"))
    assert found["updates"] == "pass"


def test_a_stored_distribution_of_returns_is_not_taken_for_the_policy():
    agent, _ = SOUND["policy gradient that stores returns"]
    found = statuses(agent, "greedy", "log-probs", "preference")
    assert set(found.values()) == {"pass"}


def test_rows_of_every_minibatch_of_an_epoch_are_learned_from():
    agent = other("ppo", num_epochs=10, num_minibatches=8)
    found = statuses(agent, "rewards", "truncation", "epochs")
    assert set(found.values()) == {"pass"}


@pytest.mark.slow
def test_a_stored_state_that_the_burn_in_replaces_may_be_without_effect():
    agent, settings = SOUND["r2d2 whose burn-in is longer than its memory"]
    assert statuses(agent, "memory", **settings)["memory"] != "fail"


@pytest.mark.slow
def test_two_devices_may_draw_other_minibatches_with_the_actors_keys():
    agent, settings = SOUND["tiny ppo"]
    assert statuses(agent, "devices", **settings)["devices"] == "pass"


@pytest.mark.slow
def test_statistics_may_change_after_many_updates_of_a_cycle():
    agent = other("ppo", normalize_observations=True, num_epochs=10, num_minibatches=8)
    assert statuses(agent, "updates")["updates"] == "pass"


@pytest.mark.slow
def test_a_policy_that_is_certain_after_two_updates_is_no_fault():
    agent, settings = SOUND["certain policy gradient"]
    found = statuses(agent, "rewards", "updates", "donation", "devices", **settings)
    assert set(found.values()) == {"pass"}


SOUND = {
    "c51": (DistributionConfig(**REPLAY), {}),
    "prioritised c51": (DistributionConfig(priority_exponent=0.6, n_step=3, **REPLAY), {}),
    "qrdqn": (QRDQN, {}),
    "munchausen dqn": (MunchausenConfig(**REPLAY), {}),
    "ppo of stored values": (AttentionPPOConfig(), {}),
    "reinforce": (ReinforceConfig(), {}),
    "v-mpo, whose copy acts": (VMPOConfig(), {}),
    "a2c with the random network of rnd": (RNDConfig(), {}),
    "mpo, whose target policy acts": (MPOConfig(**REPLAY), {}),
    "reinforce in sixty lines": (ShortReinforceConfig(), {}),
    "ppo with an lstm by hand": (LSTMPPOConfig(), {}),
    "discrete sac": (SoftConfig(**REPLAY), {}),
    "ensemble sac": (EnsembleSACConfig(**REPLAY), {"env": CONTINUOUS}),
    "impala with a complex memory": (other("impala", core="tests.check.cores:LRU"), {}),
    "impala with attention": (other("impala", core="tests.check.cores:Attention"), {}),
    "ppo with attention": (
        other("ppo", core="tests.check.cores:Attention", lstm_size=4, num_minibatches=2),
        {},
    ),
    "r2d2 with a complex memory": (
        dataclasses.replace(R2D2, core="tests.check.cores:LRU"),
        {},
    ),
    "r2d2 whose burn-in is longer than its memory": (
        dataclasses.replace(
            R2D2, core="gtrxl", core_options={"memory_length": 3, "heads": 2, "layers": 1}
        ),
        {},
    ),
    "r2d2 with a linear recurrent unit": (dataclasses.replace(R2D2, core="lru"), {}),
    "ppo with a gated transformer": (
        other(
            "ppo", core="gtrxl", core_options={"memory_length": 3}, lstm_size=4, num_minibatches=2
        ),
        {},
    ),
    "pqn with a linear recurrent unit": (
        other("pqn", core="lru", lstm_size=4, num_minibatches=2),
        {},
    ),
    "normalised ppo": (
        other("ppo", normalize_observations=True, normalize_rewards=True, reward_clip=10.0),
        {},
    ),
    "normalised ppo of many updates": (
        other("ppo", normalize_observations=True, num_epochs=10, num_minibatches=8),
        {},
    ),
    "ppo with dropout": (DropoutPPOConfig(), {}),
    "noisy dqn": (NoisyConfig(**REPLAY), {}),
    "td3": (TD3Config(**REPLAY), {"env": CONTINUOUS}),
    "tiny td3": (TD3Config(num_units=2, **REPLAY), {"env": CONTINUOUS, "num_envs": 2}),
    "td3 with an encoder of both": (critic("SharedEncoder"), {"env": CONTINUOUS}),
    "td3 with cql's penalty": (critic("Penalty"), {"env": CONTINUOUS}),
    "crossq": (critic("CrossQ"), {"env": CONTINUOUS}),
    "naf": (critic("Quadratic"), {"env": CONTINUOUS}),
    "spo": (SmallConfig(name="tests.check.small_agents:SimplePolicyOptimization"), {}),
    "policy gradient that stores returns": (
        SmallConfig(name="tests.check.sound_user_agents:StoresReturns"),
        {},
    ),
    "policy gradient in bfloat16": (SmallConfig(name="tests.check.small_agents:InBfloat16"), {}),
    "weighted importance": (SmallConfig(name="tests.check.small_agents:WeightedImportance"), {}),
    "certain policy gradient": (
        PolicyGradientConfig(hidden_sizes=(16,), learning_rate=10.0),
        {"env": EnvConfig(suite="jax", id="Catch-v0")},
    ),
    "awr": (AWRConfig(), {}),
    "awr without discount": (
        AWRConfig(discount=1.0, lambda_=1.0, learning_rate=0.1),
        {"num_envs": 2, "length": 20},
    ),
    "tiny sac": (
        other("sac", hidden_sizes=(2,)),
        {"env": CONTINUOUS, "num_envs": 2, "length": 4},
    ),
    "sac of rewards": (other("sac", discount=0.0), {"env": CONTINUOUS}),
    "fast sac": (other("sac", discount=1.0, learning_rate=0.05), {"env": CONTINUOUS}),
    "pqn of rewards": (other("pqn", discount=0.0), {"num_envs": 2, "length": 20}),
    "narrow pqn": (other("pqn", hidden_sizes=(1,), discount=1.0, lambda_=1.0), {}),
    "tiny ppo": (other("ppo", hidden_sizes=(1,), num_minibatches=2), {"num_envs": 2, "length": 4}),
    "ppo of rewards": (other("ppo", discount=0.0), {}),
    "fast ppo": (other("ppo", learning_rate=1.0, num_minibatches=1), {}),
    "impala of one environment": (AGENTS["impala"], {"num_envs": 1}),
    "impala without discount": (
        other("impala", discount=1.0, learning_rate=0.1),
        {"num_envs": 2, "length": 40},
    ),
    "impala of one transition": (other("impala", lstm_size=None), {"length": 1}),
    "a2c": (A2CConfig(hidden_sizes=(2,), lambda_=0.5), {"num_envs": 2, "length": 5}),
    "tiny ddqn": (
        other("ddqn", hidden_sizes=(2,), batch_size=2, replay_ratio=1.0, target_period=3),
        {"num_envs": 2, "length": 4},
    ),
    "clipped ddqn": (
        other("ddqn", reward_clip=0.5, learning_rate=0.1, n_step=5),
        {"num_envs": 2, "length": 20},
    ),
    "masked ddqn": (AGENTS["ddqn"], {"env": MASKED}),
    "tiny r2d2": (
        dataclasses.replace(
            R2D2, hidden_sizes=(2,), lstm_size=2, dueling_size=2, burn_in=0, batch_size=4
        ),
        {"num_envs": 2},
    ),
    "r2d2 of rewards": (dataclasses.replace(R2D2, discount=0.0), {}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("lenient_jax")  # people write agents without JAX at its strictest
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_agent_is_not_accused(name, seed):
    agent, settings = SOUND[name]
    found = statuses(agent, seed=seed, **settings)
    assert [question for question, status in found.items() if status == "fail"] == []
