"""IMPALA: an actor-critic whose V-trace targets correct for acting with older parameters.

Espeholt et al. 2018 (arXiv 1802.01561). The learner unrolls the network over whole trajectories
with its own parameters, from the recurrent state that the actor had at row 0.
"""

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.toolkit.reductions import mean_share, sum_share
from sebulba.toolkit.returns import VTraceClips, vtrace
from sebulba.types import RunSpec, Trajectory
from sebulba_agents.actor_critic import ActorCriticAgent, rewards_and_discounts
from sebulba_agents.config import ImpalaConfig
from sebulba_agents.networks import PolicyValue


def make_impala(config: ImpalaConfig, run_spec: RunSpec) -> ActorCriticAgent:
    """Return the agent.

    Raises:
        ConfigError: the environment does not suit the agent.
    """
    return ActorCriticAgent(config, run_spec, loss=impala_loss)


def impala_loss(
    outputs: PolicyValue, trajectory: Trajectory, config: ImpalaConfig
) -> tuple[jax.Array, Metrics]:
    """Return the loss `[]` and metrics: policy gradient, value and entropy terms.

    Espeholt et al. 2018 (arXiv 1802.01561), section 4.2, over the valid transitions of all learner
    devices. Entropy, value and KL divergence in the metrics are always means.

    Args:
        outputs: the network's, for all rows `[T + 1, B]` and the learner's parameters;
            differentiated.
        trajectory: `T` transitions, with the behaviour policy in the extras.
        config: costs, clips, reduction.
    """
    reduce = {"mean": mean_share, "sum": sum_share}[config.loss_reduction]
    valid = trajectory.valid
    rewards, discounts = rewards_and_discounts(trajectory, config)
    policy, values = jax.tree.map(lambda leaf: leaf[:-1], (outputs.policy, outputs.values))
    behaviour, action = trajectory.extras.policy, trajectory.action
    log_probs = policy.log_prob(action)
    targets = vtrace(
        log_rhos=log_probs - behaviour.log_prob(action),
        rewards=rewards,
        discounts=discounts,
        valid=valid,
        values=outputs.values,
        lambda_=config.lambda_,
        clips=VTraceClips(rho=config.clip_rho, c=config.clip_c, pg_rho=config.clip_pg_rho),
    )
    entropies = policy.entropy()
    policy_loss = reduce(-log_probs * targets.advantages, valid)
    value_loss = reduce(0.5 * jnp.square(targets.values - values), valid)
    entropy_loss = -reduce(entropies, valid)
    loss = policy_loss + config.baseline_cost * value_loss + config.entropy_cost * entropy_loss
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": mean_share(entropies, valid),
        "value": mean_share(values, valid),
        "rho": mean_share(targets.rhos, valid),
        "kl": mean_share(behaviour.kl(policy), valid),
    }
    return loss, metrics
