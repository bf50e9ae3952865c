"""What a user wants to know of each episode, reduced row by row inside the jitted act cycle.

`run.episode_reducers: {name: "my_module:MyReducer"}` puts the mean of each reducer over the return
window into the rows of metrics, as `episode/name`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp

from sebulba.acting.episodes import EpisodeStatistics, init_statistics, update_statistics
from sebulba.config.plugins import load
from sebulba.types import EnvStep, PyTree, Trajectory


class EpisodeReducer(Protocol):
    """Reduces an episode to one number; built without arguments. Both methods are pure."""

    def init(self, num_envs: int) -> PyTree:
        """Returns the state before an episode's first row; every leaf leads with `num_envs`."""
        ...

    def update(
        self, state: PyTree, env_step: EnvStep, action: PyTree, extras: PyTree
    ) -> tuple[PyTree, jax.Array]:
        """Takes a row in.

        Args:
            state: of `init` or of the episode's row before.
            env_step: `[B]`, the row; its reward was paid for the row before.
            action: `[B, ...]`, chosen from it; ignored where the row ends an episode.
            extras: `[B, ...]`, the agent's own.

        Returns:
            The state, and float32 `[B]`: the episode's number, if it ended with this row.
        """
        ...


@dataclasses.dataclass(frozen=True)
class EpisodeTracker:
    """Keeps the statistics of episodes, and what reducers make of them."""

    reducers: Mapping[str, EpisodeReducer] = dataclasses.field(default_factory=dict)

    def init(self, num_envs: int) -> EpisodeStatistics:
        """Returns the statistics before the first row."""
        return dataclasses.replace(
            init_statistics(num_envs),
            reduced={name: jnp.zeros(num_envs, jnp.float32) for name in self.reducers},
            reducer_states={name: each.init(num_envs) for name, each in self.reducers.items()},
        )

    def update(
        self, statistics: EpisodeStatistics, env_step: EnvStep, action: PyTree, extras: PyTree
    ) -> EpisodeStatistics:
        """Returns the statistics as of the next row, `env_step` `[B]`."""
        num_envs = env_step.reward.shape[0]
        is_new = statistics.is_over
        reduced, states = {}, {}
        for name, reducer in self.reducers.items():
            begun = _choose(is_new, reducer.init(num_envs), statistics.reducer_states[name])
            states[name], reduced[name] = reducer.update(begun, env_step, action, extras)
        return dataclasses.replace(
            update_statistics(statistics, env_step), reduced=reduced, reducer_states=states
        )

    def follow(
        self, statistics: EpisodeStatistics, trajectory: Trajectory
    ) -> tuple[EpisodeStatistics, EpisodeStatistics]:
        """Returns the statistics as of row `T - 1`, and those of rows 0 … `T - 1`, `[T, B]`.

        Args:
            statistics: as of the row before the trajectory's first.
            trajectory: of `T` steps.
        """

        def row(rows: PyTree, t: jax.Array) -> PyTree:
            return jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, t, keepdims=False), rows
            )

        def update(
            statistics: EpisodeStatistics, t: jax.Array
        ) -> tuple[EpisodeStatistics, EpisodeStatistics]:
            statistics = self.update(
                statistics,
                row(trajectory.env_steps, t),
                row(trajectory.action, t),
                row(trajectory.extras, t),
            )
            return statistics, statistics.as_row()

        return jax.lax.scan(
            update, statistics, jnp.arange(trajectory.env_steps.reward.shape[0] - 1)
        )


def load_reducers(references: Mapping[str, str]) -> EpisodeTracker:
    """Builds the reducers that `run.episode_reducers` names.

    Raises:
        ConfigError: there is no such module, or no such name in it.
    """
    return EpisodeTracker(
        {
            name: load(reference, key=f"run.episode_reducers.{name}")()
            for name, reference in references.items()
        }
    )


def _choose(condition: jax.Array, if_true: PyTree, otherwise: PyTree) -> PyTree:
    def choose(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, if_true, otherwise)
