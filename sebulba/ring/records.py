"""What goes round the ring. Read this file first, after `sebulba.types`.

A `Point` is where an actor continues. A collector acts one cycle from it and returns what it
`Collected`: a trajectory, a `Tally` of what happened in it, and the carry of the next point. The
actor places the trajectory and the actor states at its two ends on the learner devices: an
`Unroll`. With the numbers about it, `UnrollInfo`, and the next point, it goes onto the deque as a
`Delivery`. After each learner cycle, observers are given a `CycleReport`.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from sebulba.agent import Metrics
from sebulba.pytree import pytree_dataclass
from sebulba.types import ActorState, Array, EnvStep, PyTree, Trajectory


@pytree_dataclass
class EpisodeStatistics:
    """Each environment's episode up to a row; `[T, B]` over a trajectory."""

    episode_return: jax.Array  # [B] float32, of raw rewards
    episode_length: jax.Array  # [B] int32, env steps; reset steps do not count
    is_over: jax.Array  # [B] bool, the episode ended with this row (before it: length 0)
    # [B] float32 by the name of a reducer: its result, once the episode has ended
    reduced: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
    reducer_states: dict[str, PyTree] = dataclasses.field(default_factory=dict)

    def as_row(self) -> "EpisodeStatistics":
        """Return the statistics without the states of reducers, for storage in a trajectory."""
        return dataclasses.replace(self, reducer_states={})


@pytree_dataclass
class FinishedEpisodes:
    """Raw statistics of finished episodes, in the order of their ends.

    There may be tens of thousands in a trajectory: no Python object stands for one of them.
    """

    episode_return: Array  # [N] float32
    episode_length: Array  # [N] int32, env steps, without reset steps
    has_results: Array  # [N] bool: the reducers have seen the whole episode
    reduced: dict[str, Array] = dataclasses.field(default_factory=dict)  # [N] float32 by reducer

    def __len__(self) -> int:
        return len(self.episode_return)

    def last(self, num: int) -> "FinishedEpisodes":
        """Return the last `num` episodes, or all if there are fewer."""
        first = max(0, len(self) - num)
        return FinishedEpisodes(
            episode_return=self.episode_return[first:],
            episode_length=self.episode_length[first:],
            has_results=self.has_results[first:],
            reduced={name: results[first:] for name, results in self.reduced.items()},
        )

    def then(self, later: "FinishedEpisodes") -> "FinishedEpisodes":
        """Return these episodes, which have no results of reducers, and later ones.

        All are in host memory.
        """
        missing = np.zeros(len(self), np.float32)
        return FinishedEpisodes(
            episode_return=np.concatenate([self.episode_return, later.episode_return]),
            episode_length=np.concatenate([self.episode_length, later.episode_length]),
            has_results=np.concatenate([np.zeros(len(self), bool), later.has_results]),
            reduced={
                name: np.concatenate([missing, results]) for name, results in later.reduced.items()
            },
        )


@pytree_dataclass
class EndedRows:
    """Rows that may have ended an episode: the finished episodes that an act cycle reports."""

    has_ended: Array  # [K] bool; the entries of a row that ended no episode mean nothing
    env: Array  # [K] int32, the environment
    episode_return: Array  # [K] float32
    episode_length: Array  # [K] int32
    reduced: dict[str, Array] = dataclasses.field(default_factory=dict)  # [K] float32 by reducer

    @property
    def episodes(self) -> FinishedEpisodes:
        """The episodes; all arrays are in host memory."""
        has_ended = self.has_ended
        return FinishedEpisodes(
            episode_return=self.episode_return[has_ended],
            episode_length=self.episode_length[has_ended],
            has_results=np.ones(np.sum(has_ended), bool),
            reduced={name: results[has_ended] for name, results in self.reduced.items()},
        )


@pytree_dataclass
class ActCarry:
    """What one act cycle hands to the next; never donated.

    So one object is the start of a cycle, of its repetition after a fault, and of the cycle after a
    checkpoint.
    """

    actor_state: ActorState  # before `env_step`
    env_step: EnvStep  # [B], row 0 of the next cycle
    statistics: EpisodeStatistics  # [B], up to the row before `env_step`
    env_state: PyTree = None  # the complete environment state; None: it cannot be stored


