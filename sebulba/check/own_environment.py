"""Questions about the config's own environment, which is stepped with random actions.

The other questions are asked on a probe, whose rows are known. So an environment that raises, or
that breaks the stream contract of `sebulba.types`, shows here alone.
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from sebulba.check.question import Question
from sebulba.check.result import Answer, as_numpy, failed, passed, unclear
from sebulba.config import Config
from sebulba.envs import make_environment
from sebulba.envs.base import Environment, EnvironmentFault, Interruptible
from sebulba.envs.data_checks import check_structure, describe_non_finite
from sebulba.errors import ConfigError, describe_error
from sebulba.pytree import leaf_name
from sebulba.types import EnvStep, PyTree

_MAX_ENVS = 8  # of a batch: a slow environment takes 10 ms a step
_NUM_ACT_CYCLES = 2
_ROWS_AFTER_END = 12  # an episode has ended, and ones of a single step would have, several times
_MAX_ROWS = 1_000  # in which the end of an episode is waited for
_ROWS_KEPT = 4  # an act cycle writes a row into its buffer before the next step
_MIN_LATER_EPISODES = 5
_MIN_SHARE_OF_ONE_STEP = 0.95  # of later episodes


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Play:
    """What came of stepping the environment; a fault ends it."""

    num_envs: int
    num_players: int  # of an environment
    rows: list[dict[str, int]]  # a checksum of each leaf `[B, ...]`, for each row
    is_first: np.ndarray  # [R, B] bool
    done: np.ndarray  # [R, B] bool
    actions: list[np.ndarray]  # [R - 1] of [B, ...]
    broken: str | None  # the contract that a row breaks; None: none
    fault: str | None  # what was raised, with the line of code; None: nothing
    overwritten: str | None  # a row that was written to after it was returned; None: none


class OwnEnvironment:
    """The environment of a config, played when the first question needs it."""

    def __init__(self, config: Config):
        """Play nothing yet.

        Args:
            config: names the environment, its seed, and the lengths of act cycles.
        """
        self._config = config
        self._num_envs = min(config.actor.num_envs, _MAX_ENVS)

    @functools.cached_property
    def play(self) -> Play:
        """Random actions over some act cycles, and over the end of an episode if there is one."""
        return _play(self._config, self._num_envs)

    @functools.cached_property
    def again(self) -> Play:
        """The same actions, in an environment with the same seed."""
        return _play(self._config, self._num_envs, self.play.actions)

    @property
    def place(self) -> str:
        """What was stepped, for messages."""
        play = self.play
        return f"{play.num_envs} environments, {len(play.rows)} rows"


def stream(own: OwnEnvironment) -> Answer:
    """Step the environment, and look at flags, shapes, dtypes and numbers of every row."""
    play = own.play
    if play.fault is not None:
        return failed(play.fault, likely_cause="")
    if play.broken is not None:
        return failed(play.broken)
    num_ended = sum(len(each) for each in _lengths(play))
    detail = f"{own.place}: shapes, flags and finite numbers"
    if not num_ended:
        return unclear(f"{detail}, but no episode ended in them")
    return passed(f"{detail}, over the ends of {num_ended} episodes")


def lengths(own: OwnEnvironment) -> Answer:
    """Count episodes of one step, apart from each environment's first episode."""
    later = [length for each in _lengths(own.play) for length in each[1:]]
    every = [length for each in _lengths(own.play) for length in each]
    if not every:
        return unclear(f"{own.place}: no episode ended in them")
    num_short = sum(length == 1 for length in later)
    if len(later) >= _MIN_LATER_EPISODES and num_short >= _MIN_SHARE_OF_ONE_STEP * len(later):
        return unclear(
            f"{num_short} of {len(later)} episodes after the first have one step: right for a"
            " bandit; else an environment that forgets to clear its flag when it is reset"
        )
    return passed(f"{len(every)} episodes of {min(every)} to {max(every)} steps")


def seeds(own: OwnEnvironment) -> Answer:
    """Make the environment again with the same seed, and step it with the same actions."""
    first, again = own.play, own.again
    if again.fault is not None:
        return failed(f"the second environment of one process: {again.fault}", likely_cause="")
    for number, (row, other) in enumerate(zip(first.rows, again.rows, strict=False)):
        for name, checksum in row.items():
            if other.get(name) != checksum:
                return failed(
                    f"{name} (row {number}): expected the same with the same seed and the same"
                    " actions, got other values"
                )
    return passed(f"{own.place}: the same rows twice")


def buffers(own: OwnEnvironment) -> Answer:
    """Keep the last rows, and see whether the environment writes to them."""
    if own.play.overwritten is not None:
        return failed(own.play.overwritten)
    return passed(f"{own.place}: none was written to in the {_ROWS_KEPT} steps after it")


