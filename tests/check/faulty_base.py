"""What agents with a fault share."""

import dataclasses
import importlib
from typing import Any

from sebulba.config.agents import agent_factory

_MODULES = ("faulty_agents", "faulty_ppo", "faulty_replay", "sound_wrappers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultyConfig:
    """Settings of an agent with a fault."""

    name: str
    """`module:Name` of the faulty agent."""
    sound: Any = None
    """Settings of the sound agent."""


def faulty(name, sound):
    """Return settings of the wrapper of this name, around a sound agent."""
    modules = (f"tests.check.{module}" for module in _MODULES)
    module = next(each for each in modules if hasattr(importlib.import_module(each), name))
    return FaultyConfig(name=f"{module}:{name}", sound=sound)


class Faulty:
    """Without a fault: delegates everything to the sound agent."""

    Config = FaultyConfig

    def __init__(self, config, run_spec):
        self.sound = agent_factory(config.sound.name)(config.sound, run_spec)

    def __getattr__(self, name):
        return getattr(self.sound, name)


def with_trajectory(agent, change):
    """Return the sound agent's `update_experience`, with changed rows."""

    def update_experience(networks, experience, initial, final, trajectory, actor_id):
        trajectory = dataclasses.replace(trajectory, env_steps=change(trajectory.env_steps))
        return agent.sound.update_experience(
            networks, experience, initial, final, trajectory, actor_id
        )

    return update_experience
