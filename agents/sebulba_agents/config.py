"""The settings of on-policy agents, one frozen dataclass each, and of `random`. Imports no jax.

The settings of agents with a replay are in `replay_config`. The defaults suit a small task on a
CPU; the configs of the benchmarks have the published settings. A subclass that repeats a field
changes its default.
"""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """What all agents with a policy and a value have; a setting given again is a new default."""

    name: str = ""
    """Which agent."""
    torso: Literal["mlp", "shallow", "dqn", "deep"] = "mlp"
    """mlp: tanh layers; shallow, deep: IMPALA's two networks; dqn: DQN's."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the mlp torso."""
    lstm_size: int | None = None
    """Units of an LSTM after the torso, fed the last action and reward; null: feed-forward."""
    normalize_observations: bool = False
    """By the mean and deviation so far of all that was seen, clipped to ± 10; not images."""
    normalize_rewards: bool = False
    """By the deviation so far of discounted returns, before reward_clip."""
    initial_log_std: float = 0.0
    """Of continuous actions at the start, whose range is [-1, 1] where it is bounded."""
    discount: float = 0.99
    """γ."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this in the learner; null: not."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: ε inside the square root and initial second moment 1, as IMPALA's."""
    learning_rate: float = 1e-3
    """At the start."""
    learning_rate_decay: bool = False
    """Linear, to 0 at run.total_env_steps."""
    adam_epsilon: float = 1e-5
    """ε of Adam."""
    rmsprop_decay: float = 0.99
    """Decay of the second moment of RMSProp."""
    rmsprop_epsilon: float = 1e-5
    """ε of RMSProp."""
    max_grad_norm: float | None = 0.5
    """Gradients are clipped to this global norm; null: not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImpalaConfig(ActorCriticConfig):
    """IMPALA (Espeholt et al. 2018, arXiv 1802.01561)."""

    name: str = "impala"
    lambda_: float = 1.0
    """λ of the V-trace trace coefficients."""
    clip_rho: float = 1.0
    """ρ̄, clips the importance weights of the value target."""
    clip_c: float = 1.0
    """c̄, clips the trace coefficients."""
    clip_pg_rho: float = 1.0
    """Clips the importance weights of the policy gradient."""
    baseline_cost: float = 0.5
    """Weight of the value loss 0.5·(v − V)²."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Over valid transitions; the paper sums."""
    rmsprop_epsilon: float = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """PPO (Schulman et al. 2017, arXiv 1707.06347)."""

    name: str = "ppo"
    lambda_: float = 0.95
    """λ of the generalised advantages."""
    clip: float = 0.2
    """ε: importance weights are clipped to 1 ± this."""
    clip_decay: bool = False
    """Linear, to 0 at run.total_env_steps."""
    value_clip: float | None = None
    """Values learn to move at most this far from what they were before the cycle; null: freely."""
    normalize_advantages: bool = True
    """To mean 0 and standard deviation 1 in each minibatch, over all learner devices."""
    num_epochs: int = 4
    """Times that each learner cycle's trajectories are learned from."""
    num_minibatches: int = 4
    """Optimisation steps of an epoch: on transitions, or on whole unrolls with an LSTM."""
    baseline_cost: float = 0.5
    """Weight of the value loss 0.5·(R − V)²."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """A2C, the synchronous form of A3C (Mnih et al. 2016, arXiv 1602.01783)."""

    name: str = "a2c"
    lambda_: float = 1.0
    """λ of the generalised advantages; 1: rewards up to the trajectory's end, as the paper's."""
    baseline_cost: float = 0.5
    """Weight of the value loss 0.5·(R − V)²."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradientConfig(ActorCriticConfig):
    """Simple policy gradient with rewards to go (REINFORCE, Williams 1992)."""

    name: str = "policy_gradient"
    entropy_cost: float = 0.0
    learning_rate: float = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomConfig:
    """Uniformly random actions; nothing is learned."""

    name: str = "random"
    """Which agent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillsConfig:
    """Skills that can be told apart, on A2C (Eysenbach et al. 2018, arXiv 1802.06070)."""

    name: str = "skills"
    """Which agent."""
    num_skills: int = 4
    """Skills; each episode has one, drawn evenly."""
    reward_weight: float = 1.0
    """Of the environment's own reward, beside 1 of the skills'; 0: none of it, as the paper."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the tanh layers of policy, value and discriminator."""
    discount: float = 0.99
    """γ."""
    lambda_: float = 0.95
    """λ of the generalised advantages."""
    baseline_cost: float = 0.5
    """Weight of the value loss 0.5·(R − V)²."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: float = 2e-3
    """Of Adam, for policy and value."""
    discriminator_learning_rate: float = 2e-3
    """Of Adam, for the discriminator."""
    adam_epsilon: float = 1e-5
    """ε of Adam."""
    max_grad_norm: float | None = 0.5
    """Gradients of policy and value are clipped to this global norm; null: not."""
