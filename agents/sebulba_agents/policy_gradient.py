"""The simple policy gradient: REINFORCE with rewards to go, and no value function.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement
learning". The return of an action is the discounted reward until its trajectory or episode ends.
There is no bootstrapping, not even at a truncation, so trajectories must be long enough. Nothing
corrects for acting with older parameters: use `learner.policy_lag` 0.
"""

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.errors import ConfigError
from sebulba.toolkit.reductions import masked_moments, mean_share
from sebulba.toolkit.returns import gae
from sebulba.types import RunSpec, Trajectory
from sebulba_agents.actor_critic import (
    ActorCriticAgent,
    check_standardisation,
    rewards_and_discounts,
)
from sebulba_agents.config import PolicyGradientConfig
from sebulba_agents.networks import PolicyValue

_STD_EPSILON = 1e-8


def make_policy_gradient(config: PolicyGradientConfig, run_spec: RunSpec) -> ActorCriticAgent:
    """Return the agent; its network's value is neither trained nor used.

    Raises:
        ConfigError: the environment does not suit the agent, or `critic_observation` is set.
    """
    if config.critic_observation is not None:
        raise ConfigError(
            "agent.critic_observation: expected null, since policy_gradient has no value function,"
            f" got {config.critic_observation!r}. Choose a2c, impala or ppo"
        )
    check_standardisation("policy_gradient standardises the returns of batches", run_spec)
    return ActorCriticAgent(config, run_spec, loss=policy_gradient_loss)


def policy_gradient_loss(
    outputs: PolicyValue, trajectory: Trajectory, config: PolicyGradientConfig
) -> tuple[jax.Array, Metrics]:
    """Return the loss `[]` and metrics: means over the valid transitions of all learner devices.

    Returns are standardised over the batch: their mean is the baseline.

    Args:
        outputs: the network's, for all rows `[T + 1, B]`; the policy is differentiated.
        trajectory: collected with the same parameters.
        config: γ, entropy cost.
    """
    valid = trajectory.valid
    rewards, discounts = rewards_and_discounts(trajectory, config)
    # Without values, the generalised advantage of λ = 1 is the discounted reward to go.
    no_values = jnp.zeros_like(outputs.values)
    returns = gae(rewards=rewards, discounts=discounts, valid=valid, values=no_values, lambda_=1.0)
    mean, std = masked_moments(returns, valid)
    policy = jax.tree.map(lambda leaf: leaf[:-1], outputs.policy)
    log_probs = policy.log_prob(trajectory.action)
    policy_loss = mean_share(-log_probs * (returns - mean) / (std + _STD_EPSILON), valid)
    entropy = mean_share(policy.entropy(), valid)
    metrics = {"policy_loss": policy_loss, "entropy": entropy, "return_to_go": mean}
    return policy_loss - config.entropy_cost * entropy, metrics
