"""JaxMARL: environments of several players in JAX, batched by `jax_environment`.

JaxMARL has one flag for all ends. The table `_ENDS` says which ends are those of the task, so that
the others are time limits, which truncate. Players that differ are padded, see `common_spaces`.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs.common_spaces import CommonSpaces
from sebulba.envs.deferred_imports import deferred
from sebulba.envs.jax_environment import JaxEnvironment, shared_task, take_step_limit
from sebulba.envs.jax_tasks import TaskStep
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.lookup import first_line
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, did_you_mean
from sebulba.types import PyTree

with deferred("matplotlib.pyplot"):  # which some environments draw with
    import jaxmarl
    from jaxmarl.environments import spaces as jaxmarl_spaces

_IsOver = Callable[[Any, Any], jax.Array | bool]
"""`(environment, state at the end) -> bool`: the task itself has ended, not its time."""


def _is_battle_over(environment: Any, state: Any) -> jax.Array:
    """Return whether one side of SMAX is dead."""
    alive = getattr(state, "state", state).unit_alive
    allies, enemies = alive[: environment.num_allies], alive[environment.num_allies :]
    return ~jnp.any(allies) | ~jnp.any(enemies)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Ends:
    """How the episodes of a task end."""

    is_over: _IsOver
    # JaxMARL still rewards a player that is `done` before its team: it is not out.
    pays_after_done: bool = False


_BY_TIME = _Ends(is_over=lambda environment, state: False)
_BY_ITSELF = _Ends(is_over=lambda environment, state: True)
_BATTLE = _Ends(is_over=_is_battle_over, pays_after_done=True)

_ENDS: Mapping[str, _Ends] = {
    "MPE_": _BY_TIME,
    "overcooked": _BY_TIME,
    "coin_game": _BY_TIME,
    "SMAX": _BATTLE,
    "HeuristicEnemySMAX": _BATTLE,
    "LearnedPolicyEnemySMAX": _BATTLE,
    "hanabi": _BY_ITSELF,
    # Its limit is part of the riddle.
    "switch_riddle": _BY_ITSELF,
}
"""By the beginning of an ID."""


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment:
    """Create `jaxmarl.make(env.id, **env.options)`.

    An Overcooked `layout` and an SMAX `scenario` are names. `max_episode_steps` truncates episodes.
    `time_limit: terminates` makes time limits terminations, as JaxMARL's own algorithms see them;
    an ID whose ends are not known here needs it, or `truncates`, by which all ends truncate.
    `state: true` makes observations Dicts of the player's `observation` and the `state` of all.

    Raises:
        ConfigError: JaxMARL has no such environment or option, or its players cannot be padded.
    """
    if config.id not in ids():
        raise ConfigError(f"env.id: JaxMARL has no {config.id!r}{did_you_mean(config.id, ids())}")
    options = dict(config.options)
    max_episode_steps = take_step_limit(options)
    time_limit = options.pop("time_limit", None)
    if time_limit not in (None, "truncates", "terminates"):
        raise ConfigError(
            f"env.options.time_limit: expected truncates or terminates, got {time_limit!r}"
        )
    has_state = options.pop("state", False)
    if not isinstance(has_state, bool):
        raise ConfigError(f"env.options.state: expected true or false, got {has_state!r}")
    ends = next((each for name, each in _ENDS.items() if config.id.startswith(name)), None)
    if ends is None and time_limit is None:
        raise ConfigError(
            f"env.id: it is not known here how episodes of {config.id!r} end. Set"
            " env.options.time_limit to truncates if they end by a limit of time, else to"
            " terminates"
        )
    if ends is None or time_limit == "terminates":
        pays = ends is not None and ends.pays_after_done
        is_over = _BY_TIME.is_over if time_limit == "truncates" else _BY_ITSELF.is_over
        ends = _Ends(is_over=is_over, pays_after_done=pays)
    with _refusals(config):
        environment = jaxmarl.make(config.id, **_with_objects(config.id, options))
        task = shared_task(config, lambda: JaxMarlTask(environment, ends, has_state))
    return JaxEnvironment(
        wrap(task, wrappers), num_envs=num_envs, seed=seed, max_episode_steps=max_episode_steps
    )


def ids() -> list[str]:
    """Return the ids of JaxMARL's environments."""
    return list(jaxmarl.registered_envs)


