"""Episode statistics and users' episode reducers, computed inside the jitted act cycle.

Statistics belong to raw rewards and continue across trajectories. Players that act together in an
environment are a team with one episode. It ends with that of its last player, whose length it has,
and its return is the mean over the players. Where a trajectory has many rows,
the device selects those that the host needs: the last that ended an episode, at most as many as are
averaged for the mean return.
`run.episode_reducers: {name: "my_module:MyReducer"}` adds the mean of the reducer's results over
the return window to the rows of metrics, as `episode/name`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import RunConfig
from sebulba.envs.final_rows import where_row
from sebulba.errors import ConfigError, calling
from sebulba.references import load
from sebulba.ring.records import EndedRows, EpisodeStatistics, FinishedEpisodes, StreamBoundary
from sebulba.toolkit.scans import scan_rows
from sebulba.types import Array, EnvStep, PyTree, Trajectory

# Up to this many rows, all are handed to the host, 13 bytes of each. To compile their selection
# takes a CPU 0.1 s, and a program that steps EnvPool is compiled at each start.
_FEW_ROWS = 1024


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
    # The last episodes of a long trajectory that are kept; the return window needs no more.
    max_finished: int = RunConfig.return_window
    num_players: int = 1  # of an environment

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics per episode, besides return and length."""
        return (*self.reducers, *names_of_players(self.num_players))

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
        is_repeated = is_new & ~env_step.is_first
        reduced, states = {}, {}
        for name, reducer in self.reducers.items():
            begun = where_row(is_new, reducer.init(num_envs), statistics.reducer_states[name])
            states[name], result = reducer.update(begun, env_step, action, extras)
            # A player that is out keeps its result until its team's episode ends.
            reduced[name] = jnp.where(is_repeated, statistics.reduced[name], result)
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

        return scan_rows(update, statistics, jnp.arange(trajectory.env_steps.reward.shape[0] - 1))

    def ended(
        self, statistics: EpisodeStatistics, rows: EpisodeStatistics
    ) -> tuple[jax.Array, EndedRows]:
        """Return how many episodes ended in rows, and the rows that tell of them.

        Those are all rows if they are few, else the last `max_finished` that ended an episode.

        Args:
            statistics: `[B]`, up to the row before the first.
            rows: `[T, B]`, up to each row.
        """
        before = of_environments(statistics.as_row(), self.num_players)
        rows = of_environments(rows, self.num_players)
        # Later rows repeat the final one, until a reset.
        was_over = jnp.concatenate([before.is_over[None], rows.is_over[:-1]])
        has_ended = rows.is_over & ~was_over
        num_envs, flags = has_ended.shape[1], has_ended.reshape(-1)
        if flags.size <= max(_FEW_ROWS, self.max_finished):
            num_episodes, at = jnp.sum(flags, dtype=jnp.int32), jnp.arange(flags.size)
        else:
            num_episodes, at = _last_true(flags, self.max_finished)
            flags = jnp.arange(self.max_finished) >= self.max_finished - num_episodes

        def entries(leaf: jax.Array) -> jax.Array:
            flat = leaf.reshape(-1)
            return flat if len(at) == len(flat) else flat[at]

        return num_episodes, EndedRows(
            has_ended=flags,
            env=at % num_envs,
            episode_return=entries(rows.episode_return),
            episode_length=entries(rows.episode_length),
            reduced={name: entries(results) for name, results in rows.reduced.items()},
        )


