"""An agent, writers and observers that end a run as ENDING says, for `tests.faults.random_endings`.

`python -m tests.faults.ending_agent CONFIG` calls `sebulba.train` with a callback.
"""

import sys
import time

import jax
import jax.numpy as jnp

from sebulba.run.autosave import Autosave
from sebulba.run.replicas import ReplicaCheck
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.metrics.csv import CsvWriter
from tests.faults.ending_environment import PLAN, fail_if_planned, reached
from tests.toys import ToyAgent

AT_CYCLE = 5
BAD_UPDATE = 5


class EndingAgent(ToyAgent):
    """A toy agent that fails in one of its methods."""

    _num_sharded = 0

    def act(self, *args, **kwargs):
        fail_if_planned("act")
        return super().act(*args, **kwargs)

    def loss(self, networks, experience, key, clock):
        fail_if_planned("loss")
        if PLAN["signal"] == "SIGTERM while compiling" and self._num_sharded:
            reached("compiling")
            time.sleep(2.0)
        loss, aux = super().loss(networks, experience, key, clock)
        bad = BAD_UPDATE if PLAN["fails"] == "non-finite" else -1
        return loss * jnp.where(clock.step == bad, jnp.nan, 1.0), aux

    def shard_actor_state(self, actor_state, sharding):
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(actor_state)):
            self._num_sharded += 1
        if self._num_sharded > AT_CYCLE:
            fail_if_planned("shard_actor_state")
        return super().shard_actor_state(actor_state, sharding)

    def num_updates_per_cycle(self, cycle):
        if cycle == AT_CYCLE:
            fail_if_planned("num_updates_per_cycle")
        return super().num_updates_per_cycle(cycle)


def raise_if_planned(where):
    """Return a method that fails if that is planned, and does nothing otherwise."""
    return lambda *args, **kwargs: fail_if_planned(where)


def on_cycle(self, report):
    """Fail as an observer, lose the disk, or say that the run trains."""
    if report.num_cycles < AT_CYCLE:
        return
    reached("training")
    fail_if_planned("observer")


def close(self, end, own=Autosave.close):
    """Take a second to save the end of the run."""
    reached("saving")
    if PLAN["signal"] == "SIGTERM in the last save":
        time.sleep(1.0)
    own(self, end)


def save(self, *args, own=Checkpointer.save, **kwargs):
    """Save where somebody has put a file in the place of the directory."""
    if PLAN["fails"] == "disk" and self.directory.is_dir():
        self.directory.rename(self.directory.with_name("away"))
        self.directory.touch()
        reached("failure")
    own(self, *args, **kwargs)


ReplicaCheck.on_cycle = on_cycle
Autosave.close = close
Checkpointer.save = save
if PLAN.get("fails") == "writer":
    CsvWriter.write = raise_if_planned("writer")


def main():
    """Call the function of the library with a callback that fails if that is planned."""
    import sebulba

    callbacks = [raise_if_planned("callback")]
    print(sebulba.train(sys.argv[1], callbacks=callbacks, verbose=True), file=sys.stderr)


if __name__ == "__main__":
    main()
