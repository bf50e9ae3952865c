"""The benchmark of a model's rewards: what it averages, and that it fits the config's agent."""

import numpy as np
import pytest

from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from tests.extras import needs_search


@needs_search
def test_predictions_are_averaged_by_what_followed():
    from benchmarks.model_rewards import means

    predicted = np.array([[1.0, 0.1, 0.3], [0.2, 0.4, 0.0], [5.0, 5.0, 5.0]])
    action, reward = np.array([0, 1, 2]), np.array([1.0, 0.0, np.nan])
    expected = {"taken": 1.0, "others": 0.2, "elsewhere": 0.4}
    assert means(predicted, action, reward) == pytest.approx(expected)


@pytest.mark.slow
@needs_search
def test_a_model_learns_which_action_of_a_bandit_pays():
    from benchmarks.model_rewards import measure

    flags = ["--env.id", "Bandit-v0", "--agent.n-step", "1"]
    config = load_config("configs/gumbel_muzero_catch.yaml", flags)
    *_, line = measure(config, env_steps=4_000, batches=1_000, every=500)
    found = dict(zip(line.split()[2::2], map(float, line.split()[3::2]), strict=True))
    assert found["taken"] > 0.9 and found["others"] < 0.1 and abs(found["elsewhere"]) < 0.1


@needs_search
def test_another_agent_is_refused():
    from benchmarks.model_rewards import measure

    config = load_config("configs/impala_cartpole.yaml", [])
    with pytest.raises(ConfigError, match=r"agent\.name: expected gumbel_muzero, got impala"):
        next(measure(config, env_steps=100, batches=1, every=1))
