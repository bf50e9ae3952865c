"""Change one field of recorded trajectories, in rows of one kind, and measure the change.

Another number is not always another meaning: a constant added to all logits is the same policy, one
added to all features is gone after a LayerNorm, and a reward beyond a bound is clipped to the same.
So a change differs from entry to entry, and has to have a size in the unit of its `Field`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.policy import is_distribution
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.stored_policy import stored_log_probs, stored_policies, with_other_policies
from sebulba.types import EnvStep, PyTree

RowMask = Callable[[EnvStep], np.ndarray]
"""Selects rows of a trajectory: `[T + 1, B]` bool."""

# Of floats, whose range in the probe is [0, 1). Neighbours differ, in every axis, and both signs
# occur: no mean over features, rows or environments moves by as much as the entries do.
_SHIFTS = np.array([0.37, -0.25, 0.52])
_LEAST_SHIFT = 0.2  # a little less than the least of them


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
    reward_clip: float | None = None  # rewards beyond ± this are the same to the agent

    def entries(self, items: Sequence[RecordedTrajectory]) -> Iterator[Entry]:
        """Yield the entries that `apply` changes by at least the field's `least`."""
        field = FIELDS[self.field]
        for number, (item, other) in enumerate(zip(items, self.apply(items), strict=True)):
            mask, least = self._mask(item), field.least
            if field.unit == _REWARD_UNIT and self.reward_clip is not None:
                # Below the bound, the change of what is left of a reward is up to twice the bound.
                limit, least = self.reward_clip, min(least, self.reward_clip)
                item, other = (_with_clipped_rewards(each, limit) for each in (item, other))
            for row, env in np.argwhere(mask & (field.size(item, other) >= least)):
                yield Entry(item=number, row=int(row), env=int(env))

    def describe_least(self) -> str:
        """Return the least change that counts, and its unit."""
        field = FIELDS[self.field]
        return f"{field.least:g} {field.unit}"

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
            changed.append(FIELDS[self.field].change(item, mask))
        return changed

    def _mask(self, item: RecordedTrajectory) -> np.ndarray:
        mask = self.rows(item.trajectory.env_steps)
        return mask[:-1] if FIELDS[self.field].is_of_transitions else mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """How to change one field of a trajectory, and how far it has to change."""

    change: Callable[[RecordedTrajectory, np.ndarray], RecordedTrajectory]
    size: Callable[[RecordedTrajectory, RecordedTrajectory], np.ndarray]
    """Returns the size `[T + 1, B]` or `[T, B]` of the change between two trajectories."""
    least: float
    unit: str
    is_of_transitions: bool = False  # it has `T` rows, not `T + 1`


def _change_env_steps(**others: Callable[[PyTree], PyTree]) -> Callable[..., RecordedTrajectory]:
    def change(item: RecordedTrajectory, mask: np.ndarray) -> RecordedTrajectory:
        old = {name: getattr(item.trajectory.env_steps, name) for name in others}
        new = {name: _where(mask, other(old[name]), old[name]) for name, other in others.items()}
        return item.with_rows(**new)

    return change


