"""The decisions that all hosts make together after each learner cycle."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.ring.run_end import RunEnd
from sebulba.types import EpisodeRecord

_HOST_AXIS = "host"
_NUM_VOTES = 3
_NUM_COUNTS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryReport:
    """A learned trajectory, as hosts report it to each other."""

    env_steps: int
    policy_lag: int
    num_episodes: int  # that finished in it
    episodes: tuple[EpisodeRecord, ...]  # the last of these


class Agreement:
    """Gathers the reports and votes of all hosts, in one small collective per learner cycle.

    Every decision is a function of all reports and votes, and so equal on all hosts at the same
    cycle; a host that stopped or saved alone would leave the others in a collective for ever. The
    hosts stop when one votes to stop, and save when all vote to save. With its votes, each host
    tells its newest checkpoint. A single host gathers nothing: its supervisor stops it, and it may
    always save.
    """

    def __init__(
        self,
        learner_devices: LearnerDevices,
        *,
        run_end: RunEnd,
        max_episodes: int,
        reducers: Sequence[str] = (),
    ):
        """Start without any decision.

        Args:
            learner_devices: of all hosts.
            run_end: gives the signal that this host received, and is given the one agreed on.
            max_episodes: the last episodes of a trajectory that are reported: the return window
                holds no more.
            reducers: names of the custom per-episode metrics.
        """
        self.allows_checkpoint = learner_devices.num_hosts == 1
        self.run_end = run_end
        self.wants_checkpoint: Callable[[], bool] = lambda: False
        self.last_saved: Callable[[], int] = lambda: 0  # cycle of this host's newest checkpoint
        self.saved_by_all: int | None = (
            None  # the newest checkpoint of which every host has a share
        )
        self._max_episodes = max_episodes
        self._reducers = tuple(reducers)
        self._gather = None if learner_devices.num_hosts == 1 else _Gather(learner_devices)

    def decide(self, reports: Sequence[TrajectoryReport]) -> list[TrajectoryReport]:
        """Return the reports of all hosts for a learner cycle, in the order of the hosts.

        Every host has the same number of trajectories.
        """
        if self._gather is None:
            return list(reports)
        packed = [
            pack(report, max_episodes=self._max_episodes, reducers=self._reducers)
            for report in reports
        ]
        votes = np.array(
            [self.run_end.received or 0, self.wants_checkpoint(), self.last_saved()], np.int32
        )
        rows = self._gather(np.concatenate([votes, *packed]))
        self.run_end.signal = int(rows[:, 0].max()) or None
        self.allows_checkpoint = bool(rows[:, 1].all())
        self.saved_by_all = int(rows[:, 2].min())
        every = rows[:, _NUM_VOTES:].reshape(
            -1, _NUM_COUNTS + (2 + len(self._reducers)) * self._max_episodes
        )
        return [unpack(row, reducers=self._reducers) for row in every]


def pack(
    report: TrajectoryReport, *, max_episodes: int, reducers: Sequence[str] = ()
) -> np.ndarray:
    """Return a report as an int32 array of constant length."""
    kept = report.episodes[-max_episodes:]
    # Constant, since a collective needs equal shapes on all hosts and compiles once. NaN marks a
    # metric that an episode does not have.
    numbers = np.full((1 + len(reducers), max_episodes), np.nan, np.float32)
    for i, record in enumerate(kept):
        numbers[0, i] = record.episode_return
        numbers[1:, i] = [record.reduced.get(name, np.nan) for name in reducers]
    lengths = np.zeros(max_episodes, np.int32)
    lengths[: len(kept)] = [record.episode_length for record in kept]
    counts = [report.env_steps, report.policy_lag, report.num_episodes, len(kept)]
    return np.concatenate([np.array(counts, np.int32), lengths, numbers.view(np.int32).ravel()])


def unpack(row: np.ndarray, *, reducers: Sequence[str] = ()) -> TrajectoryReport:
    """Return a packed report; episodes before the last `max_episodes` are lost."""
    env_steps, policy_lag, num_episodes, num_kept = map(int, row[:_NUM_COUNTS])
    lengths, *rest = np.split(row[_NUM_COUNTS:], 2 + len(reducers))
    returns, *reduced = (numbers.view(np.float32) for numbers in rest)
    return TrajectoryReport(
        env_steps=env_steps,
        policy_lag=policy_lag,
        num_episodes=num_episodes,
        episodes=tuple(
            EpisodeRecord(
                episode_return=float(returns[i]),
                episode_length=int(lengths[i]),
                reduced={
                    name: float(numbers[i])
                    for name, numbers in zip(reducers, reduced, strict=True)
                    if not np.isnan(numbers[i])
                },
            )
            for i in range(num_kept)
        ),
    )


class _Gather:
    """Gathers an array of every host on all hosts, over the first learner device of each."""

    def __init__(self, learner_devices: LearnerDevices):
        firsts = learner_devices.mesh.devices[:: len(learner_devices.devices)]
        self._num_hosts = learner_devices.num_hosts
        self._device = learner_devices.devices[0]
        self._sharding = NamedSharding(Mesh(firsts, (_HOST_AXIS,)), PartitionSpec(_HOST_AXIS))
        replicated = NamedSharding(self._sharding.mesh, PartitionSpec())
        self._gather = jax.jit(lambda rows: rows, out_shardings=replicated)

    def __call__(self, row: np.ndarray) -> np.ndarray:
        """Return `[hosts, n]` for this host's `[n]`."""
        own = jax.device_put(row[None], self._device)
        rows = jax.make_array_from_single_device_arrays(
            (self._num_hosts, row.size), self._sharding, [own]
        )
        return np.asarray(self._gather(rows))
