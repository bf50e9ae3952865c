"""Start a new run with the networks of another run: `init_from`.

Parameters, target parameters and normalisers are copied, since all of them are part of the
networks. The new run has a new optimizer state, no experience, and starts its schedules and counts.
"""

import dataclasses
import pathlib
from typing import Any

import jax

from sebulba.agent import Agent, declared
from sebulba.devices.learner_devices import LearnerDevices, fetch_replicated
from sebulba.errors import ConfigError
from sebulba.evaluation.stored import exact_source, parse_source
from sebulba.storage.checkpoints.manifest import Mismatch, flatten, table
from sebulba.storage.checkpoints.restore import (
    CheckpointError,
    read_meta,
    restore_fitting,
)
from sebulba.storage.names import CHECKPOINTS
from sebulba.types import Networks

_PREFIX = "learner.networks"  # of the paths in a checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WarmStart:
    """The networks of another run, as far as they fit this run's."""

    run_dir: pathlib.Path
    learner_cycle: int  # of the checkpoint
    env_steps: int  # that they were trained for
    leaves: dict[str, Any]  # on the host, by path
    mismatches: list[Mismatch]

    def applied_to(
        self, networks: Networks, learner_devices: LearnerDevices, agent: Agent
    ) -> Networks:
        """Return networks on the learner devices with the leaves that fit replaced.

        Target networks that the source does not have are copies of the networks that they follow.
        """
        new = self._replaced(fetch_replicated(networks, learner_devices.devices[0]))
        copied = declared(agent, Agent, "copy_to_targets")(new)
        return learner_devices.replicate(self._replaced(copied))

    def _replaced(self, networks: Networks) -> Networks:
        leaves = [self.leaves.get(path, leaf) for path, leaf in flatten(_at(networks)).items()]
        return jax.tree.unflatten(jax.tree.structure(networks), leaves)

    def __str__(self) -> str:
        report = (
            f"init_from: {len(self.leaves)} arrays of checkpoint {self.learner_cycle} in"
            f" {self.run_dir}, trained for {self.env_steps:,} env steps"
        )
        if not self.mismatches:
            return report
        return (
            f"{report}; these are newly initialised (target networks: copies), or not used where"
            " expected is absent:\n"
            f"{table(self.mismatches)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record of the copy for `run.json`."""
        return {
            "run_dir": str(self.run_dir),
            "learner_cycle": self.learner_cycle,
            "env_steps": self.env_steps,
            "copied": list(self.leaves),
            "not_copied": [dataclasses.asdict(each) for each in self.mismatches],
        }


class InitialNetworks:
    """The networks that a new run begins with: new ones, or those of `init_from`."""

    def __init__(self, source: str | None, *, mismatch: str):
        """Read nothing yet.

        Args:
            source: `init_from`; None: of no other run, as when a run is resumed.
            mismatch: `init_mismatch`.
        """
        self._source = source
        self._mismatch = mismatch
        self.warm_start: WarmStart | None = None  # what was taken of another run

    def __call__(
        self, networks: Networks, learner_devices: LearnerDevices, agent: Agent
    ) -> Networks:
        """Return the new networks with the leaves of the other run's that fit.

        Raises:
            ConfigError: there is no such checkpoint, it is damaged, or its networks do not fit.
        """
        if self._source is None:
            return networks
        self.warm_start = read_warm_start(self._source, networks, mismatch=self._mismatch)
        return self.warm_start.applied_to(networks, learner_devices, agent)


def read_warm_start(source: str, networks: Networks, *, mismatch: str) -> WarmStart:
    """Read the networks of `init_from`.

    Args:
        source: `init_from`.
        networks: the new run's, or their shapes.
        mismatch: `init_mismatch`.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or its networks do not fit.
    """
    run_dir, step = parse_source(exact_source(source, key="init_from"))
    directory = run_dir / CHECKPOINTS
    # Without a sharding, leaves stay on the host.
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), networks)
    try:
        meta = read_meta(directory, step)
        leaves, mismatches = restore_fitting(directory, step, _at(like), prefix=_PREFIX)
    except CheckpointError as error:
        raise ConfigError(f"init_from: {error}") from error
    if mismatches and (mismatch == "fail" or not leaves):
        advice = "Set init_mismatch: new to leave these arrays newly initialised."
        raise ConfigError(
            f"init_from: {len(leaves)} arrays of checkpoint {step} in {run_dir} fit the networks of"
            f" this run, and these differ:\n{table(mismatches)}\n"
            + (advice if leaves else "Choose a run with the same kind of networks.")
        )
    return WarmStart(
        run_dir=run_dir,
        learner_cycle=meta["learner"]["num_cycles"],
        env_steps=meta["progress"]["env_steps"],
        leaves=leaves,
        mismatches=mismatches,
    )


def _at(networks: Networks) -> dict[str, Any]:
    """Return networks where they are in a checkpoint."""
    return {"learner": {"networks": networks}}
