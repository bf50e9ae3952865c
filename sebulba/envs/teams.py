"""PettingZoo's parallel environments as Gymnasium environments, one for all of their players.

An observation holds that of each player, the reward and the flags of each, and the legal actions if
there are masks; an action holds one of each player. So Gymnasium's vector environments step them,
in this process or in worker processes, which import this module. It must not import jax.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from sebulba.envs.common_spaces import CommonSpaces
from sebulba.envs.gymnasium_wrappers import ACTION_MASK
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError

OBSERVATION, REWARD, TERMINATED, TRUNCATED, LEGAL = (
    "observation",
    "reward",
    "terminated",
    "truncated",
    "legal",
)
"""The keys of a team's observation."""


class Team(gymnasium.Env):
    """All players of a parallel environment.

    A player that has left repeats its final observation and flags, with reward 0, until all have
    left, which terminates the episode of the team.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        wrappers: Sequence[Wrapper] = (),
        *,
        state: bool = False,
        **options: Any,
    ) -> None:
        """Make an environment.

        Args:
            make: makes a parallel environment, or one of PettingZoo's AEC kind that can be
                converted to one.
            wrappers: functions from one environment to another, the innermost first.
            state: whether each player's observation is a Dict of its `observation` and the `state`
                of all, which the environment returns from `state()`.
            options: arguments of `make`.

        Raises:
            ConfigError: its players take turns, or differ in spaces that cannot be padded, or it
                has no state.
        """
        environment = make(**options)
        for wrapper in wrappers:
            environment = wrapper(environment)
        self._environment = environment = _as_parallel(environment)
        self.own_class = type(getattr(environment, "unwrapped", environment))
        self._players = list(environment.possible_agents)
        observed = [environment.observation_space(player) for player in self._players]
        self._has_masks = [ACTION_MASK in _children(space) for space in observed]
        actions = [environment.action_space(player) for player in self._players]
        self._common = CommonSpaces([_without_mask(space) for space in observed], actions)
        num_players = len(self._players)
        self._has_state = state
        observation = self._common.observation
        if state:
            parts = {"observation": observation, "state": _state_space(environment)}
            observation = gymnasium.spaces.Dict(parts)
        flags = gymnasium.spaces.MultiBinary(num_players)
        spaces = {
            OBSERVATION: gymnasium.spaces.Tuple([observation] * num_players),
            REWARD: gymnasium.spaces.Box(-np.inf, np.inf, (num_players,), np.float32),
            TERMINATED: flags,
            TRUNCATED: flags,
        }
        self._num_choices = 0
        if any(self._has_masks) or self._common.legal is not None:
            self._num_choices = gymnasium.spaces.flatdim(self._common.action)
            spaces[LEGAL] = gymnasium.spaces.MultiBinary([num_players, self._num_choices])
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Tuple([self._common.action] * num_players)
        self.metadata = {"render_modes": [], **getattr(environment, "metadata", {})}
        self.render_mode = getattr(environment, "render_mode", None)
        self._observed: list[Any] = []  # of each player, the latest
        self._legal = np.ones((num_players, self._num_choices), np.int8)
        self._terminated = np.zeros(num_players, np.int8)
        self._truncated = np.zeros(num_players, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode of all players.

        Raises:
            ValueError: a player comes in later than the others.
        """
        super().reset(seed=seed)
        observations, _ = self._environment.reset(seed=seed, options=options)
        if missing := [player for player in self._players if player not in observations]:
            raise ValueError(
                f"expected observations of all possible_agents at a reset, got none of {missing}"
            )
        self._terminated, self._truncated = np.zeros((2, len(self._players)), np.int8)
        self._observed = [None] * len(self._players)
        state = self._state()
        for number, player in enumerate(self._players):
            self._observe(number, observations[player], state)
        return self._row(np.zeros(len(self._players), np.float32)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step of the players that have not left."""
        is_out = (self._terminated | self._truncated).astype(bool)
        actions = {
            player: self._common.act(number, action[number])
            for number, player in enumerate(self._players)
            if not is_out[number]
        }
        observations, rewards, terminated, truncated, _ = self._environment.step(actions)
        reward, state = np.zeros(len(self._players), np.float32), self._state()
        for number, player in enumerate(self._players):
            if is_out[number]:
                continue
            if player in observations:
                self._observe(number, observations[player], state)
            reward[number] = rewards.get(player, 0.0)
            self._terminated[number] = bool(terminated.get(player, False))
            self._truncated[number] = (
                bool(truncated.get(player, False)) and not (self._terminated[number])
            )
            if player not in self._environment.agents and not self._truncated[number]:
                self._terminated[number] = True
            if self._terminated[number] or self._truncated[number]:
                # To be repeated; the environment may write to its own arrays.
                self._observed[number] = copy.deepcopy(self._observed[number])
        is_over = bool((self._terminated | self._truncated).all())
        return self._row(reward), 0.0, is_over, False, {}

    def render(self) -> Any:
        """Return a frame of all players."""
        return self._environment.render()

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if hasattr(self._environment, "close"):
            self._environment.close()

    def _state(self) -> np.ndarray | None:
        return np.array(self._environment.state()) if self._has_state else None

    def _observe(self, number: int, observation: Any, state: np.ndarray | None) -> None:
        """Keep the observation of a player, and its legal actions."""
        mask = None
        if self._has_masks[number]:
            parts = dict(observation)
            mask = np.asarray(parts.pop(ACTION_MASK), np.int8)
            observation = parts["observation"] if set(parts) == {"observation"} else parts
        observed = self._common.observe(number, observation)
        self._observed[number] = (
            observed if state is None else {"observation": observed, "state": state}
        )
        if self._num_choices:
            if mask is None:
                mask = np.ones(self._num_choices, np.int8)
                if self._common.legal is not None:
                    mask = self._common.legal[number].astype(np.int8)
            self._legal[number] = self._common.complete_legal(number, mask)

    def _row(self, reward: np.ndarray) -> dict[str, Any]:
        row = {
            OBSERVATION: tuple(self._observed),
            REWARD: reward,
            TERMINATED: self._terminated.copy(),
            TRUNCATED: self._truncated.copy(),
        }
        return row | ({LEGAL: self._legal.copy()} if self._num_choices else {})


def _as_parallel(environment: Any) -> Any:
    """Return an environment whose players act at the same time.

    Raises:
        ConfigError: its players take turns.
    """
    if not hasattr(environment, "agent_iter"):  # which only an AEC environment has
        return environment
    from pettingzoo.utils.conversions import aec_to_parallel

    try:
        return aec_to_parallel(environment)
    except AssertionError as error:
        name = getattr(environment, "metadata", {}).get("name", type(environment).__name__)
        raise ConfigError(
            f"env.id: expected players that act at the same time, got {name}, whose players take"
            " turns. Choose another one; the suite pgx has games in turn against an opponent"
        ) from error


def _state_space(environment: Any) -> gymnasium.Space:
    space = getattr(environment, "state_space", None)
    if not isinstance(space, gymnasium.Space):
        name = getattr(environment, "metadata", {}).get("name", type(environment).__name__)
        raise ConfigError(
            "env.options.state: expected an environment with state() and a state_space, got"
            f" {name}. Set it to false, or add both in a wrapper"
        )
    return space


def _children(space: gymnasium.Space) -> Mapping[str, gymnasium.Space]:
    return space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}


def _without_mask(space: gymnasium.Space) -> gymnasium.Space:
    """Return what a player observes besides its legal actions; if it is one part, that part."""
    children = dict(_children(space))
    if children.pop(ACTION_MASK, None) is None:
        return space
    if set(children) == {"observation"}:
        return children["observation"]
    return gymnasium.spaces.Dict(children)
