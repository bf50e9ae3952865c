"""Changes single kinds of rows of recorded trajectories."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from sebulba.tools.check.recording import RecordedTrajectory
from sebulba.types import EnvStep, PyTree, Trajectory

Rows = Callable[[EnvStep], np.ndarray]
"""Which rows: `[T + 1, B]` bool of a trajectory's rows."""

_SHIFT = 0.37


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """An entry of a recorded trajectory."""

    item: int  # among the recorded trajectories
    row: int
    env: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Perturbation:
    """Another value of one field, in rows of one kind."""

    field: str  # of FIELDS
    rows: Rows
    action_space: gymnasium.Space

    def places(self, items: Sequence[RecordedTrajectory]) -> Iterator[Place]:
        """Yields the entries that `apply` would change."""
        for number, item in enumerate(items):
            for row, env in np.argwhere(self._mask(item)):
                yield Place(item=number, row=int(row), env=int(env))

    def apply(
        self, items: Sequence[RecordedTrajectory], only: Place | None = None
    ) -> list[RecordedTrajectory]:
        """Returns the trajectories with the field changed in all rows of the kind, or in one."""
        return [
            self._applied(item, _only(only, number, self._mask(item)))
            for number, item in enumerate(items)
        ]

    def _mask(self, item: RecordedTrajectory) -> np.ndarray:
        mask = self.rows(item.trajectory.env_steps)
        return mask[:-1] if FIELDS[self.field].is_of_transitions else mask

    def _applied(self, item: RecordedTrajectory, mask: np.ndarray) -> RecordedTrajectory:
        trajectory = FIELDS[self.field].change(item.trajectory, mask, self.action_space)
        return dataclasses.replace(item, trajectory=trajectory)


def _only(place: Place | None, number: int, mask: np.ndarray) -> np.ndarray:
    if place is None:
        return mask
    only = np.zeros_like(mask)
    if place.item == number:
        only[place.row, place.env] = True
    return only


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """What a trajectory holds of a row."""

    change: Callable[[Trajectory, np.ndarray, gymnasium.Space], Trajectory]
    is_of_transitions: bool = False  # `T` rows and not `T + 1`


def _of_env_steps(**changes: Callable[[PyTree], PyTree]) -> Callable[..., Trajectory]:
    def change(trajectory: Trajectory, mask: np.ndarray, space: gymnasium.Space) -> Trajectory:
        del space
        values = {
            name: _where(
                mask, other(getattr(trajectory.env_steps, name)), trajectory.env_steps, name
            )
            for name, other in changes.items()
        }
        env_steps = dataclasses.replace(trajectory.env_steps, **values)
        return dataclasses.replace(trajectory, env_steps=env_steps)

    return change


def _where(mask: np.ndarray, new: PyTree, owner: Any, name: str) -> PyTree:
    def select(new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return np.where(mask.reshape(*mask.shape, *(1,) * (old.ndim - 2)), new, old)

    return jax.tree.map(select, new, getattr(owner, name))


def other_values(tree: PyTree) -> PyTree:
    """Returns another value for each element, within the range of those of the probe."""

    def other(leaf: np.ndarray) -> np.ndarray:
        if np.issubdtype(leaf.dtype, np.floating):
            return leaf + leaf.dtype.type(_SHIFT)
        if leaf.dtype == np.uint8:
            return leaf + np.uint8(91)
        return (1 - leaf).astype(leaf.dtype)

    return jax.tree.map(other, tree)


def _change_action(trajectory: Trajectory, mask: np.ndarray, space: gymnasium.Space) -> Trajectory:
    other = _other_action(trajectory.action, space)
    return dataclasses.replace(trajectory, action=_where(mask, other, trajectory, "action"))


def _other_action(action: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    if isinstance(space, gymnasium.spaces.Box):
        return 0.5 * action + np.float32(0.25)
    size = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    return (space.start + (action - space.start + 1) % size).astype(action.dtype)


def _change_extras(trajectory: Trajectory, mask: np.ndarray, space: gymnasium.Space) -> Trajectory:
    del space
    other = other_values(trajectory.extras)
    return dataclasses.replace(trajectory, extras=_where(mask, other, trajectory, "extras"))


FIELDS: dict[str, Field] = {
    # Rewards of the probe are in [0, 0.9]: these have another sign or size, and no clip is reached.
    "reward": Field(change=_of_env_steps(reward=lambda reward: np.float32(_SHIFT) - reward)),
    "observation": Field(change=_of_env_steps(observation=other_values)),
    "terminated, truncated": Field(
        change=_of_env_steps(terminated=np.ones_like, truncated=np.zeros_like)
    ),
    "kind of end": Field(change=_of_env_steps(terminated=np.zeros_like, truncated=np.ones_like)),
    "action": Field(change=_change_action, is_of_transitions=True),
    "extras": Field(change=_change_extras, is_of_transitions=True),
}
"""What can be changed, by its name in messages."""


def is_reset(env_steps: EnvStep) -> np.ndarray:
    """Rows that begin an episode."""
    return env_steps.is_first


def is_terminated(env_steps: EnvStep) -> np.ndarray:
    """Rows that terminate an episode."""
    return env_steps.terminated


def is_truncated(env_steps: EnvStep) -> np.ndarray:
    """Rows that truncate an episode."""
    return env_steps.truncated


def is_truncated_at_border(env_steps: EnvStep) -> np.ndarray:
    """Rows that truncate an episode, and are a trajectory's last and the next one's first."""
    at_border = np.zeros_like(env_steps.truncated)
    at_border[[0, -1]] = True
    return env_steps.truncated & at_border


def is_done(env_steps: EnvStep) -> np.ndarray:
    """Rows that end an episode."""
    return env_steps.terminated | env_steps.truncated


def is_going_on(env_steps: EnvStep) -> np.ndarray:
    """Rows whose action the environment heeds."""
    return ~is_done(env_steps)
