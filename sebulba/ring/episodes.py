"""Episode statistics and users' episode reducers, computed inside the jitted act cycle.

Statistics belong to raw rewards and continue across trajectories.
`run.episode_reducers: {name: "my_module:MyReducer"}` adds the mean of the reducer's results over
the return window to the rows of metrics, as `episode/name`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config.plugins import load
from sebulba.errors import ConfigError, calling
from sebulba.ring.records import EpisodeRecord, EpisodeStatistics, StreamBoundary
from sebulba.types import Array, EnvStep, PyTree, Trajectory


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
            state: the result of `init`, or of the episode's previous row.
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
            trajectory: `T` steps.
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


def init_statistics(num_envs: int) -> EpisodeStatistics:
    """Return the statistics before the first row."""
    return EpisodeStatistics(
        episode_return=jnp.zeros(num_envs, jnp.float32),
        episode_length=jnp.zeros(num_envs, jnp.int32),
        is_over=jnp.ones(num_envs, bool),
    )


def update_statistics(statistics: EpisodeStatistics, env_step: EnvStep) -> EpisodeStatistics:
    """Return the statistics up to the next row, `env_step` `[B]`."""
    # A row after the end that is no reset repeats the final row (`whole_episodes`): no env step.
    is_repeated = statistics.is_over & ~env_step.is_first
    episode_return = jnp.where(statistics.is_over, 0.0, statistics.episode_return)
    episode_length = jnp.where(statistics.is_over, 0, statistics.episode_length)
    return dataclasses.replace(
        statistics,
        episode_return=episode_return + env_step.reward,
        episode_length=episode_length + jnp.where(env_step.is_first | is_repeated, 0, 1),
        is_over=env_step.done if env_step.episode_over is None else env_step.episode_over,
    )


def finished_episodes(rows: EpisodeStatistics) -> tuple[EpisodeRecord, ...]:
    """Return the episodes that ended within a trajectory, `[T, B]`, in the order of their ends."""
    ended = np.asarray(rows.is_over) & (np.asarray(rows.episode_length) > 0)
    if not ended.any():
        return ()
    returns = np.asarray(rows.episode_return)[ended]
    lengths = np.asarray(rows.episode_length)[ended]
    reduced = {name: np.asarray(values)[ended] for name, values in rows.reduced.items()}
    return tuple(
        EpisodeRecord(
            episode_return=float(returns[i]),
            episode_length=int(lengths[i]),
            reduced={name: float(values[i]) for name, values in reduced.items()},
        )
        for i in range(len(returns))
    )


def where_env(condition: Array, if_true: PyTree, otherwise: PyTree) -> PyTree:
    """Return a pytree `[B, ...]` with the values of one of two, chosen per environment."""

    def choose(x: Array, y: Array) -> Array:
        xp = np if isinstance(y, np.ndarray) else jnp
        return xp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, if_true, otherwise)


def end_episodes(statistics: EpisodeStatistics, env_step: EnvStep) -> StreamBoundary:
    """Return the boundary of a stream that ends after a row.

    Args:
        statistics: `[B]`, up to the row before `env_step`.
        env_step: `[B]`, the last row. Its finished episodes have no results of reducers, which
            would need its action.
    """
    statistics = dataclasses.replace(statistics.as_row(), reduced={})
    last = jax.tree.map(
        np.asarray, update_statistics(statistics, jax.tree.map(np.asarray, env_step))
    )
    return StreamBoundary(
        finished=finished_episodes(jax.tree.map(lambda leaf: leaf[None], last)),
        num_interrupted=int(np.sum(~last.is_over & (last.episode_length > 0))),
    )