@pytree_dataclass
class Tally:
    """What happened in an act cycle, counted inside jit."""

    num_episodes: jax.Array  # [] int32, that ended with one of rows 0 … T - 1
    ended: EndedRows  # [K], in their order: all rows, or the last that ended an episode
    env_steps: jax.Array  # [] int32, valid transitions
    is_finite: jax.Array  # [] bool, of all observations and rewards


@pytree_dataclass
class Collected:
    """What an act cycle gives; on the device that acted, or in host memory. Never donated."""

    carry: ActCarry  # of the next cycle
    trajectory: Trajectory
    tally: Tally


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamBoundary:
    """The last episodes of a stream, which ended because its environments are recreated."""

    finished: FinishedEpisodes  # with the stream's last row, without results of reducers
    num_interrupted: int  # in no statistics


NOTHING_BEFORE = StreamBoundary(
    finished=FinishedEpisodes(
        episode_return=np.zeros(0, np.float32),
        episode_length=np.zeros(0, np.int32),
        has_results=np.zeros(0, bool),
    ),
    num_interrupted=0,
)
"""The boundary before a run's first stream, whose first row its collector finds itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamStart:
    """What seeded a stream's environments when they were recreated."""

    cycle: int  # act cycles before it
    attempt: int  # faults in that cycle before it: no failed episode is repeated


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """Where an actor continues: all that its next act cycle depends on, besides the networks.

    Acting from the same point with the same networks gives the same result, whoever acts.
    """

    cycle: int  # act cycles before it
    carry: ActCarry
    # The stream ended here: the environments are recreated before the cycle, whose trajectory
    # reports these last episodes. None: it continues. Of the carry, only the actor state is used.
    boundary: StreamBoundary | None = None
    attempt: int = 0  # environment faults in this cycle so far
    # The recreation that the stream began with; None: its environments are the first of the run.
    began: StreamStart | None = None
    # The actions of the stream's cycles so far, each `[T, B]` in host memory: they bring new
    # environments here that cannot be stored. None: they were not kept.
    actions: tuple[PyTree, ...] | None = None

    @property
    def stream(self) -> StreamStart | None:
        """What seeds the environments of the cycle; None: they are the first of the run."""
        if self.boundary is None:
            return self.began
        if self.cycle == 0 and self.attempt == 0:
            return None
        return StreamStart(cycle=self.cycle, attempt=self.attempt)


@pytree_dataclass
class Unroll:
    """A trajectory and the actor states at its ends, on the learner devices.

    Inside the update, it is one learner device's share: some of the environments.
    """

    initial_state: ActorState  # before row 0
    final_state: ActorState  # after row T - 1
    trajectory: Trajectory
    actor_id: jax.Array  # [] int32, on this host


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnrollInfo:
    """The numbers about an unroll; hosts and observers exchange nothing else about it."""

    actor_id: int  # on its host
    sequence_number: int  # 0, 1, 2 … for each actor
    policy_version: int  # learner cycles completed when the networks were published
    env_steps: int  # valid transitions
    num_episodes: int  # that finished in it
    episodes: FinishedEpisodes  # the last of these, in host memory
    episodes_cut: int = 0  # episodes interrupted by recreating their environments
    env_restarts: int = 0  # environment faults during its act cycle


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Delivery:
    """An unroll on the deque of trajectories."""

    unroll: Unroll
    info: UnrollInfo
    point: Point  # where its actor continues


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CycleReport:
    """What observers are given after a learner cycle, or after several that ran in one program."""

    num_cycles: int  # of the run so far
    infos: Sequence[UnrollInfo]  # the unrolls that were learned from, of all hosts
    policy_lags: Sequence[int]  # of these unrolls, in learner cycles
    metrics: Sequence[Metrics]  # of the updates, on the devices; leading axis: updates
    queue_depth: int  # trajectories left in the deque
    # This host's unrolls that were learned from; empty if they stayed inside of one program.
    unrolls: Sequence[Unroll] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DueTimes:
    """When observers want to see the learner's state, with which a call of several cycles ends."""

    every_env_steps: tuple[int, ...] = ()  # at multiples of these numbers of env steps
    # Takes a number of learner cycles, and returns the next one; None: at none.
    next_cycle: Callable[[int], int] | None = None
    # After these numbers of learner cycles, before the next call is dispatched.
    before_cycles: tuple[int, ...] = ()


NEVER_DUE = DueTimes()
