"""What a ring does not get from its seed: the agent, and the jitted functions.

Rings whose configs differ in their seed can share them. Then nothing is traced or compiled twice,
except programs with EnvPool inside them: each of its pools is a program of its own.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from sebulba.agent import Agent
from sebulba.config import Config
from sebulba.devices.memory import MemoryPlan
from sebulba.devices.roles import Roles
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.learner import LearnerPrograms
from sebulba.types import RunSpec

# `init_from` gives arrays only, and the directory is that of files.
_MAY_DIFFER = ("seed", "run_dir", "resume", "init_from")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RingPrograms:
    """The agent and the jitted functions of rings that differ in their seed."""

    config: Config
    devices: Roles
    run_spec: RunSpec
    agent: Agent
    memory_plan: MemoryPlan
    learner: LearnerPrograms
    act: Mapping[jax.Device, ActFunctions]  # by the actor device
    # Programs of `Anakin` by the updates of a learner cycle: the act cycles that are part of the
    # program, the program, and the most learner cycles that it takes.
    of_cycles: dict[int, tuple[tuple[Any, ...], Callable[..., Any], int]] = dataclasses.field(
        default_factory=dict
    )

    def check(self, config: Config, devices: Roles) -> None:
        """Check that a ring can use these programs.

        Raises:
            ValueError: the ring has other devices, or a config that differs in more than the seed
                and its files.
        """
        for field in dataclasses.fields(Config):
            ours, other = getattr(self.config, field.name), getattr(config, field.name)
            if field.name not in _MAY_DIFFER and ours != other:
                raise ValueError(
                    f"programs: expected {field.name} {ours}, got {other}. Rings share programs"
                    " only if their configs differ in their seed alone"
                )
        for role in ("actor", "learner"):
            ours, other = getattr(self.devices, role), getattr(devices, role)
            if ours != other:
                raise ValueError(f"programs: expected the {role} devices {ours}, got {other}")
