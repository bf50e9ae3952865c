"""Deals what the hosts of a checkpoint saved to the hosts of the run that resumes it.

Networks, optimizer state and the progress of the run are the same on every host. The rest is a
host's own, and hosts are alike: each has the same numbers of actors, environments and learner
devices. So `M` hosts can take what `N` hosts saved:

- Experience in whole shares: host `m` takes that of host `m mod N`. The streams of a replay have no
  gaps, and all learner devices keep the same number of rows, which importance weights rely on. Of
  fewer hosts, some shares are not taken; of more, some twice, to be sampled with other keys.
- Actors begin anew, since exploration depends on an actor's number among all: with new
  environments, an empty memory and keys of their own.
- Accounts (the ledger, interrupted episodes) are continued by host `n mod M`, so that the sums over
  all hosts stay those of the run.

For `N = M`, every host takes its own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from sebulba.acting.act_cycle import ActCarry
from sebulba.acting.env_reset import StreamBoundary
from sebulba.agent import Agent, declared
from sebulba.config import Config
from sebulba.types import EpisodeRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deal:
    """What a host takes of the shares of a checkpoint."""

    num_stored: int  # hosts of the checkpoint
    host: int  # this one
    num_hosts: int  # of this run

    @property
    def is_new(self) -> bool:
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


def sum_accounts(metas: Sequence[dict[str, Any]], num_actors: int) -> dict[str, Any]:
    """Return the sums of some hosts' accounts: the ledger of each actor, and the counts."""
    ledgers = [meta["ledger"]["learned"] for meta in metas]
    names = ("env_restarts", "episodes_cut")
    return {
        "learned": [sum(each[actor] for each in ledgers) for actor in range(num_actors)],
        "counts": {name: sum(meta["progress"][name] for meta in metas) for name in names},
    }


def join_boundaries(metas: Sequence[dict[str, Any]], num_actors: int) -> list[StreamBoundary]:
    """Return for each actor the last episodes of the streams that some hosts' actors left."""
    return [
        _join([meta["actors"]["boundaries"][actor] for meta in metas])
        for actor in range(num_actors)
    ]


def _join(stored: Sequence[dict[str, Any]]) -> StreamBoundary:
    finished = (record for each in stored for record in each["finished"])
    return StreamBoundary(
        finished=tuple(EpisodeRecord(**record) for record in finished),
        num_interrupted=sum(each["num_interrupted"] for each in stored),
    )


def begun_anew(agent: Agent, carry: ActCarry, *, env_steps: int, num_cycles: int) -> ActCarry:
    """Return a new actor's carry for a run that has taken some env steps."""
    advance = declared(agent, Agent, "advance_actor_state")
    actor_state = advance(carry.actor_state, env_steps)
    actor_state = jax.tree.map(lambda leaf: _fold(leaf, num_cycles), actor_state)
    return dataclasses.replace(carry, actor_state=actor_state)


def _fold(leaf: Any, number: int) -> Any:
    """Return other keys for keys, so that actions are not drawn as at the start of the run."""
    if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    fold = jax.random.fold_in
    for _ in leaf.shape:
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(leaf, number)


def describe_deal(deal: Deal, config: Config, num_learner_devices: int) -> str:
    """Return what another number of hosts changes, for the log.

    `num_learner_devices` is that of each host.
    """
    rows = config.actor.num_envs * config.actor.trajectory_length
    rows *= config.learner.trajectories_per_cycle
    now, before = deal.num_hosts, deal.num_stored
    taken = f"the experience of host {deal.source}"
    if now < before:
        taken += f" (that of hosts {now} and above is not used)"
    devices = num_learner_devices
    return (
        f"hosts: {now} instead of {before}: a learner cycle takes {now * rows:,} transitions"
        f" instead of {before * rows:,}; gradients are the mean over {now * devices} learner"
        f" devices instead of {before * devices}; batch sizes per host and learning rates do not"
        f" change. This host takes {taken}, and its actors begin anew"
    )
