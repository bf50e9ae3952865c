"""Delays that disturb the timing of actors and learner, for tests."""

import time

from sebulba.acting.actor import Actor
from sebulba.learning.learner import Learner
from sebulba.ring.queues import NetworksDeque, TrajectoryDeque

_DELAYED = (
    (Actor, "run_cycle"),
    (Learner, "run_cycle"),
    (TrajectoryDeque, "put"),
    (TrajectoryDeque, "get"),
    (NetworksDeque, "append"),
    (NetworksDeque, "take"),
)


def insert_delays(rng, longest_s, *, setattr=setattr):
    """Make everything that actors and learner do to each other sleep at random before it."""
    for owner, name in _DELAYED:
        method = getattr(owner, name)

        def delayed(self, *args, method=method):
            time.sleep(rng.uniform(0.0, longest_s))
            return method(self, *args)

        setattr(owner, name, delayed)
