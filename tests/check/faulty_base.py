"""What agents with a fault share."""

import dataclasses
from typing import Any

from sebulba.config.agents import agent_factory


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultyConfig:
    """Settings of an agent with a fault."""

    name: str
    """`module:Name` of the faulty agent."""
    sound: Any = None
    """Settings of the sound agent."""


class Faulty:
    """Without a fault: delegates everything to the sound agent."""

    Config = FaultyConfig

    def __init__(self, config, run_spec):
        self.sound = agent_factory(config.sound.name)(config.sound, run_spec)

    def __getattr__(self, name):
        return getattr(self.sound, name)
