"""Delays that disturb the timing of actors and learner, for tests."""

import time

from tests.disturbances import before


def insert_delays(rng, longest_s, *, setattr=setattr):
    """Make everything that actors and learner do to each other sleep at random before it."""
    for step in ("act", "update", "put", "get", "publish", "take"):
        before(step, lambda _: time.sleep(rng.uniform(0.0, longest_s)), setattr=setattr)
