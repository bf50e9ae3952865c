"""Makes the single environments of a batch, each with its own number.

Gymnasium's `make_vec` would make them all with the same arguments. Worker processes import this
module, so it must not import jax.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sebulba.envs.gymnasium_results import checked
from sebulba.envs.identity import Purpose, asked_for
from sebulba.envs.old_gym import OldGym
from sebulba.envs.wrappers import Wrapper


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvFactory:
    """Makes one environment, with its wrappers; can be pickled, for a worker process."""

    spec: EnvSpec
    options: dict[str, Any]  # of `gymnasium.make` and of the environment's constructor
    wrappers: tuple[Wrapper, ...]
    env_index: int
    purpose: Purpose
    # The process in which environments are made only to read their spaces; None: there is none.
    inspecting_process: int | None

    def __call__(self) -> gymnasium.Env:
        """Return the environment.

        Raises:
            ConfigError: a wrapper does not return a Gymnasium environment.
        """
        is_inspected = os.getpid() == self.inspecting_process
        identity = {
            "env_index": self.env_index,
            "purpose": "inspect" if is_inspected else self.purpose,
        }
        options = asked_for(constructor(self.spec.entry_point), identity) | self.options
        env = gymnasium.make(self.spec, **options)
        for wrapper in self.wrappers:
            arguments = asked_for(wrapper.function, identity) | wrapper.arguments
            wrapped = dataclasses.replace(wrapper, arguments=arguments)(env)
            if not isinstance(wrapped, gymnasium.Env):
                raise wrapper.refusal("a Gymnasium environment", type(wrapped).__name__)
            env = wrapped
        return checked(env)


def constructor(entry_point: Any) -> Callable[..., Any] | None:
    """Return the class or function that an entry point stands for; None: there is none."""
    if isinstance(entry_point, str):
        return load_env_creator(entry_point)
    is_old = isinstance(entry_point, functools.partial) and entry_point.func is OldGym
    return entry_point.args[0] if is_old else entry_point
