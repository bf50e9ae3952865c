"""The settings of agents with a replay: R2D2, DDQN, SAC. Imports no jax.

The defaults suit a small task on a CPU; the configs of the benchmarks have the published settings.
A subclass that repeats a field changes its default.
"""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What all agents with a replay have; a setting given again is a new default."""

    name: str = ""
    """Which agent."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the mlp torso."""
    discount: float = 0.99
    """γ."""
    batch_size: int = 64
    """Transitions of an update, over all learner devices."""
    replay_capacity: int = 100_000
    """Rows kept, over all learner devices."""
    min_replay_rows: int = 1_000
    """Rows collected, over all learner devices, before learning starts."""
    replay_ratio: float = 8.0
    """Rows learned from for each row collected once learning has started: batch_size an update.
    Reset rows count among the collected ones."""
    learning_rate: float = 1e-3
    """Of Adam."""
    adam_epsilon: float = 1e-5
    """ε of Adam."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearningConfig(ReplayConfig):
    """What all agents that learn action values have."""

    torso: Literal["mlp", "dqn"] = "mlp"
    """mlp: tanh layers; dqn: the three convolutions and the dense layer of DQN."""
    frame_stack: int | None = None
    """Frames stacked on the first axis of an observation, to be stored once; null: not stacked."""
    frame_stack_fill: Literal["repeat", "zeros"] = "repeat"
    """What an episode's first stack shows of the past: the first frame (EnvPool), or zeros."""
    n_step: int = 1
    """Rewards in a target; fewer where an episode ends before."""
    priority_exponent: float = 0.0
    """α of the sampling P ∝ p^α; 0: uniform."""
    importance_exponent: float = 0.4
    """β of the importance weights."""
    target_period: int = 250
    """Updates between two copies to the target network."""
    evaluation_epsilon: float = 0.0
    """ε in evaluation."""
    max_grad_norm: float | None = 10.0
    """Gradients are clipped to this global norm; null: not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class R2D2Config(QLearningConfig):
    """R2D2 (Kapturowski et al. 2019, openreview r1lyTjAqYX)."""

    name: str = "r2d2"
    hidden_sizes: tuple[int, ...] = (64,)
    lstm_size: int = 64
    """Units of the LSTM, which is fed the last action and reward too."""
    dueling_size: int = 64
    """Hidden units of each of the two heads, value and advantage."""
    discount: float = 0.997
    n_step: int = 3
    """Rewards in a target; fewer at the end of a sequence. The paper: 5."""
    burn_in: int = 8
    """Transitions that only unroll the recurrent state, l. The paper: 40."""
    learn_length: int = 16
    """Transitions that are learned from, m. The paper: 80."""
    rescale_epsilon: float = 1e-3
    """ε of the value rescaling h."""
    batch_size: int = 32
    """Sequences of an update, over all learner devices. The paper: 64."""
    replay_ratio: float = 16.0
    """Rows learned from for each row collected once learning has started: batch_size × learn_length
    an update. Reset rows count on both sides. The paper: about 0.8."""
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    priority_mix: float = 0.9
    """η of the priority η·max|δ| + (1 − η)·mean|δ|."""
    target_period: int = 100
    """Updates between two copies to the target network. The paper: 2500."""
    epsilon_base: float = 0.4
    """Environment i of N explores with ε = base^(1 + exponent·i / (N − 1))."""
    epsilon_exponent: float = 7.0
    """See epsilon_base."""
    learning_rate: float = 1e-3
    """Of Adam. The paper: 1e-4."""
    adam_epsilon: float = 1e-5
    """ε of Adam. The paper: 1e-3."""
    max_grad_norm: float | None = 40.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DDQNConfig(QLearningConfig):
    """Double DQN (van Hasselt et al. 2016, arXiv 1509.06461), also prioritised and dueling."""

    name: str = "ddqn"
    dueling_size: int | None = None
    """Hidden units of each of two heads, value and advantage; null: one linear head."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this in the learner; null: not."""
    batch_size: int = 64
    """Transitions of an update, over all learner devices. The paper: 32."""
    replay_ratio: float = 8.0
    """Rows learned from for each row collected once learning has started: batch_size an update.
    Reset rows count among the collected ones. The paper: 8, an update every 4 agent steps."""
    priority_exponent: float = 0.0
    """α of the sampling P ∝ |δ|^α; 0: uniform. Schaul et al. 2016 (arXiv 1511.05952): 0.6."""
    target_period: int = 250
    """Updates between two copies to the target network. The paper: 7500."""
    epsilon_start: float = 1.0
    """ε of the exploration at the start."""
    epsilon_end: float = 0.05
    """ε once epsilon_decay_env_steps are over; in between it falls linearly."""
    epsilon_decay_env_steps: int = 10_000
    """Env steps of one host, over all its environments; 0: epsilon_end from the beginning."""
    epsilon_exponent: float = 0.0
    """Environment i of N comes down to epsilon_end^(1 + exponent·i / (N − 1)); 0: all alike."""
    evaluation_epsilon: float = 0.001
    learning_rate: float = 5e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """SAC with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905)."""

    name: str = "sac"
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the ReLU layers of the policy and of each critic. The paper: 256, 256."""
    target_entropy: float | None = None
    """In nats, of actions in [-1, 1]; null: minus the number of components of an action."""
    initial_temperature: float = 1.0
    """α at the start."""
    polyak: float = 0.005
    """τ: the share of the critics that goes into the target critics at each update."""
    batch_size: int = 128
    """Transitions of an update, over all learner devices. The paper: 256."""
    replay_ratio: float = 64.0
    """Rows learned from for each row collected once learning has started: batch_size an update.
    Reset rows count among the collected ones. The paper: 256, an update each env step."""
    learning_rate: float = 1e-3
    """Of Adam, for policy, critics and temperature. The paper: 3e-4."""
    adam_epsilon: float = 1e-8
