"""One observation and one action space for the players of an environment, which share a network.

Equal spaces stay as they are. Where players differ, an observation becomes a vector: its numbers,
padded with zeros up to the longest one, and a one-hot vector of the player. Choices are padded up
to the largest number of them, of which those that a player has are legal; vectors of real numbers
are padded up to the longest, of which a player's first numbers are used. Worker processes import
this module, so it must not import jax.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from sebulba.errors import ConfigError

if TYPE_CHECKING:
    from sebulba.types import Array


class CommonSpaces:
    """The spaces that players have in common, and what each of them observes and does."""

    def __init__(
        self,
        observations: Sequence[gymnasium.Space],
        actions: Sequence[gymnasium.Space],
    ):
        """Find the common spaces.

        Args:
            observations: of the players, `[P]`.
            actions: of the players, `[P]`.

        Raises:
            ConfigError: the players differ in spaces that cannot be padded.
        """
        self._observations, self._actions = tuple(observations), tuple(actions)
        self.action, self.legal = _common_action(self._actions)
        self._acts_as_common = [space == self.action for space in self._actions]
        is_one = all(space == self._observations[0] for space in self._observations)
        self.are_equal = is_one and all(space == self._actions[0] for space in self._actions)
        self.observation = self._observations[0] if self.are_equal else self._padded()

    @property
    def num_players(self) -> int:
        """`P`."""
        return len(self._actions)

    def observe(self, player: int, observation: Any, xp: Any = np) -> Any:
        """Return what a player observes, as an observation of the common space.

        Args:
            player: its number.
            observation: of its own space.
            xp: numpy or jax.numpy.
        """
        if self.are_equal:
            return observation
        numbers = xp.asarray(observation).reshape(-1).astype(np.float32)
        padding = xp.zeros(self._num_padded - len(numbers), np.float32)
        identity = xp.asarray(np.eye(self.num_players, dtype=np.float32)[player])
        return xp.concatenate([numbers, padding, identity])

    def act(self, player: int, action: Any) -> Any:
        """Return a player's action, for one of the common space."""
        own = self._actions[player]
        if self._acts_as_common[player]:
            return action
        if isinstance(own, Discrete):
            return action % own.n  # one that is not legal is a choice all the same
        return action[: own.shape[0]]

    def complete_legal(self, player: int, mask: "Array", xp: Any = np) -> "Array":
        """Return a player's mask of its own choices, as one of the common choices."""
        if self.legal is None:
            return mask
        missing = self.legal.shape[1] - mask.shape[0]
        return xp.concatenate([mask, xp.zeros(missing, mask.dtype)])

    def _padded(self) -> Box:
        for player, space in enumerate(self._observations):
            if not isinstance(space, Box) or len(space.shape) > 1:
                raise ConfigError(
                    "env.id: expected vectors as observations of players that differ, got"
                    f" {space} of player {player}. Wrap the environment so that the players have"
                    " equal spaces, or vectors"
                )
        self._num_padded = max(math.prod(space.shape) for space in self._observations)
        return Box(-np.inf, np.inf, (self._num_padded + self.num_players,), np.float32)


def _common_action(
    spaces: Sequence[gymnasium.Space],
) -> tuple[gymnasium.Space, np.ndarray | None]:
    """Return the common action space, and the legal choices `[P, A]` of choices that differ."""
    if all(space == spaces[0] for space in spaces):
        return spaces[0], None
    if all(isinstance(space, Discrete) and space.start == 0 for space in spaces):
        sizes = np.array([space.n for space in spaces])
        largest = int(sizes.max())
        return Discrete(largest), np.arange(largest) < sizes[:, None]
    if all(isinstance(space, Box) and len(space.shape) == 1 for space in spaces):
        longest = max(spaces, key=lambda space: space.shape[0])
        if all(
            np.array_equal(space.low, longest.low[: len(space.low)])
            and np.array_equal(space.high, longest.high[: len(space.high)])
            for space in spaces
        ):
            return longest, None
    raise ConfigError(
        "env.id: expected action spaces of players that are equal, all Discrete from 0 on, or all"
        f" vectors with the same bounds, got {', '.join(map(str, dict.fromkeys(spaces)))}. Wrap"
        " the environment so that the players have equal actions"
    )