def _lengths(play: Play) -> Iterator[list[int]]:
    """Yield the lengths of each player's finished episodes, in steps."""
    ends_now = play.done & ~np.concatenate([np.zeros_like(play.done[:1]), play.done[:-1]])
    for row in range(play.done.shape[1]):
        starts, ends = (np.flatnonzero(flag[:, row]) for flag in (play.is_first, ends_now))
        pairs = zip(starts, ends, strict=False)
        yield [int(end - start) for start, end in pairs]


def _play(config: Config, num_envs: int, actions: Sequence[np.ndarray] | None = None) -> Play:
    """Step an environment with these actions, or with random legal ones."""
    rng = np.random.default_rng(config.seed)
    recorder = _Recorder()
    fault: str | None = None
    environment: Environment | None = None
    num_players = 1
    taken: list[np.ndarray] = []
    try:
        environment = make_environment(config.env, num_envs=num_envs, seed=config.seed)
        if isinstance(environment, Interruptible):
            environment.timeout_s = config.actor.env_timeout_s
        num_players = environment.spec.num_players
        recorder.take(environment, environment.reset())
        while _continues(recorder, taken, actions, config.actor.trajectory_length):
            if actions is None:
                mask = recorder.last.action_mask
                num_rows = num_envs * num_players
                action = random_action(environment.spec.action_space, mask, num_rows, rng)
            else:
                action = actions[len(taken)]
            taken.append(action)
            recorder.take(environment, environment.step(action))
    except ConfigError:
        raise
    except EnvironmentFault as error:
        fault = f"row {len(recorder.rows)}: {error}"
    except Exception as error:
        fault = f"row {len(recorder.rows)}: raised {describe_error(error)}"
    finally:
        if environment is not None:
            try:
                environment.close()
            except Exception as error:
                fault = fault or f"close raised {describe_error(error)}"
    recorder.compare_kept()
    return Play(
        num_envs=num_envs,
        num_players=num_players,
        rows=recorder.rows,
        is_first=np.array(recorder.is_first, bool).reshape(-1, num_envs * num_players),
        done=np.array(recorder.done, bool).reshape(-1, num_envs * num_players),
        actions=taken,
        broken=recorder.broken,
        fault=fault,
        overwritten=recorder.overwritten,
    )


def _continues(
    recorder: "_Recorder",
    taken: Sequence[np.ndarray],
    actions: Sequence[np.ndarray] | None,
    trajectory_length: int,
) -> bool:
    if actions is not None:
        return len(taken) < len(actions)
    if recorder.broken is not None:
        return False
    ended = next((row for row, done in enumerate(recorder.done) if done.any()), _MAX_ROWS)
    least = max(_NUM_ACT_CYCLES * trajectory_length, ended + _ROWS_AFTER_END)
    return len(taken) < min(least, max(_MAX_ROWS, _NUM_ACT_CYCLES * trajectory_length))


class _Recorder:
    """Keeps checksums and flags of rows, and the last rows themselves."""

    def __init__(self) -> None:
        self.rows: list[dict[str, int]] = []
        self.is_first: list[np.ndarray] = []
        self.done: list[np.ndarray] = []
        self.broken: str | None = None
        self.overwritten: str | None = None
        self.last: EnvStep
        self._first: EnvStep
        self._kept: list[tuple[int, EnvStep]] = []  # numbers, and the rows as they were returned

    def take(self, environment: Environment, row: EnvStep) -> None:
        """Check a row, and keep it for some steps."""
        number = len(self.rows)
        if not number:
            self._first = as_numpy(row)
        if self.broken is None:
            self.broken = _broken(environment, row, number, self._first, self.done)
        self.last = row
        self.rows.append(_checksums(row))
        self.is_first.append(np.array(row.is_first))
        self.done.append(np.array(row.terminated) | np.array(row.truncated))
        self._kept.append((number, row))
        if len(self._kept) > _ROWS_KEPT:
            self._compare(*self._kept.pop(0))

    def compare_kept(self) -> None:
        """Compare the rows that are still kept."""
        for each in self._kept:
            self._compare(*each)

    def _compare(self, number: int, row: EnvStep) -> None:
        for name, checksum in _checksums(row).items():
            if self.overwritten is None and self.rows[number][name] != checksum:
                self.overwritten = (
                    f"{name} (row {number}): expected an array that the environment never writes to"
                    " again, got other values in it some steps later"
                )


def _checksums(row: EnvStep) -> dict[str, int]:
    leaves = jax.tree_util.tree_leaves_with_path(row)
    return {
        leaf_name(path): zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for path, leaf in leaves
    }


