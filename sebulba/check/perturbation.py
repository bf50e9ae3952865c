"""Change one field of recorded trajectories, in rows of one kind."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import gymnasium
import jax
import numpy as np

from sebulba.check.recording import RecordedTrajectory
from sebulba.types import EnvStep, PyTree, Trajectory

RowMask = Callable[[EnvStep], np.ndarray]
"""Selects rows of a trajectory: `[T + 1, B]` bool."""

_SHIFT = 0.37  # of floats, whose range in the probe is [0, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of one environment in a list of recorded trajectories."""

    item: int  # index in the list
    row: int
    env: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Perturbation:
    """Other values of one field, in the rows that a mask selects."""

    field: str  # a key of FIELDS
    rows: RowMask
    action_space: gymnasium.Space

    def entries(self, items: Sequence[RecordedTrajectory]) -> Iterator[Entry]:
        """Yield the entries that `apply` changes."""
        for number, item in enumerate(items):
            for row, env in np.argwhere(self._mask(item)):
                yield Entry(item=number, row=int(row), env=int(env))

    def apply(
        self, items: Sequence[RecordedTrajectory], only: Entry | None = None
    ) -> list[RecordedTrajectory]:
        """Return the trajectories with the field changed in every selected row, or in one."""
        changed = []
        for number, item in enumerate(items):
            mask = self._mask(item)
            if only is not None:
                mask = np.zeros_like(mask)
                if only.item == number:
                    mask[only.row, only.env] = True
            trajectory = FIELDS[self.field].change(item.trajectory, mask, self.action_space)
            changed.append(dataclasses.replace(item, trajectory=trajectory))
        return changed

    def _mask(self, item: RecordedTrajectory) -> np.ndarray:
        mask = self.rows(item.trajectory.env_steps)
        return mask[:-1] if FIELDS[self.field].is_of_transitions else mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """How to change one field of a trajectory."""

    change: Callable[[Trajectory, np.ndarray, gymnasium.Space], Trajectory]
    is_of_transitions: bool = False  # it has `T` rows, not `T + 1`


def _change_env_steps(**others: Callable[[PyTree], PyTree]) -> Callable[..., Trajectory]:
    def change(trajectory: Trajectory, mask: np.ndarray, space: gymnasium.Space) -> Trajectory:
        del space
        old = {name: getattr(trajectory.env_steps, name) for name in others}
        new = {name: _where(mask, other(old[name]), old[name]) for name, other in others.items()}
        return dataclasses.replace(
            trajectory, env_steps=dataclasses.replace(trajectory.env_steps, **new)
        )

    return change


def _where(mask: np.ndarray, new: PyTree, old: PyTree) -> PyTree:
    def select(new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return np.where(mask.reshape(*mask.shape, *(1,) * (old.ndim - 2)), new, old)

    return jax.tree.map(select, new, old)


def other_values(tree: PyTree) -> PyTree:
    """Return another value for each element, close to the range of the probe's values."""

    def other(leaf: np.ndarray) -> np.ndarray:
        if np.issubdtype(leaf.dtype, np.floating):
            return leaf + leaf.dtype.type(_SHIFT)
        if leaf.dtype == np.uint8:
            return leaf + np.uint8(91)
        return (1 - leaf).astype(leaf.dtype)

    return jax.tree.map(other, tree)


def _change_action(trajectory: Trajectory, mask: np.ndarray, space: gymnasium.Space) -> Trajectory:
    action = trajectory.action
    other = _where(mask, _other_action(action, space), action)
    return dataclasses.replace(trajectory, action=other)


def _other_action(action: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    if isinstance(space, gymnasium.spaces.Box):
        return 0.5 * action + np.float32(0.25)
    size = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    return (space.start + (action - space.start + 1) % size).astype(action.dtype)


def _change_extras(trajectory: Trajectory, mask: np.ndarray, space: gymnasium.Space) -> Trajectory:
    del space
    extras = trajectory.extras
    return dataclasses.replace(trajectory, extras=_where(mask, other_values(extras), extras))


FIELDS: dict[str, Field] = {
    # The probe's rewards are in [0, 0.9]. These differ in sign or size, and stay within ±1, where
    # agents clip rewards.
    "reward": Field(change=_change_env_steps(reward=lambda reward: np.float32(_SHIFT) - reward)),
    "observation": Field(change=_change_env_steps(observation=other_values)),
    "truncated flag": Field(
        change=_change_env_steps(terminated=np.ones_like, truncated=np.zeros_like)
    ),
    "terminated flag": Field(
        change=_change_env_steps(terminated=np.zeros_like, truncated=np.ones_like)
    ),
    "action": Field(change=_change_action, is_of_transitions=True),
    "extras": Field(change=_change_extras, is_of_transitions=True),
}
"""The fields that can be changed, by their name in messages; a changed flag becomes the other."""


def is_reset(env_steps: EnvStep) -> np.ndarray:
    """Select rows that begin an episode."""
    return env_steps.is_first


def is_terminated(env_steps: EnvStep) -> np.ndarray:
    """Select rows that terminate an episode."""
    return env_steps.terminated


def is_truncated(env_steps: EnvStep) -> np.ndarray:
    """Select rows that truncate an episode."""
    return env_steps.truncated


def is_truncated_at_boundary(env_steps: EnvStep) -> np.ndarray:
    """Select rows that truncate an episode, and are a trajectory's last and the next one's first.

    Bootstrapping goes wrong there most easily: the row is in two trajectories.
    """
    at_boundary = np.zeros_like(env_steps.truncated)
    at_boundary[[0, -1]] = True
    return env_steps.truncated & at_boundary


def is_truncated_inside(env_steps: EnvStep) -> np.ndarray:
    """Select rows that truncate an episode, and are neither a trajectory's first nor its last."""
    return env_steps.truncated & ~is_truncated_at_boundary(env_steps)


def is_reset_in_last_row(env_steps: EnvStep) -> np.ndarray:
    """Select resets in a trajectory's last row, which no transition of the trajectory reaches."""
    in_last_row = np.zeros_like(env_steps.is_first)
    in_last_row[-1] = True
    return env_steps.is_first & in_last_row


def is_done(env_steps: EnvStep) -> np.ndarray:
    """Select rows that end an episode."""
    return env_steps.terminated | env_steps.truncated


def is_valid(env_steps: EnvStep) -> np.ndarray:
    """Select rows whose action takes effect: those that do not end an episode."""
    return ~is_done(env_steps)