def load_reducers(references: Mapping[str, str]) -> dict[str, EpisodeReducer]:
    """Return the reducers of `run.episode_reducers`.

    Args:
        references: `module:Name` of the reducers by their names.

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
    return reducers


def init_statistics(num_envs: int) -> EpisodeStatistics:
    """Return the statistics before the first row."""
    return EpisodeStatistics(
        episode_return=jnp.zeros(num_envs, jnp.float32),
        episode_length=jnp.zeros(num_envs, jnp.int32),
        is_over=jnp.ones(num_envs, bool),
    )


def update_statistics(statistics: EpisodeStatistics, env_step: EnvStep) -> EpisodeStatistics:
    """Return the statistics up to the next row, `env_step` `[B]`."""
    # A row after the end that is no reset repeats the final row: no env step, and nothing changes.
    is_new = statistics.is_over & env_step.is_first
    is_repeated = statistics.is_over & ~env_step.is_first
    return dataclasses.replace(
        statistics,
        episode_return=jnp.where(is_new, 0.0, statistics.episode_return) + env_step.reward,
        episode_length=jnp.where(is_new, 0, statistics.episode_length)
        + jnp.where(env_step.is_first | is_repeated, 0, 1),
        is_over=env_step.done if env_step.episode_over is None else env_step.episode_over,
    )


def of_environments(rows: EpisodeStatistics, num_players: int) -> EpisodeStatistics:
    """Return the statistics of environments, `[..., N]`, from those of their players, `[..., B]`.

    The rows of an environment's players follow each other. The results of reducers are means over
    the players, and each player's return is one more of them.
    """
    if num_players == 1:
        return rows

    def by_player(leaf: Array) -> Array:
        return leaf.reshape(*leaf.shape[:-1], -1, num_players)

    returns = by_player(rows.episode_return)
    of_players = {
        name: returns[..., player] for player, name in enumerate(names_of_players(num_players))
    }
    return dataclasses.replace(
        rows,
        episode_return=returns.mean(axis=-1),
        episode_length=by_player(rows.episode_length).max(axis=-1),
        is_over=by_player(rows.is_over).all(axis=-1),
        reduced={name: by_player(leaf).mean(axis=-1) for name, leaf in rows.reduced.items()}
        | of_players,
    )


def names_of_players(num_players: int) -> list[str]:
    """Return the metrics of each player's return; none of a single player."""
    return [f"return_of_player_{player}" for player in range(num_players if num_players > 1 else 0)]


def _last_true(flags: jax.Array, num: int) -> tuple[jax.Array, jax.Array]:
    """Return the number of true flags of `[N]`, and the indices `[num]` of the last of them.

    The indices are in ascending order. If fewer flags are true, the first ones are any.

    `top_k` of the indices takes 250 ms on a CPU for the two million rows of 16,384 environments and
    128 env steps. Here the flags are read once, to count them in blocks; then only the blocks are
    searched, and `num` of them.
    """
    width = 2 ** math.ceil(math.log2(flags.size) / 2)
    blocks = jnp.pad(flags, (0, -flags.size % width)).reshape(-1, width)

    def num_from(counts: jax.Array) -> jax.Array:
        """Return the sum of each entry and all later ones of the last axis."""
        return jnp.flip(jnp.cumsum(jnp.flip(counts, axis=-1), axis=-1, dtype=jnp.int32), axis=-1)

    num_of_block = jnp.sum(blocks, axis=1, dtype=jnp.int32)
    num_from_block = num_from(num_of_block)
    # True flags after the one that is wanted.
    num_later = jnp.arange(num - 1, -1, -1, dtype=jnp.int32)
    # The last block at which, with later ones, there are more.
    is_later = num_from_block[None] > num_later[:, None]
    block = jnp.sum(is_later, axis=1, dtype=jnp.int32) - 1
    num_later -= num_from_block[block] - num_of_block[block]
    num_from_column = num_from(blocks[block].astype(jnp.int32))
    column = jnp.sum(num_from_column > num_later[:, None], axis=1, dtype=jnp.int32) - 1
    return num_from_block[0], jnp.clip(block * width + column, 0, flags.size - 1)


def end_episodes(
    statistics: EpisodeStatistics, env_step: EnvStep, *, num_players: int
) -> StreamBoundary:
    """Return the boundary of a stream that ends after a row.

    Args:
        statistics: `[B]`, up to the row before `env_step`.
        env_step: `[B]`, the last row. Its finished episodes have no results of reducers, which
            would need its action.
        num_players: of an environment.
    """
    statistics = dataclasses.replace(statistics.as_row(), reduced={})
    updated = update_statistics(statistics, jax.tree.map(np.asarray, env_step))
    before, last = (
        of_environments(jax.tree.map(np.asarray, each), num_players)
        for each in (statistics, updated)
    )
    has_ended = last.is_over & ~before.is_over
    return StreamBoundary(
        finished=FinishedEpisodes(
            episode_return=last.episode_return[has_ended],
            episode_length=last.episode_length[has_ended],
            has_results=np.zeros(np.sum(has_ended), bool),
        ),
        num_interrupted=int(np.sum(~last.is_over & (last.episode_length > 0))),
    )
