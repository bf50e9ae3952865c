"""JAX tasks with a choice for each continuous component of an action.

For Gymnasium, use `sebulba.envs.gymnasium_wrappers:DiscretizedBoxes`.
"""

import dataclasses
from collections.abc import Callable

import gymnasium
import jax

from sebulba.envs.actions import discretized, undiscretized
from sebulba.envs.jax_environment import JaxTask
from sebulba.envs.jax_tasks import TaskStep
from sebulba.types import PyTree


@dataclasses.dataclass(frozen=True)
class Discretized:
    """Offer `bins` evenly spaced values, from bound to bound, for each continuous component.

    An action with discrete and continuous parts then is one vector of choices.
    """

    task: JaxTask
    bins: int = 11

    def __post_init__(self):
        discretized(self.task.action_space, self.bins)

    @property
    def observation(self) -> PyTree:
        """That of the task."""
        return self.task.observation

    @property
    def action_space(self) -> gymnasium.Space:
        """That of the task, with choices for numbers."""
        return discretized(self.task.action_space, self.bins)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Start an episode."""
        return self.task.reset(key)

    def step(self, state: PyTree, action: PyTree, key: jax.Array) -> TaskStep:
        """Take one step."""
        native = undiscretized(self.task.action_space, self.bins, action)
        return self.task.step(state, native, key)

    @property
    def render(self) -> Callable[[PyTree], jax.Array] | None:
        """That of the task."""
        return getattr(self.task, "render", None)
