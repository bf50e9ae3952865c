"""Resume on another number of hosts than the checkpoint's.

Networks, optimizer state and the progress of the run are the same on every host. The rest is a
host's own, and hosts are alike: each has the same numbers of actors, environments and learner
devices. So `M` hosts can take what `N` hosts saved:

- Experience in whole parts: host `m` takes that of host `m mod N`. The streams of a replay have no
  gaps, and all learner devices keep the same number of rows, which importance weights rely on. Of
  fewer hosts, some parts are not taken; of more, some twice, to be sampled with other keys.
- Actors start again, since exploration depends on an actor's number among all: with new
  environments, an empty memory and keys of their own.
- Accounts (the ledger, interrupted episodes) are continued by host `n mod M`, so that the sums over
  all hosts stay those of the run.

For `N = M`, every host takes its own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from sebulba.agent import Agent, declared
from sebulba.pytree import is_key
from sebulba.ring.records import ActCarry
from sebulba.ring.state import joined_boundaries
from sebulba.types import ActorState, PyTree, RunSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRemapping:
    """Which parts of a checkpoint a host takes."""

    num_stored: int  # hosts of the checkpoint
    host: int  # this one
    num_hosts: int  # of this run

    @property
    def is_needed(self) -> bool:
        """Whether the number of hosts has changed."""
        return self.num_stored != self.num_hosts

    @property
    def source(self) -> int:
        """The host whose experience this one takes."""
        return self.host % self.num_stored

    @property
    def accounts(self) -> list[int]:
        """The hosts whose accounts this one continues."""
        return list(range(self.host, self.num_stored, self.num_hosts))

    def applied_to(
        self,
        arrays: dict[str, PyTree],
        meta: dict[str, Any],
        metas: Sequence[dict[str, Any]],
        *,
        agent: Agent,
        carries: Sequence[ActCarry],
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """Return the state that this host restores.

        Args:
            arrays: the arrays of host `source`.
            meta: the JSON values of host `source`.
            metas: the JSON values of the hosts whose accounts this one continues.
            agent: the algorithm.
            carries: the carries of this host's new actors.
        """
        progress = meta["progress"]
        states = [
            restarted(
                agent,
                carry.actor_state,
                env_steps=progress["env_steps"],
                num_cycles=meta["learner"]["num_cycles"],
            )
            for carry in carries
        ]
        counts = {
            name: sum(each["progress"][name] for each in metas)
            for name in ("env_restarts", "episodes_cut")
        }
        ledgers = [each["ledger"]["learned"] for each in metas]
        boundaries = [
            [each["actors"]["boundaries"][actor] for each in metas] for actor in range(len(carries))
        ]
        meta = meta | {
            "actors": {
                "num_cycles": meta["actors"]["num_cycles"],
                "boundaries": [joined_boundaries(of_actor) for of_actor in boundaries],
            },
            "ledger": {"learned": [sum(each[a] for each in ledgers) for a in range(len(carries))]},
            "progress": progress | counts,
        }
        return arrays | {"actors": [{"actor_state": state} for state in states]}, meta

    def describe(self, run_spec: RunSpec) -> str:
        """Return what another number of hosts changes, for the log."""
        rows = run_spec.num_streams * run_spec.trajectory_length * run_spec.trajectories_per_cycle
        devices = run_spec.num_learner_devices
        now, before = self.num_hosts, self.num_stored
        taken = f"the experience of host {self.source}"
        if now < before:
            taken += f" (that of hosts {now} and above is not used)"
        return (
            f"hosts: {now} instead of {before}: a learner cycle takes {now * rows:,} transitions"
            f" instead of {before * rows:,}; gradients are the mean over {now * devices} learner"
            f" devices instead of {before * devices}; batch sizes per host and learning rates do"
            f" not change. This host takes {taken}, and its actors start again"
        )


def restarted(
    agent: Agent, actor_state: ActorState, *, env_steps: int, num_cycles: int
) -> ActorState:
    """Return a new actor's state for a run that has taken some env steps and learner cycles."""
    actor_state = declared(agent, Agent, "advance_actor_state")(actor_state, env_steps)
    return jax.tree.map(lambda leaf: _fold(leaf, num_cycles), actor_state)


def _fold(leaf: Any, number: int) -> Any:
    """Return other keys for keys, so that actions are not drawn as at the start of the run."""
    if not is_key(leaf):
        return leaf
    fold = jax.random.fold_in
    for _ in leaf.shape:
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(leaf, number)