def _where(mask: np.ndarray, new: PyTree, old: PyTree) -> PyTree:
    def select(new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return np.where(mask.reshape(*mask.shape, *(1,) * (old.ndim - 2)), new, old)

    return jax.tree.map(select, new, old)


def other_values(tree: PyTree) -> PyTree:
    """Return another value for each element, close to the range of the probe's values.

    Floats, and complex numbers, change by amounts that differ from one element to the next in every
    axis; images and other integers wrap around.
    """

    def other(leaf: np.ndarray) -> np.ndarray:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            # Two of three neighbours differ in sign; a sum of indices alternates in every axis.
            number = sum(np.indices(np.shape(leaf), sparse=True), start=np.zeros((), int))
            shift = _SHIFTS[number % len(_SHIFTS)]
            if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                shift = shift * (1.0 - 0.7j)  # another direction, not another size alone
            return (leaf + shift).astype(leaf.dtype)
        if leaf.dtype == np.uint8:
            return leaf + np.uint8(91)
        return (1 - leaf).astype(leaf.dtype)

    return jax.tree.map(other, tree)


def other_rewards(reward: np.ndarray) -> np.ndarray:
    """Return rewards of the opposite sign, at least 0.1 away.

    The probe's are in [0, 0.9]. These stay within ±1, where agents clip rewards, and an agent that
    learns from signs alone sees them change as well.
    """
    return np.where(reward >= 0.0, -reward - 0.1, -reward + 0.1).astype(reward.dtype)


def _change_action(item: RecordedTrajectory, mask: np.ndarray) -> RecordedTrajectory:
    action = item.trajectory.action
    return item.with_trajectory(
        action=_where(mask, _other_action(action, item.action_space), action)
    )


def _other_action(action: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    if isinstance(space, gymnasium.spaces.Box):
        return action - np.copysign(np.float32(0.5), action)
    size = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    return (space.start + (action - space.start + 1) % size).astype(action.dtype)


def _change_extras(item: RecordedTrajectory, mask: np.ndarray) -> RecordedTrajectory:
    """Change stored policies by the probability of the action taken, and everything else."""
    policies = stored_policies(item)
    other = jax.tree_util.tree_map_with_path(
        lambda path, node: node if path in policies else _where(mask, other_values(node), node),
        item.trajectory.extras,
        is_leaf=is_distribution,
    )
    return with_other_policies(item.with_trajectory(extras=other), mask)


def _distance(before: PyTree, after: PyTree, num_axes: int = 2) -> np.ndarray:
    """Return the greatest difference in each row and environment, over all leaves: `[T, B]`."""

    def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        one, other = np.asarray(one), np.asarray(other)
        is_number = jnp.issubdtype(one.dtype, jnp.inexact)
        with np.errstate(invalid="ignore"):  # −∞ stays −∞: no change
            gap = np.abs(other - one) if is_number else (other != one).astype(float)
        gap = gap.astype(np.result_type(gap, np.float32))  # NumPy keeps bfloat16's NaN.
        gap = np.nan_to_num(gap.reshape(*gap.shape[:num_axes], -1))
        return gap.max(axis=-1, initial=0.0)

    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return np.max([distance(*pair) for pair in pairs], axis=0)


def _size_in_extras(before: RecordedTrajectory, after: RecordedTrajectory) -> np.ndarray:
    """Return the greatest change of a log-probability of the action taken, or of another number."""
    policies = stored_policies(before)
    sizes = [np.zeros(before.trajectory.valid.shape)]
    pairs = zip(stored_log_probs(before), stored_log_probs(after), strict=True)
    with np.errstate(invalid="ignore"):
        sizes += [np.nan_to_num(np.abs(two - one)) for one, two in pairs]
    rest, other_rest = (
        [
            leaf
            for path, node in jax.tree_util.tree_leaves_with_path(
                each.trajectory.extras, is_leaf=is_distribution
            )
            if path not in policies
            for leaf in jax.tree.leaves(node)
        ]
        for each in (before, after)
    )
    if rest:
        sizes.append(_distance(rest, other_rest))
    return np.max(sizes, axis=0)


def _with_clipped_rewards(item: RecordedTrajectory, limit: float) -> RecordedTrajectory:
    return item.with_rows(reward=np.clip(item.trajectory.env_steps.reward, -limit, limit))


def _size_of(name: str) -> Callable[[RecordedTrajectory, RecordedTrajectory], np.ndarray]:
    def size(before: RecordedTrajectory, after: RecordedTrajectory) -> np.ndarray:
        pair = (getattr(each.trajectory.env_steps, name) for each in (before, after))
        return _distance(*pair)

    return size


_REWARD_UNIT = "of reward"
FIELDS: dict[str, Field] = {
    "reward": Field(
        change=_change_env_steps(reward=other_rewards),
        size=_size_of("reward"),
        least=0.1,  # of 0.9, the range of the probe's rewards
        unit=_REWARD_UNIT,
    ),
    "observation": Field(
        change=_change_env_steps(observation=other_values),
        size=_size_of("observation"),
        least=_LEAST_SHIFT,
        unit="in one of its numbers",
    ),
    "truncated flag": Field(
        change=_change_env_steps(terminated=np.ones_like, truncated=np.zeros_like),
        size=_size_of("terminated"),
        least=1.0,
        unit="flag",
    ),
    "terminated flag": Field(
        change=_change_env_steps(terminated=np.zeros_like, truncated=np.ones_like),
        size=_size_of("truncated"),
        least=1.0,
        unit="flag",
    ),
    "action": Field(
        change=_change_action,
        size=lambda before, after: _distance(before.trajectory.action, after.trajectory.action),
        least=0.49,  # a half, up to rounding; discrete actions are others
        unit="in one of its numbers",
        is_of_transitions=True,
    ),
    "extras": Field(
        change=_change_extras,
        size=_size_in_extras,
        least=_LEAST_SHIFT,  # below SHIFT_NATS, and the least shift of other numbers
        unit="nats of the action's log-probability, or in another number",
        is_of_transitions=True,
    ),
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


def has_own_values(env_steps: EnvStep) -> np.ndarray:
    """Select rows inside of episodes, in which every field has a value of its own."""
    return ~is_done(env_steps) & ~env_steps.is_first


def is_valid(env_steps: EnvStep) -> np.ndarray:
    """Select rows whose action takes effect: those that do not end an episode."""
    return ~is_done(env_steps)
