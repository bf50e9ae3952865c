"""Values that are checked together."""

import pytest

from sebulba.config import ActorConfig, Config, DevicesConfig, LearnerConfig
from sebulba.config.loading import ConfigError, load_config
from sebulba.config.validation import validate


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Config(actor=ActorConfig(threads_per_device=0)),
            "actor.threads_per_device: expected at least 1 with actor.remote: 0",
        ),
        (
            Config(actor=ActorConfig(trajectory_length=0)),
            "actor.trajectory_length: expected int ≥ 1",
        ),
        (
            Config(learner=LearnerConfig(policy_lag=-1)),
            "learner.policy_lag: expected int ≥ 0 | auto | null, got -1",
        ),
        (Config(devices=DevicesConfig(actor=())), "devices.actor: expected at least one"),
        (Config(devices=DevicesConfig(actor=(-1,))), "devices.actor: expected [int ≥ 0"),
        (Config(devices=DevicesConfig(learner=(1, 1))), "devices.learner: expected each device"),
        (
            Config(devices=DevicesConfig(learner=(0, 1, 2))),
            "actor.num_envs: expected a multiple of the 3 devices in devices.learner, got 16. "
            "Set 15 or 18",
        ),
        (Config(seed=2**31), "seed: expected int in [0, 2147483647], got 2147483648"),
        (Config(run_dir=""), "run_dir: expected a name"),
    ],
)
def test_validate_error_says_key_expected_and_got(config, message):
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        ("--learner.policy-lag", "0"),
        ("--learner.policy-lag", "1", "--learner.allow-uncorrected-lag", "true"),
        ("--run.mode", "serial"),
    ],
)
def test_an_agent_that_does_not_correct_for_lag_accepts_none_or_what_is_allowed(settings):
    assert load_config(None, ["--agent.name", "a2c", *settings]).agent.name == "a2c"


def test_validate_accepts_minimum_and_maximum_values():
    validate(
        Config(
            actor=ActorConfig(threads_per_device=1, num_envs=2, trajectory_length=1),
            learner=LearnerConfig(policy_lag=0),
            devices=DevicesConfig(actor=(0,), learner=(0, 1)),
            seed=2**31 - 1,
        )
    )
