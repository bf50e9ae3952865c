"""Settings that agents share, as bases of their own. Imports no jax."""

import dataclasses

from sebulba.toolkit.references import Network
from sebulba.toolkit.schedules import Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Settings of all agents with a network."""

    name: str = ""
    """Agent name."""
    network: Network = "mlp"
    """From observations to features: tanh layers, none, convolutions, or your own flax module."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the mlp's tanh layers; your own network gets them if it has this field."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(NetworkConfig):
    """Settings of all agents with a replay."""

    discount: float = 0.99
    """Discount factor γ."""
    batch_size: int = 64
    """Transitions per update, over all learner devices."""
    replay_capacity: int = 100_000
    """Rows (time steps) that the replay holds, over all learner devices."""
    min_replay_rows: int = 1_000
    """Rows collected before learning starts, over all learner devices."""
    replay_ratio: float = 8.0
    """Rows learned from per row collected, once learning has started; an update learns from
    batch_size rows. Reset rows count as collected."""
    learning_rate: Scheduled = 1e-3
    """Learning rate of Adam."""
    adam_epsilon: float = 1e-5
    """ε of Adam."""
