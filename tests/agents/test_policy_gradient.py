"""The simple policy gradient: rewards to go, by hand."""

import jax
import numpy as np

from sebulba.toolkit.distributions import Categorical
from sebulba.types import EnvStep, Trajectory
from sebulba_agents.actor_critic import ActorCriticExtras
from sebulba_agents.config import PolicyGradientConfig
from sebulba_agents.networks import PolicyValue
from sebulba_agents.policy_gradient import policy_gradient_loss


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def test_actions_count_with_the_rewards_until_their_episode_or_trajectory_ends():
    # Two steps of an episode that is truncated, the reset, one step of the next episode.
    trajectory = Trajectory(
        env_steps=EnvStep(
            observation=np.zeros((5, 1, 1), np.float32),
            reward=column(7.0, 2.0, 4.0, 0.0, 5.0),
            terminated=np.zeros((5, 1), bool),
            truncated=column(False, False, True, False, False, dtype=bool),
            is_first=column(True, False, False, True, False, dtype=bool),
        ),
        action=column(0, 1, 1, 0, dtype=np.int32),
        extras=ActorCriticExtras(policy=Categorical(logits=np.zeros((4, 1, 2), np.float32))),
    )
    probabilities = np.array([[0.4, 0.6], [0.2, 0.8], [0.1, 0.9], [0.7, 0.3], [0.5, 0.5]])[:, None]
    logits = np.log(probabilities).astype(np.float32)
    values = np.full((5, 1), 3.0, np.float32)
    config = PolicyGradientConfig(discount=0.5, entropy_cost=0.1)

    def loss(values):
        outputs = PolicyValue(policy=Categorical(logits=logits), values=values)
        return policy_gradient_loss(outputs, trajectory, config)

    (got, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(values)
    returns = np.array([2.0 + 0.5 * 4.0, 4.0, 5.0])
    normalised = (returns - returns.mean()) / returns.std()
    policy_loss = -np.mean(np.log([0.4, 0.8, 0.7]) * normalised)
    chances = np.array([[0.4, 0.6], [0.2, 0.8], [0.7, 0.3]])
    entropy = -np.mean(np.sum(chances * np.log(chances), axis=1))
    expected = {"policy_loss": policy_loss, "entropy": entropy, "return_to_go": returns.mean()}
    assert metrics.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(metrics[name], wanted, rtol=1e-5)
    np.testing.assert_allclose(got, policy_loss - 0.1 * entropy, rtol=1e-5)
    assert not gradient.any()