def _broken(
    environment: Environment, row: EnvStep, number: int, first: EnvStep, done: Sequence[np.ndarray]
) -> str | None:
    """Return how a row breaks the stream contract; None: it does not."""
    try:
        check_structure(row, first if number else _expected_row(environment, row))
    except EnvironmentFault as error:
        return f"row {number}: {error}"
    where = describe_non_finite(jax.tree.map(lambda leaf: np.asarray(leaf)[None], row))
    if where is not None:
        return where.replace("row 0 of the trajectory", f"row {number}")
    num_players = environment.spec.num_players
    before = done[-1] if number else np.ones(environment.num_envs * num_players, bool)
    resets = np.repeat(before.reshape(-1, num_players).all(axis=1), num_players)
    is_done = np.asarray(row.terminated) | np.asarray(row.truncated)
    for env in range(environment.num_envs * num_players):
        place = f"row {number}, env {env}"
        if num_players > 1:
            place = f"row {number}, env {env // num_players}, player {env % num_players}"
            if before[env] and not resets[env] and not (is_done[env] and row.reward[env] == 0.0):
                return (
                    f"reward and flags ({place}): expected the final row again, with reward 0, of a"
                    f" player that is out, got reward {row.reward[env]:g}, terminated"
                    f" {bool(row.terminated[env])}, truncated {bool(row.truncated[env])}"
                )
        if bool(row.is_first[env]) != bool(resets[env]):
            after = "after the end of an episode" if resets[env] else "within an episode"
            return f"is_first ({place}): expected {bool(resets[env])} {after}, got the opposite"
        if resets[env] and (is_done[env] or row.reward[env] != 0.0):
            return (
                f"reward and flags ({place}): expected reward 0 and no end in the row of a reset,"
                f" got {row.reward[env]:g}, terminated {bool(row.terminated[env])}, truncated"
                f" {bool(row.truncated[env])}"
            )
        if row.action_mask is not None and not np.any(row.action_mask[env]):
            return f"action_mask ({place}): expected a legal action, got none"
    return None


def _expected_row(environment: Environment, row: EnvStep) -> EnvStep:
    """Return the shapes of a row by the environment's spec."""
    count = environment.num_envs * environment.spec.num_players

    def batch(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype)

    flag = jax.ShapeDtypeStruct((count,), np.bool_)
    spec = environment.spec
    return EnvStep(
        observation=jax.tree.map(batch, spec.observation),
        reward=jax.ShapeDtypeStruct((count,), np.float32),
        terminated=flag,
        truncated=flag,
        is_first=flag,
        episode_over=None if row.episode_over is None else flag,
        action_mask=None if spec.action_mask is None else batch(spec.action_mask),
    )


def random_action(
    space: gymnasium.Space, mask: PyTree, num_envs: int, rng: np.random.Generator
) -> np.ndarray:
    """Return random actions `[B, ...]`, legal ones if there is a mask `[B, A]`."""
    if isinstance(space, gymnasium.spaces.Box):
        return rng.uniform(-1.0, 1.0, (num_envs, *space.shape)).astype(space.dtype)
    sizes = np.ravel(space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec)
    legal = np.ones((num_envs, sizes.sum()), bool) if mask is None else np.asarray(mask)
    # The legal choice with the greatest random number, of each component.
    numbers = np.where(legal, rng.random(legal.shape), -1.0)
    parts = np.split(numbers, np.cumsum(sizes)[:-1], axis=-1)
    choices = np.stack([part.argmax(axis=-1) for part in parts], axis=-1)
    return (choices.reshape(num_envs, *space.shape) + space.start).astype(space.dtype)


STREAM = Question(
    name="stream",
    ask=stream,
    property="the environment keeps the stream's contract",
    perturbs=(
        "steps the environment with random legal actions, over two act cycles and the end of an "
        "episode"
    ),
    proof=(
        f"{_ROWS_AFTER_END} rows after the first end, at most {_MAX_ROWS:,}; without an end, "
        "unclear"
    ),
    expects=(
        "shapes, dtypes and finite numbers of every row; a reset in row 0 and after each end, "
        "with reward 0"
    ),
    bound="exact: the contract of `sebulba.types`",
    likely_cause="a flag, a shape or a number of the environment",
)

LENGTHS = Question(
    name="lengths",
    ask=lengths,
    property="episodes have more than one step",
    perturbs="nothing: counts the episodes that random actions finish",
    proof=f"{_MIN_LATER_EPISODES} episodes after the first one of an environment",
    expects="not all of these to have one step; if they have, unclear, since a bandit's do",
    bound=(
        f"{_MIN_SHARE_OF_ONE_STEP:.0%} of these episodes: one that ends early by chance is no rule"
    ),
    likely_cause="",
)

SEEDS = Question(
    name="seeds",
    ask=seeds,
    property="the same seed gives the same stream",
    perturbs="makes the environment once more, and repeats the actions",
    proof="rows were drawn, and the first environment did not raise",
    expects="the same rows",
    bound="exact: checksums of every leaf. A resumed run repeats the actions too",
    likely_cause=(
        "random numbers of a generator that the seed does not reach, a clock, or state that "
        "environments share"
    ),
)

BUFFERS = Question(
    name="buffers",
    ask=buffers,
    property="returned rows are never written to again",
    perturbs=f"keeps the last {_ROWS_KEPT} rows",
    proof="observations differ from row to row, or no buffer can be told from a copy",
    expects="what was returned to stay as it was",
    bound="exact: checksums. JAX on a CPU reads NumPy memory in place",
    likely_cause="the environment returns views of one buffer, not copies",
)
