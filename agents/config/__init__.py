"""The settings of every agent: one frozen dataclass each. Imports no jax.

Defaults are those of a small task on a CPU; the paper's are in the configs of its benchmark.
"""

from agents.config.on_policy import (
    A2CConfig,
    ActorCriticConfig,
    ImpalaConfig,
    PolicyGradientConfig,
    PPOConfig,
    RandomConfig,
)
from agents.config.replay import (
    DDQNConfig,
    QLearningConfig,
    R2D2Config,
    ReplayConfig,
    SACConfig,
)

__all__ = [
    "A2CConfig",
    "ActorCriticConfig",
    "DDQNConfig",
    "ImpalaConfig",
    "PPOConfig",
    "PolicyGradientConfig",
    "QLearningConfig",
    "R2D2Config",
    "RandomConfig",
    "ReplayConfig",
    "SACConfig",
]
