"""The settings of agents with a replay: R2D2, DDQN, Rainbow, SAC, Gumbel MuZero. Imports no jax.

The defaults suit a small task on a CPU; the configs of the benchmarks have the published settings.
A subclass that repeats a field changes its default.
"""

import dataclasses
from typing import Annotated, Any, Literal

from sebulba.ranges import Count, Fraction, Natural, NonNegative, Positive, Range, Real
from sebulba.references import Core, Network
from sebulba.toolkit.schedules import Schedule, ScheduledFraction, ScheduledNonNegative
from sebulba.toolkit.settings import ReplayConfig
from sebulba_agents.families import FamilyConfig

_Period = Annotated[int, Range(1, 2**31 - 1)]  # updates, which devices count in int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueReplayConfig(FamilyConfig, ReplayConfig):
    """Settings of all agents that learn values of discrete actions from a replay."""

    frame_stack: Count | None = None
    """Frames on an observation's first axis, to store each once; null: store whole observations."""
    frame_stack_fill: Literal["repeat", "zeros"] = "repeat"
    """Older frames in an episode's first stack: copies of the first frame (EnvPool), or zeros."""
    n_step: Count = 1
    """Rewards in a target; fewer near an episode's end."""
    priority_exponent: Fraction = 0.0
    """α of prioritised sampling P ∝ p^α; 0: uniform."""
    importance_exponent: ScheduledFraction = 0.4
    """β of the importance weights; Schaul et al.: a schedule that ends at 1."""
    target_period: _Period = 250
    """Updates between copies to the target network."""
    max_grad_norm: Positive | None = 10.0
    """Maximum global norm of the gradients; null: no clipping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearningConfig(ValueReplayConfig):
    """Settings of all agents that act on Q."""

    evaluation_epsilon: Fraction = 0.0
    """ε of the ε-greedy policy in evaluation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class R2D2Config(QLearningConfig):
    """R2D2 (Kapturowski et al. 2019, openreview r1lyTjAqYX)."""

    name: str = "r2d2"
    hidden_sizes: tuple[Count, ...] = (64,)
    lstm_size: Count = 64
    """Units of the recurrent core, which also sees last action and reward."""
    core: Core = "lstm"
    """Recurrent core: an LSTM, a GRU, a linear recurrent unit, a gated Transformer-XL, or your own
    flax module."""
    core_options: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Options of the core beside its size, in docs/tutorials/recurrence.md; of your own flax
    module: its other fields."""
    dueling_size: Count = 64
    """Hidden units of each dueling head, value and advantage."""
    discount: Fraction = 0.997
    n_step: Count = 3
    """Rewards in a target; fewer near the end of a sequence. The paper: 5."""
    burn_in: Natural = 8
    """Transitions that only warm up the recurrent state, l. The paper: 40."""
    learn_length: Count = 16
    """Transitions of a sequence that are learned from, m. The paper: 80."""
    stride: Count | None = None
    """Rows between the starts of sequences: a divisor of actor.trajectory_length, at most
    learn_length; null: the greatest. The paper: 40."""
    rescale_epsilon: NonNegative = 1e-3
    """ε of the value rescaling h."""
    batch_size: Count = 32
    """Sequences per update, over the learner devices of a host. The paper: 64."""
    replay_ratio: Positive = 16.0
    """Rows learned from per row collected, once learning has started; an update learns from
    batch_size × learn_length rows. Reset rows and repeated final rows count on both sides. The
    paper: about 0.8."""
    priority_exponent: Fraction = 0.9
    importance_exponent: ScheduledFraction = 0.6
    priority_mix: Fraction = 0.9
    """η of the priority η·max|δ| + (1 − η)·mean|δ|."""
    target_period: _Period = 100
    """Updates between copies to the target network. The paper: 2500."""
    epsilon_base: Fraction = 0.4
    """Environment i of N explores with ε = epsilon_base^(1 + epsilon_exponent·i / (N − 1))."""
    epsilon_exponent: NonNegative = 7.0
    """Exponent in the formula of epsilon_base."""
    learning_rate: ScheduledNonNegative = 1e-3
    """Learning rate of Adam. The paper: 1e-4."""
    adam_epsilon: Positive = 1e-5
    """ε of Adam. The paper: 1e-3."""
    max_grad_norm: Positive | None = 40.0


_EPSILON = Schedule(schedule="linear", start=1.0, end=0.05, env_steps=10_000)
_IMPORTANCE = Schedule(schedule="linear", start=0.4, end=1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DDQNConfig(QLearningConfig):
    """Double DQN (van Hasselt et al. 2016, arXiv 1509.06461), also prioritised and dueling."""

    name: str = "ddqn"
    double: bool = True
    """Choose the action to bootstrap from by the online network's values; false: by the target
    network's, as in DQN."""
    dueling_size: Count | None = None
    """Hidden units of each dueling head, value and advantage; null: one linear head."""
    reward_clip: Positive | None = None
    """Rewards are clipped to ± this value in the learner; null: no clipping."""
    batch_size: Count = 64
    """Transitions per update, over the learner devices of a host. The paper: 32."""
    replay_ratio: Positive = 8.0
    """Rows learned from per row collected, once learning has started; an update learns from
    batch_size rows. Reset rows and repeated final rows count as collected. The paper: 8, an update
    every 4 agent steps."""
    priority_exponent: Fraction = 0.0
    """α of prioritised sampling P ∝ |δ|^α; 0: uniform. Schaul et al. (arXiv 1511.05952): 0.6."""
    target_period: _Period = 250
    """Updates between copies to the target network. The paper: 7500."""
    epsilon: ScheduledFraction = _EPSILON
    """Exploration rate ε. Its schedule counts env steps taken, as each environment estimates."""
    epsilon_exponent: NonNegative = 0.0
    """Environment i of N explores with ε^(1 + this·i / (N − 1)); 0: all explore with ε."""
    evaluation_epsilon: Fraction = 0.001
    learning_rate: ScheduledNonNegative = 5e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class RainbowConfig(DDQNConfig):
    """Rainbow (Hessel et al. 2018, arXiv 1710.02298)."""

    name: str = "rainbow"
    distribution: Literal["categorical", "quantile"] | None = "categorical"
    """What the network predicts of a return. categorical: its distribution on a support (C51).
    quantile: its quantiles (QR-DQN), which need no support. null: its mean."""
    num_atoms: Annotated[int, Range(2)] = 51
    """Atoms of the categorical distribution, or number of quantiles."""
    value_min: Real = -10.0
    """Lower end of the support of returns, with distribution: categorical."""
    value_max: Real = 10.0
    """Upper end of the support of returns, with distribution: categorical."""
    noisy_sigma: Positive | None = 0.5
    """σ₀ of the noisy layers in the head, which explore; null: plain layers, and exploration by
    epsilon."""
    dueling_size: Count | None = 64
    """Hidden units of each dueling head, value and advantage; null: one linear head. The paper:
    512."""
    n_step: Count = 3
    target_period: _Period = 250
    """Updates between copies to the target network. The paper: 2000."""
    priority_exponent: Fraction = 0.5
    """α of prioritised sampling P ∝ p^α by the cross entropy, or by |δ|; 0: uniform."""
    importance_exponent: ScheduledFraction = _IMPORTANCE
    epsilon: ScheduledFraction = 0.0
    """Exploration rate ε. Its schedule counts env steps taken, as each environment estimates."""
    evaluation_epsilon: Fraction = 0.0
    learning_rate: ScheduledNonNegative = 5e-4
    """Learning rate of Adam. The paper: 6.25e-5."""
    adam_epsilon: Positive = 1.5e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACConfig(FamilyConfig, ReplayConfig):
    """SAC with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905)."""

    name: str = "sac"
    network: Network = "auto"
    """From observations to the inputs of the ReLU layers, as for other agents. auto: convolutions
    if there is an image, and flat if not."""
    network_of_vectors = "flat"
    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Widths of the ReLU layers of the policy and of each critic. The paper: 256, 256."""
    critic_sizes: tuple[Count, ...] | None = None
    """Widths of the ReLU layers of each critic; null: hidden_sizes."""
    critic_layer_norm: bool = False
    """Normalise the inputs of each critic's ReLUs by LayerNorm (Ba et al. 2016, arXiv
    1607.06450)."""
    target_entropy: Real | None = None
    """Target entropy in nats of actions in [-1, 1], below log 2 = 0.69 per component; null: −1 per
    component."""
    initial_temperature: Positive = 1.0
    """Initial temperature α."""
    polyak: Annotated[float, Range(above=0, most=1)] = 0.005
    """τ of the moving average in the target critics, per update. 1: the critics'
    own values, without a moving average."""
    batch_size: Count = 128
    """Transitions per update, over the learner devices of a host. The paper: 256."""
    replay_ratio: Positive = 64.0
    """Rows learned from per row collected, once learning has started; an update learns from
    batch_size rows. Reset rows and repeated final rows count as collected. The paper: 256, an
    update per env step."""
    learning_rate: ScheduledNonNegative = 1e-3
    """Learning rate of Adam for policy, critics and temperature. The paper: 3e-4."""
    adam_epsilon: Positive = 1e-8


_LatentNetwork = Network | Literal["resnet"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GumbelMuZeroConfig(ValueReplayConfig):
    """Gumbel MuZero (Danihelka et al. 2022, openreview bERaNdoegnO); needs the extra `search`."""

    name: str = "gumbel_muzero"
    network: _LatentNetwork = "auto"  # type: ignore[assignment]
    """From observations to latent states: resnet, whose latent states are images, or a network as
    of other agents, whose features become a vector."""
    hidden_sizes: tuple[Count, ...] = (64,)
    latent_size: Count = 64
    """Units of the latent state; not of resnet."""
    model_sizes: tuple[Count, ...] = (64,)
    """Widths of the dense layers with LayerNorm in dynamics, policy and value."""
    channels: Count = 32
    """Channels of resnet. The paper: 256."""
    num_blocks: Natural = 1
    """Residual blocks of resnet in the dynamics and before each latent state. The paper: 16."""
    num_simulations: Count = 16
    """Simulations of a search; one search per env step. The paper: 50, or 2 … 16."""
    max_considered_actions: Count = 16
    """Maximum number of actions at the root of a search, drawn with Gumbel noise."""
    least_value_range: Positive = 1.0
    """Minimum range that the action values in a search are divided by. It keeps differences smaller
    than the model's error small."""
    unroll_length: Count = 5
    """Actions that the model is unrolled over in an update, K."""
    n_step: Count = 5
    """Rewards in a value's target; fewer near an episode's end."""
    discount: Fraction = 0.997
    num_bins: Annotated[int, Range(3)] = 51
    """Bins of the categorical rewards and values, an odd number. The paper: 601."""
    value_limit: Positive = 500.0
    """Values are clipped to ± this value."""
    reward_limit: Positive = 10.0
    """Rewards are clipped to ± this value, also in the targets of values."""
    value_cost: NonNegative = 0.25
    """Weight of the value loss. The policy and the reward have 1."""
    reanalyse_fraction: Fraction = 0.0
    """Share of a batch whose targets are computed again, by a search with newer networks. Every
    learner device computes the same number."""
    reanalyse_with: Literal["newest", "target"] = "target"
    """Networks that search for new targets: the newest ones, or their delayed copy."""
    target_period: _Period = 100
    priority_exponent: Fraction = 0.0
    """α of prioritised sampling by the error of the first value; 0: uniform. MuZero: 1."""
    importance_exponent: ScheduledFraction = 1.0
    batch_size: Count = 64
    """Sequences per update, over the learner devices of a host."""
    replay_ratio: Positive = 32.0
    """Rows learned from per row collected, once learning has started; an update learns from
    batch_size × unroll_length rows. Reset rows and repeated final rows count as collected."""
    learning_rate: ScheduledNonNegative = 1e-3
    """Learning rate of Adam."""
    max_grad_norm: Positive | None = 5.0
