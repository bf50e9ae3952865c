"""A2C: the synchronous advantage actor-critic.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783),
algorithm S3, with synchronised actors. Nothing corrects for acting with older parameters: use
`learner.policy_lag` 0.
"""

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.toolkit.reductions import mean_share
from sebulba.toolkit.returns import gae
from sebulba.types import RunSpec, Trajectory
from sebulba_agents.actor_critic import ActorCriticAgent, rewards_and_discounts
from sebulba_agents.config import A2CConfig
from sebulba_agents.networks import PolicyValue


def make_a2c(config: A2CConfig, run_spec: RunSpec) -> ActorCriticAgent:
    """Return the agent.

    Raises:
        ConfigError: the environment does not suit the agent.
    """
    return ActorCriticAgent(config, run_spec, loss=a2c_loss)


def a2c_loss(
    outputs: PolicyValue, trajectory: Trajectory, config: A2CConfig
) -> tuple[jax.Array, Metrics]:
    """Return the loss `[]` and metrics: means over the valid transitions of all learner devices.

    With λ = 1 the advantages are the paper's: rewards up to the end of trajectory or episode, plus
    the value there, minus the value here.

    Args:
        outputs: the network's, for all rows `[T + 1, B]`; differentiated.
        trajectory: collected with the same parameters.
        config: γ, λ, costs.
    """
    valid = trajectory.valid
    rewards, discounts = rewards_and_discounts(trajectory, config)
    policy, values = jax.tree.map(lambda leaf: leaf[:-1], (outputs.policy, outputs.values))
    advantages = gae(
        rewards=rewards,
        discounts=discounts,
        valid=valid,
        values=outputs.values,
        lambda_=config.lambda_,
    )
    targets = jax.lax.stop_gradient(values) + advantages
    policy_loss = mean_share(-policy.log_prob(trajectory.action) * advantages, valid)
    value_loss = mean_share(0.5 * jnp.square(targets - values), valid)
    entropy = mean_share(policy.entropy(), valid)
    loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "value": mean_share(values, valid),
    }
    return loss, metrics
