"""A task as an agent's defaults depend on it: what is observed, done and how long. No jax."""

import dataclasses
from typing import Literal

_SMALL_IMAGE = 20
"""Sides below this are those of board games and grids, not of a camera."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationLeaf:
    """One array of an observation."""

    shape: tuple[int, ...]
    dtype: str
    choices: tuple[range, ...] = ()
    """The values of each component of a `Discrete` or `MultiDiscrete` space; (): another space."""

    @property
    def is_image(self) -> bool:
        """Whether the leaf has three axes: rows, columns and channels in some order."""
        return len(self.shape) == 3 and not self.choices

    @property
    def image_side(self) -> int:
        """The shorter of an image's height and width, in pixels."""
        return min(self.shape[:2] if has_channels_last(self.shape) else self.shape[1:])

    @property
    def is_small_image(self) -> bool:
        """Whether the leaf is an image of a grid, as of MinAtar, with sides of less than 20."""
        return self.is_image and self.image_side < _SMALL_IMAGE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What an agent's defaults may depend on, see `AgentSettings.defaults_for`."""

    observation: tuple[ObservationLeaf, ...]  # in the order of `jax.tree.leaves`
    actions: Literal["discrete", "continuous"]  # MultiDiscrete counts as discrete
    total_env_steps: int  # `run.total_env_steps`

    @property
    def has_images(self) -> bool:
        """Whether a leaf of the observation is an image of a camera or a screen."""
        return any(leaf.is_image and not leaf.is_small_image for leaf in self.observation)

    def describe(self) -> str:
        """Return what is observed and done, in a few words."""
        observation = "images" if self.has_images else "vectors"
        if any(leaf.is_small_image for leaf in self.observation):
            observation = "small images"
        elif all(leaf.choices for leaf in self.observation):
            observation = "discrete observations"
        return f"{observation} and {self.actions} actions"


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image is `[H, W, C]`, not `[C, H, W]`: the reading in which it is squarer.

    Board games have more channels than rows: `[8, 8, 119]` in chess. `[10, 10, 10]` is read as
    `[H, W, C]`.
    """
    first, middle, last = shape
    # The quotients of the longer and the shorter side, multiplied out.
    return max(first, middle) * min(middle, last) <= max(middle, last) * min(first, middle)
