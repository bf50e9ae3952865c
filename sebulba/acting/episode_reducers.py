"""Custom per-episode metrics, reduced row by row inside the jitted act cycle.

`run.episode_reducers: {name: "my_module:MyReducer"}` adds the mean of the reducer's results over
the return window to the rows of metrics, as `episode/name`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp

from sebulba.acting.episodes import EpisodeStatistics, init_statistics, update_statistics, where_env
from sebulba.config.plugins import load
from sebulba.errors import ConfigError, calling
from sebulba.types import EnvStep, PyTree, Trajectory


class EpisodeReducer(Protocol):
    """Reduces an episode to one number; constructed without arguments, with pure methods."""

    def init(self, num_envs: int) -> PyTree:
        """Return the state before an episode's first row; all leaves are `[num_envs, ...]`."""
        ...

    def update(
        self, state: PyTree, env_step: EnvStep, action: PyTree, extras: PyTree
    ) -> tuple[PyTree, jax.Array]:
        """Add a row.

        Args:
            state: from `init`, or from the episode's previous row.
            env_step: `[B]`; its reward follows from the previous row's action.
            action: `[B, ...]`, selected from this row; ignored where the row ends an episode.
            extras: `[B, ...]`, of the agent.

        Returns:
            The state, and float32 `[B]`: the result, used where this row ends the episode.
        """
        ...


@dataclasses.dataclass(frozen=True)
class EpisodeTracker:
    """Computes episode statistics and the results of reducers."""

    reducers: Mapping[str, EpisodeReducer] = dataclasses.field(default_factory=dict)

    def init(self, num_envs: int) -> EpisodeStatistics:
        """Return the statistics before the first row."""
        return dataclasses.replace(
            init_statistics(num_envs),
            reduced={name: jnp.zeros(num_envs, jnp.float32) for name in self.reducers},
            reducer_states={name: each.init(num_envs) for name, each in self.reducers.items()},
        )

    def update(
        self, statistics: EpisodeStatistics, env_step: EnvStep, action: PyTree, extras: PyTree
    ) -> EpisodeStatistics:
        """Return the statistics up to the next row, `env_step` `[B]`."""
        num_envs = env_step.reward.shape[0]
        is_new = statistics.is_over
        reduced, states = {}, {}
        for name, reducer in self.reducers.items():
            begun = where_env(is_new, reducer.init(num_envs), statistics.reducer_states[name])
            states[name], reduced[name] = reducer.update(begun, env_step, action, extras)
        return dataclasses.replace(
            update_statistics(statistics, env_step), reduced=reduced, reducer_states=states
        )

    def follow(
        self, statistics: EpisodeStatistics, trajectory: Trajectory
    ) -> tuple[EpisodeStatistics, EpisodeStatistics]:
        """Return the statistics up to row `T - 1`, and up to each of rows 0 … `T - 1`, `[T, B]`.

        Args:
            statistics: `[B]`, up to the row before the trajectory's first.
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
    """Return a tracker with the reducers of `run.episode_reducers`.

    Raises:
        ConfigError: a reference names no class, or one that raises or is no reducer.
    """
    reducers: dict[str, EpisodeReducer] = {}
    for name, reference in references.items():
        key = f"run.episode_reducers.{name}"
        make = load(reference, key=key)
        with calling(f"{key}: {reference}()"):
            reducers[name] = make()
        missing = [each for each in ("init", "update") if not hasattr(reducers[name], each)]
        if missing:
            raise ConfigError(f"{key}: {reference} has no method {' and no '.join(missing)}")
    return EpisodeTracker(reducers)
