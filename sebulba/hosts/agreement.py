"""The decisions that all hosts make together after each learner cycle."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sebulba.devices.learner_devices import LearnerDevices
from sebulba.ring.records import FinishedEpisodes, UnrollInfo
from sebulba.ring.run_end import RunEnd

_HOST_AXIS = "host"
_COUNTS = (
    "actor_id",
    "sequence_number",
    "policy_version",
    "env_steps",
    "num_episodes",
    "episodes_cut",
    "env_restarts",
)
_COLUMNS = ("episode_return", "episode_length", "has_results")


class Agreement:
    """Gathers the infos and votes of all hosts, in one small collective per learner cycle.

    Every decision is a function of all infos and votes, and so equal on all hosts at the same
    cycle; a host that stopped or saved alone would leave the others in a collective for ever. The
    hosts stop when one votes to stop, and save when all vote to save. With its votes, each host
    tells its newest checkpoint. A single host gathers nothing: its supervisor stops it, and it may
    always save.

    Attributes:
        wants_checkpoint: this host's vote.
        last_saved: learner cycle of this host's newest checkpoint.
        allows_checkpoint: whether all hosts wanted a checkpoint at the latest gathering.
        saved_by_all: the newest checkpoint of which every host has its part.
    """

    def __init__(
        self,
        learner_devices: LearnerDevices,
        *,
        end: RunEnd,
        max_episodes: int,
    ):
        """Start without any decision.

        Args:
            learner_devices: the learner devices of all hosts.
            end: gives the signal that this host received, and is given the one agreed on.
            max_episodes: the last episodes of a trajectory that are gathered: the return window
                holds no more.
        """
        self.wants_checkpoint = False
        self.last_saved = 0
        self.allows_checkpoint = learner_devices.num_hosts == 1
        self.saved_by_all: int | None = None
        self._end = end
        self._max_episodes = max_episodes
        self._gather = None if learner_devices.num_hosts == 1 else _Gather(learner_devices)

    def gather(self, infos: Sequence[UnrollInfo]) -> list[UnrollInfo]:
        """Return the infos of all hosts for a learner cycle, in the order of the hosts.

        Every host has the same number of unrolls.
        """
        if self._gather is None:
            return list(infos)
        # The names of the metrics per episode, which are the same on every host.
        names = sorted(infos[0].episodes.reduced)
        kind = message_type(len(infos), self._max_episodes, names)
        message = np.zeros((), kind)
        message["signal"] = self._end.received or 0
        message["wants_checkpoint"] = self.wants_checkpoint
        message["last_saved"] = self.last_saved
        write_infos(message["unrolls"], infos, names)
        rows = self._gather(np.frombuffer(message.tobytes(), np.int32))
        messages = np.frombuffer(rows.tobytes(), kind)  # [hosts]
        self._end.signal = int(messages["signal"].max()) or None
        self.allows_checkpoint = bool(messages["wants_checkpoint"].all())
        self.saved_by_all = int(messages["last_saved"].min())
        return [info for each in messages for info in read_infos(each["unrolls"], names)]


def message_type(num_unrolls: int, max_episodes: int, reducers: Sequence[str]) -> np.dtype:
    """Return the structure of a host's message, in words of 32 bits.

    Its length is constant: a collective needs equal shapes on all hosts and compiles once.
    """
    episode = [
        ("episode_return", np.float32),
        ("episode_length", np.int32),
        ("has_results", np.int32),
        ("reduced", np.float32, (len(reducers),)),
    ]
    unroll = [
        *((name, np.int32) for name in _COUNTS),
        ("num_kept", np.int32),
        ("episodes", episode, (max_episodes,)),
    ]
    return np.dtype(
        [
            ("signal", np.int32),
            ("wants_checkpoint", np.int32),
            ("last_saved", np.int32),
            ("unrolls", unroll, (num_unrolls,)),
        ]
    )


def write_infos(unrolls: np.ndarray, infos: Sequence[UnrollInfo], reducers: Sequence[str]) -> None:
    """Write infos into a message; episodes before the last `max_episodes` are left out."""
    max_episodes = unrolls["episodes"].shape[1]
    for into, info in zip(unrolls, infos, strict=True):
        for name in _COUNTS:
            into[name] = getattr(info, name)
        kept = info.episodes.last(max_episodes)
        into["num_kept"] = len(kept)
        episodes = into["episodes"][: len(kept)]
        for name in _COLUMNS:
            episodes[name] = getattr(kept, name)
        for number, name in enumerate(reducers):
            episodes["reduced"][:, number] = kept.reduced[name]


def read_infos(unrolls: np.ndarray, reducers: Sequence[str]) -> list[UnrollInfo]:
    """Return the infos in a message."""

    def kept(episodes: np.ndarray) -> FinishedEpisodes:
        return FinishedEpisodes(
            episode_return=episodes["episode_return"],
            episode_length=episodes["episode_length"],
            has_results=episodes["has_results"].astype(bool),
            reduced={name: episodes["reduced"][:, i] for i, name in enumerate(reducers)},
        )

    return [
        UnrollInfo(
            **{name: int(each[name]) for name in _COUNTS},
            episodes=kept(each["episodes"][: int(each["num_kept"])]),
        )
        for each in unrolls
    ]


class _Gather:
    """Gathers an array of every host on all hosts, over the first learner device of each.

    JAX's own `process_allgather` takes all devices, actor devices too, and one collective a leaf.
    """

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
