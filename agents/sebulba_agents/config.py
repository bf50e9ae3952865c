"""The settings of on-policy agents, one frozen dataclass each, and of `random`. Imports no jax.

The settings of agents with a replay are in `replay_config`. The defaults suit a small task on a
CPU; the configs of the benchmarks have the published settings. A subclass that repeats a field
changes its default.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from sebulba.agent import AgentSettings
from sebulba.ranges import Count, Fraction, NonNegative, Positive, Range
from sebulba.references import Core, Network
from sebulba.task import ObservationLeaf
from sebulba.toolkit.schedules import Schedule, ScheduledFraction, ScheduledNonNegative
from sebulba.toolkit.settings import NetworkConfig
from sebulba_agents.families import FamilyConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreConfig(FamilyConfig):
    """Settings of all on-policy agents that may have a recurrent core."""

    lstm_size: Count | None = None
    """Units of the recurrent core, which also sees last action and reward; null: no core."""
    core: Core = "lstm"
    """Recurrent core: an LSTM, a GRU, a linear recurrent unit, a gated Transformer-XL, or your own
    flax module."""
    core_options: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Options of the core beside its size, in docs/tutorials/recurrence.md; of your own flax
    module: its other fields."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(CoreConfig):
    """Settings of all agents with a policy and a value function."""

    normalize_observations: bool = False
    """Standardise floating-point observations by running mean and deviation; clip them to ±10."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of discounted returns, before reward_clip."""
    critic_observation: str | None = None
    """Key of a Dict observation that the value function alone sees, through layers of hidden_sizes;
    loaded and exported policies need no such part. null: policy and value see the same."""
    initial_log_std: Annotated[float, Range(-20, 20)] = 0.0
    """Initial log std of the Gaussian policy; bounded actions are scaled to [-1, 1]."""
    discount: Fraction = 0.99
    """Discount factor γ."""
    entropy_cost: ScheduledNonNegative = 0.01
    """Weight of the entropy bonus."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this value in the learner; null: no clipping."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer. rmsprop: ε inside the square root and initial second moment 1, as in IMPALA."""
    learning_rate: ScheduledNonNegative = 1e-3
    """Learning rate."""
    adam_epsilon: Positive = 1e-5
    """ε of Adam."""
    rmsprop_decay: Annotated[float, Range(0, below=1)] = 0.99
    """Decay of RMSProp's second moment."""
    rmsprop_epsilon: Positive = 1e-5
    """ε of RMSProp."""
    max_grad_norm: Positive | None = 0.5
    """Maximum global norm of the gradients; null: no clipping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImpalaConfig(ActorCriticConfig):
    """IMPALA (Espeholt et al. 2018, arXiv 1802.01561)."""

    name: str = "impala"
    lambda_: Fraction = 1.0
    """λ of the V-trace trace coefficients."""
    clip_rho: Positive = 1.0
    """ρ̄, maximum importance weight in the value targets."""
    clip_c: NonNegative = 1.0
    """c̄, maximum importance weight in the trace coefficients."""
    clip_pg_rho: Positive = 1.0
    """Maximum importance weight in the policy gradient."""
    baseline_cost: NonNegative = 0.5
    """Weight of the value loss 0.5·(v − V)²."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the loss over valid transitions; the paper uses sum."""
    rmsprop_epsilon: Positive = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """PPO (Schulman et al. 2017, arXiv 1707.06347)."""

    default_policy_lag = 0  # 1 costs env steps on three tasks of five: docs/lag.md

    name: str = "ppo"
    lambda_: Fraction = 0.95
    """λ of the generalised advantages."""
    clip: ScheduledNonNegative = 0.2
    """ε: importance weights are clipped to 1 ± ε."""
    objective: Literal["clipped", "decoupled"] = "clipped"
    """clipped: keep the policy near the one that acted. decoupled: near the policy at the start of
    the learner cycle, and weight transitions by its ratio to the one that acted."""
    targets: Literal["gae", "vtrace"] = "gae"
    """Advantages and value targets. vtrace: correct them for acting with older parameters."""
    clip_rho: Positive = 1.0
    """ρ̄, maximum importance weight in the value targets, with targets: vtrace."""
    clip_c: NonNegative = 1.0
    """c̄, maximum importance weight in the trace coefficients, with targets: vtrace."""
    clip_pg_rho: Positive | None = None
    """Maximum weight of a transition, with objective: decoupled; null: e^20, so that weights stay
    finite; the paper has no limit."""
    value_clip: Positive | None = None
    """Value-clipping range around the values before the cycle; null: no clipping."""
    normalize_advantages: bool = True
    """Standardise advantages in each minibatch, over all learner devices."""
    num_epochs: Count = 4
    """Passes over each learner cycle's trajectories."""
    num_minibatches: Count = 4
    """Minibatches per epoch: of transitions, or of whole unrolls with a core."""
    baseline_cost: NonNegative = 0.5
    """Weight of the value loss 0.5·(R − V)²."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """A2C, the synchronous form of A3C (Mnih et al. 2016, arXiv 1602.01783)."""

    corrects_for_policy_lag = False  # needs learner.policy_lag 0

    name: str = "a2c"
    lambda_: Fraction = 1.0
    """λ of the generalised advantages; 1: rewards up to the trajectory's end, as in the paper."""
    baseline_cost: NonNegative = 0.5
    """Weight of the value loss 0.5·(R − V)²."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradientConfig(ActorCriticConfig):
    """Simple policy gradient with rewards to go (REINFORCE, Williams 1992)."""

    corrects_for_policy_lag = False  # needs learner.policy_lag 0

    name: str = "policy_gradient"
    entropy_cost: ScheduledNonNegative = 0.0
    learning_rate: ScheduledNonNegative = 1e-2


_PQN_EPSILON = Schedule(schedule="linear", start=1.0, end=0.05, env_steps=50_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PQNConfig(CoreConfig):
    """PQN (Gallici et al. 2025, arXiv 2407.04811)."""

    name: str = "pqn"
    """Agent name."""
    network: Network = "auto"
    """From observations to features: mlp, small, shallow or dqn with LayerNorm, or your own flax
    module. auto: small or shallow if there is an image, and mlp if not."""
    hidden_sizes: tuple[Count, ...] = (128, 128)
    """Widths of the dense layers, also after convolutions; your own network gets them if it has
    this field."""
    discount: Fraction = 0.99
    """Discount factor γ."""
    lambda_: Fraction = 0.65
    """λ of the Q(λ) targets."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this value in the learner; null: no clipping."""
    epsilon: ScheduledFraction = _PQN_EPSILON
    """Exploration rate ε. Its schedule counts env steps taken, as each environment estimates."""
    evaluation_epsilon: Fraction = 0.0
    """ε of the ε-greedy policy in evaluation."""
    num_epochs: Count = 2
    """Passes over each learner cycle's trajectories."""
    num_minibatches: Count = 4
    """Minibatches per epoch: of transitions, or of whole unrolls with a core. The paper: 32."""
    learning_rate: ScheduledNonNegative = 5e-4
    """Learning rate of RAdam."""
    adam_epsilon: Positive = 1e-8
    """ε of RAdam."""
    max_grad_norm: Positive | None = 10.0
    """Maximum global norm of the gradients; null: no clipping."""

    @classmethod
    def network_for(cls, observation: Sequence[ObservationLeaf]) -> Network:
        """Return the network that `auto` means; its convolutions take one image only."""
        return super().network_for(observation) if len(observation) == 1 else "mlp"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomConfig(AgentSettings):
    """Uniformly random actions, without learning."""

    name: str = "random"
    """Agent name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillsConfig(NetworkConfig):
    """DIAYN skills on A2C (Eysenbach et al. 2018, arXiv 1802.06070)."""

    corrects_for_policy_lag = False  # needs learner.policy_lag 0

    name: str = "skills"
    num_skills: Annotated[int, Range(2)] = 4
    """Number of skills; each episode draws one uniformly."""
    reward_weight: NonNegative = 1.0
    """Weight of the environment's reward; the skill reward has weight 1. The paper: 0."""
    network: Network = "auto"
    """From observations to the inputs of the tanh layers, as for other agents. auto: convolutions
    if there is an image, and flat if not."""
    network_of_vectors = "flat"
    discount: Fraction = 0.99
    """Discount factor γ."""
    lambda_: Fraction = 0.95
    """λ of the generalised advantages."""
    baseline_cost: NonNegative = 0.5
    """Weight of the value loss 0.5·(R − V)²."""
    entropy_cost: ScheduledNonNegative = 0.01
    """Weight of the entropy bonus."""
    learning_rate: ScheduledNonNegative = 2e-3
    """Learning rate of Adam for policy and value."""
    discriminator_learning_rate: ScheduledNonNegative = 2e-3
    """Learning rate of Adam for the discriminator."""
    adam_epsilon: Positive = 1e-5
    """ε of Adam."""
    max_grad_norm: Positive | None = 0.5
    """Maximum global norm of the gradients of policy and value; null: no clipping."""
