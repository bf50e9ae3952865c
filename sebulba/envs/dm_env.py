"""dm_env: environments with DeepMind's interface, such as those of bsuite and dm_control."""

import dataclasses
import functools
from collections.abc import Sequence

from gymnasium.envs.registration import EnvSpec

from sebulba.config import EnvConfig
from sebulba.envs import gymnasium as gymnasium_suite
from sebulba.envs.dm_env_to_gymnasium import DmEnv
from sebulba.envs.gymnasium import GymnasiumEnvironment
from sebulba.envs.identity import Purpose
from sebulba.envs.lookup import refuse_options
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError
from sebulba.references import Named, load


def make(
    config: EnvConfig,
    *,
    num_envs: int,
    seed: int,
    wrappers: Sequence[Wrapper] = (),
    purpose: Purpose = "inspect",
    env_index: int = 0,
) -> GymnasiumEnvironment:
    """Create `num_envs` environments, each with a call of the function `env.id`.

    An id is `module:Name` of a class or function that makes a `dm_env.Environment`, such as
    `bsuite:load_from_id` or `dm_control.suite:load`. The options `vectorization_mode` (`sync` or
    `async`) and `max_episode_steps`, wrappers, `env_index` and `purpose` are those of the suite
    `gymnasium`; other options are arguments of the function.

    Raises:
        ConfigError: there is no such function or option, it makes something else, or a spec is not
            supported.
        EnvironmentFault: the function raised in a worker process.
    """
    if config.options.get("vectorization_mode") == "vector_entry_point":
        refuse_options(["vectorization_mode"], {"vectorization_mode": "set sync or async"})
    function = load(config.id, key="env.id")
    if not callable(function):
        raise ConfigError(f"env.id: expected a function, got {config.id} = {function!r}")
    spec = EnvSpec(
        id="Own-v0",
        entry_point=functools.partial(DmEnv, function),
        disable_env_checker=True,  # which warns of what dm_env allows
    )
    env = dataclasses.replace(config, id=Named(str(config.id), spec))
    return gymnasium_suite.make(
        env,
        num_envs=num_envs,
        seed=seed,
        wrappers=wrappers,
        purpose=purpose,
        env_index=env_index,
    )