class JaxMarlTask:
    """A JaxMARL environment as a `sebulba.envs.jax_environment.JaxTask` of several players."""

    def __init__(self, environment: Any, ends: _Ends, has_state: bool = False):
        self._environment = environment
        self._has_state = has_state
        self._ends = ends
        self._agents = list(environment.agents)
        self.num_players = len(self._agents)
        key = jax.eval_shape(lambda: jax.random.key(0))
        observations, state = jax.eval_shape(environment.reset, key)
        self._common = CommonSpaces(
            [_box(observations[agent]) for agent in self._agents],
            [_gymnasium_space(environment.action_space(agent)) for agent in self._agents],
        )
        space = self._common.observation
        self.observation: PyTree = jax.ShapeDtypeStruct(space.shape, space.dtype)
        if has_state:
            of_players = jax.eval_shape(self._observed, observations)["state"]
            state_of_one = jax.ShapeDtypeStruct(of_players.shape[1:], of_players.dtype)
            self.observation = {"observation": self.observation, "state": state_of_one}
        self.action_space = self._common.action
        self._masks_of = _masks_function(environment, state)
        if self._masks_of is not None or self._common.legal is not None:
            self.action_mask = self._action_mask

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Start an episode."""
        observations, state = self._environment.reset(key)
        return jax.tree.map(jnp.asarray, state), self._observed(observations)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> TaskStep:
        """Take one step, without JaxMARL's autoreset, which replaces the final observations."""
        actions = {
            agent: self._common.act(player, action[player])
            for player, agent in enumerate(self._agents)
        }
        observations, next_state, rewards, dones, _ = self._environment.step_env(
            key, state, actions
        )
        # Some leaves change their dtype, which `lax.scan` refuses.
        next_state = jax.tree.map(
            lambda new, old: jnp.asarray(new).astype(old.dtype), next_state, state
        )
        ends = jnp.asarray(dones["__all__"], bool)
        is_over = jnp.asarray(self._ends.is_over(self._environment, next_state), bool)
        leaves = jnp.zeros(self.num_players, bool)
        if not self._ends.pays_after_done:
            leaves = self._stacked(dones, bool) & ~ends
        return (
            next_state,
            self._observed(observations),
            self._stacked(rewards, jnp.float32),
            leaves | (ends & is_over),
            jnp.broadcast_to(ends & ~is_over, leaves.shape),
        )

    def _action_mask(self, state: Any) -> jax.Array:
        """Return the legal actions, `[P, A]`."""
        if self._masks_of is None:
            return jnp.asarray(self._common.legal)
        masks = self._masks_of(state)
        return jnp.stack(
            [
                self._common.complete_legal(player, jnp.asarray(masks[agent]).astype(bool), jnp)
                for player, agent in enumerate(self._agents)
            ]
        )

    def _observed(self, observations: Mapping[str, Any]) -> PyTree:
        seen = jnp.stack(
            [
                self._common.observe(player, jnp.asarray(observations[agent]), jnp)
                for player, agent in enumerate(self._agents)
            ]
        )
        if not self._has_state:
            return seen
        # As in JaxMARL's MAPPO: its own state of the world, or all that the players observe; and
        # which player it is.
        of_all = observations.get("world_state", seen).reshape(-1).astype(jnp.float32)
        of_each = jnp.broadcast_to(of_all, (self.num_players, *of_all.shape))
        identities = jnp.eye(self.num_players, dtype=jnp.float32)
        return {"observation": seen, "state": jnp.concatenate([of_each, identities], axis=1)}

    def _stacked(self, values: Mapping[str, Any], dtype: Any) -> jax.Array:
        return jnp.stack([jnp.asarray(values[agent]).astype(dtype) for agent in self._agents])


def _masks_function(environment: Any, state: Any) -> Callable[[Any], Mapping[str, Any]] | None:
    """Return the environment's function from its state to the legal actions; None: all always are.

    Hanabi's has another name; that of JaxNav raises unless its actions are choices.
    """
    for name in ("get_avail_actions", "get_legal_moves"):
        function = getattr(environment, name, None)
        if function is None:
            continue
        try:
            jax.eval_shape(function, state)
        except NotImplementedError:
            continue
        return function
    return None


def _with_objects(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an environment with the objects that its names stand for.

    Raises:
        ConfigError: there is no such layout or scenario.
    """
    known: dict[str, Mapping[str, Any]] = {}
    if name == "overcooked":
        from jaxmarl.environments.overcooked import overcooked_layouts

        known["layout"] = overcooked_layouts
    if "SMAX" in name:
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

        known["scenario"] = MAP_NAME_TO_SCENARIO
    options = dict(options)
    for option, objects in known.items():
        if isinstance(value := options.get(option), str):
            if value not in objects:
                raise ConfigError(
                    f"env.options.{option}: {name!r} has no {value!r}{did_you_mean(value, objects)}"
                )
            options[option] = objects[value]
    return options


@contextlib.contextmanager
def _refusals(config: EnvConfig) -> Iterator[None]:
    """Raise what JaxMARL says of an environment that it cannot make as a `ConfigError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Overcooked, for its successor
            yield
    except ConfigError:
        raise
    except (ImportError, ValueError, UnboundLocalError) as error:  # of a package that is missing
        raise ConfigError(
            f"env.id: JaxMARL does not create {config.id!r}: {first_line(error)}. Install what it"
            " needs, or choose another one"
        ) from error
    except (AssertionError, AttributeError, KeyError, TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"env.options: JaxMARL does not create {config.id!r} with {dict(config.options)}:"
            f" {type(error).__name__}: {first_line(error)}"
        ) from error


def _box(shape: jax.ShapeDtypeStruct) -> gymnasium.spaces.Box:
    dtype = np.dtype(shape.dtype)
    if dtype.kind == "b":
        return gymnasium.spaces.Box(0, 1, shape.shape, np.uint8)
    is_float = np.issubdtype(dtype, np.floating)
    low, high = (-np.inf, np.inf) if is_float else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gymnasium.spaces.Box(low, high, shape.shape, dtype.type)


def _gymnasium_space(space: Any) -> gymnasium.Space:
    if isinstance(space, jaxmarl_spaces.Discrete):
        return gymnasium.spaces.Discrete(int(space.n))
    if isinstance(space, jaxmarl_spaces.Box):
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), space.shape)
            for bound in (space.low, space.high)
        )
        return gymnasium.spaces.Box(low, high, dtype=np.float32)
    raise ConfigError(
        f"env.id: expected actions of Discrete or Box of each player, got {space!r}; use another"
        " environment"
    )
