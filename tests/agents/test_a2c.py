"""A2C: the loss of a few transitions, by hand."""

import jax
import numpy as np

from sebulba.toolkit.distributions import Categorical
from sebulba.types import EnvStep, Trajectory
from sebulba_agents.a2c import a2c_loss
from sebulba_agents.actor_critic import ActorCriticExtras
from sebulba_agents.config import A2CConfig
from sebulba_agents.networks import PolicyValue


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def test_loss_of_two_episodes_ends_is_the_papers():
    # A step that truncates, the reset, and a step that terminates.
    trajectory = Trajectory(
        env_steps=EnvStep(
            observation=np.zeros((4, 1, 1), np.float32),
            reward=column(7.0, 2.0, 0.0, 3.0),
            terminated=column(False, False, False, True, dtype=bool),
            truncated=column(False, True, False, False, dtype=bool),
            is_first=column(True, False, True, False, dtype=bool),
        ),
        action=column(0, 1, 1, dtype=np.int32),
        extras=ActorCriticExtras(policy=Categorical(logits=np.zeros((3, 1, 2), np.float32))),
    )
    probabilities = np.array([[0.4, 0.6], [0.1, 0.9], [0.3, 0.7], [0.5, 0.5]])[:, None]
    logits = np.log(probabilities).astype(np.float32)
    values = column(0.5, 1.0, 2.0, 9.0)
    config = A2CConfig(discount=0.9, baseline_cost=0.5, entropy_cost=0.01)

    def loss(values):
        outputs = PolicyValue(policy=Categorical(logits=logits), values=values)
        return a2c_loss(outputs, trajectory, config)

    (got, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(values)
    # 2 + 0.9·1 − 0.5 from the truncated step, 3 − 2 from the terminated one.
    policy_loss = -(np.log(0.4) * 2.4 + np.log(0.7) * 1.0) / 2
    value_loss = 0.5 * (2.4**2 + 1.0**2) / 2
    entropy = -sum(p * np.log(p) + (1 - p) * np.log(1 - p) for p in (0.4, 0.3)) / 2
    expected = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": 1.25,
    }
    assert metrics.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(metrics[name], wanted, rtol=1e-5)
    np.testing.assert_allclose(got, policy_loss + 0.5 * value_loss - 0.01 * entropy, rtol=1e-5)
    np.testing.assert_allclose(gradient, column(-0.6, 0.0, -0.25, 0.0), rtol=1e-5)
