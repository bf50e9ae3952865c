"""PettingZoo: players that act at the same time, in this process or in worker processes.

`teams` makes of each environment one for Gymnasium; here its players become rows of the batch.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs import gymnasium as gymnasium_suite
from sebulba.envs import spaces, teams
from sebulba.envs.gymnasium import GymnasiumEnvironment
from sebulba.envs.lookup import refuse_options
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError
from sebulba.references import Named, import_module, load
from sebulba.types import EnvStep, PyTree

# Gymnasium's own checker warns of what `teams` copies, and of spaces as PettingZoo has them.
_UNCHECKED = {"disable_env_checker": True}


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> "TeamsEnvironment":
    """Create `num_envs` parallel environments.

    An id is `package:environment`, such as `mpe2:simple_spread_v3` or `pettingzoo.sisl:pursuit_v5`,
    whose `parallel_env` is taken, else its `env`, which PettingZoo converts; or `module:Name` of a
    class or function of your own that makes an environment. The option `vectorization_mode` is
    `sync` (default) or `async` (one process per environment), `max_episode_steps` truncates
    episodes, `state: true` makes observations Dicts of the player's `observation` and the `state`
    of all, other options go to the environment. Wrappers are functions from one environment to
    another.

    Raises:
        ConfigError: there is no such environment or option, its players take turns, or they differ
            in spaces that cannot be padded.
        EnvironmentFault: the constructor raised in a worker process.
    """
    if config.options.get("vectorization_mode") == "vector_entry_point":
        refuse_options(["vectorization_mode"], {"vectorization_mode": "set sync or async"})
    team = functools.partial(teams.Team, _maker(config.id), tuple(wrappers))
    options = config.options | _UNCHECKED
    env = dataclasses.replace(config, id=Named(str(config.id), team), options=options)
    return TeamsEnvironment(gymnasium_suite.make(env, num_envs=num_envs, seed=seed))


def _maker(name: str) -> Callable[..., Any]:
    """Return what makes the environment of an id.

    Raises:
        ConfigError: there is no such module or name, or it makes nothing.
    """
    if isinstance(name, Named):
        return name.value
    package, _, rest = name.partition(":")
    if not rest:
        package, _, rest = name.rpartition(".")
        written = f"; write {package}:{rest}" if package else ""
        raise ConfigError(
            f"env.id: expected package:environment, such as mpe2:simple_spread_v3, got {name!r}"
            f"{written}"
        )
    module = import_module(package, key="env.id")
    made = getattr(module, rest, None)
    if made is None and _exists(f"{package}.{rest}"):
        made = import_module(f"{package}.{rest}", key="env.id")
    if made is None:
        return load(name, key="env.id")  # which says what there is
    made = getattr(made, "parallel_env", getattr(made, "env", made))
    if not callable(made):
        raise ConfigError(
            f"env.id: expected a class, a function, or a module with parallel_env or env, got"
            f" {name} = {made!r}"
        )
    return made


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


class TeamsEnvironment:
    """`N` teams of `P` players as an `Environment` of `N · P` rows."""

    def __init__(self, environment: GymnasiumEnvironment):
        """Read the players' spaces.

        Args:
            environment: of `teams.Team`s.
        """
        self._environment = environment
        self.num_envs = environment.num_envs
        team = environment.observation_space
        observation, *_ = team[teams.OBSERVATION].spaces
        action, *others = environment.action_space.spaces
        self._num_players = 1 + len(others)
        self.spec = dataclasses.replace(
            spaces.environment_spec(observation, action, has_masks=teams.LEGAL in team.spaces),
            num_players=self._num_players,
        )

    @property
    def timeout_s(self) -> float | None:
        """For a step or a reset of worker processes."""
        return self._environment.timeout_s

    @timeout_s.setter
    def timeout_s(self, value: float | None) -> None:
        self._environment.timeout_s = value

    def reset(self) -> EnvStep:
        """Start all episodes; see `Environment.reset`."""
        return self._as_rows(self._environment.reset())

    def restart(self) -> EnvStep:
        """Start a new episode in every environment, drawn from its current random state."""
        return self._as_rows(self._environment.restart())

    def step(self, action: np.ndarray) -> EnvStep:
        """Step all environments; see `Environment.step`."""
        spaces.check_action(action, self.spec.action_space, self.num_envs * self._num_players)
        of_team = self._environment.spec.action_space
        team_action = action.reshape(self.num_envs, *of_team.shape)
        return self._as_rows(self._environment.step(team_action))

    def fused(self) -> None:
        """Return None: PettingZoo's environments run in Python."""

    def settings(self) -> dict[str, Any]:
        """Return the episode limit and the arguments of the environment's constructor."""
        settings = self._environment.settings()
        return {name: value for name, value in settings.items() if name not in _UNCHECKED}

    def render(self) -> np.ndarray:
        """Return the first environment's frame; needs `env.options.render_mode: rgb_array`."""
        return self._environment.render()

    def close(self) -> None:
        """End the worker processes, if any; may be called twice."""
        self._environment.close()

    def _as_rows(self, of_teams: EnvStep) -> EnvStep:
        """Return the rows of the players, those of a team one after another."""
        parts = of_teams.observation
        terminated, truncated = (
            parts[name].reshape(-1).astype(bool) for name in (teams.TERMINATED, teams.TRUNCATED)
        )
        # A limit of steps truncates the team, and so the players that have not left.
        is_cut = np.repeat(of_teams.truncated, self._num_players) & ~terminated
        mask = None
        if self.spec.action_mask is not None:
            legal = parts[teams.LEGAL].reshape(-1, *self.spec.action_mask.shape).astype(bool)
            mask = spaces.complete_mask(legal, self.spec.action_space)
        return EnvStep(
            observation=_stacked(parts[teams.OBSERVATION]),
            reward=parts[teams.REWARD].reshape(-1),
            terminated=terminated,
            truncated=truncated | is_cut,
            is_first=np.repeat(of_teams.is_first, self._num_players),
            action_mask=mask,
        )


def _stacked(observations: tuple[PyTree, ...]) -> PyTree:
    """Return `[N · P, ...]` for a tuple `[P]` of `[N, ...]`."""

    def stack(*leaves: np.ndarray) -> np.ndarray:
        stacked = np.stack(leaves, axis=1)
        return stacked.reshape(-1, *stacked.shape[2:])

    return jax.tree.map(stack, *observations)
