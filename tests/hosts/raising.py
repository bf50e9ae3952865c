"""An agent that raises on the second host, in an actor thread, after some cycles."""

import itertools

import jax

from tests.toys import ToyAgent, ToyConfig

FAILING_CALL = 20


class RaisingAgent:
    """The toy agent, which fails when it shards the actor state."""

    Config = ToyConfig

    def __init__(self, config, run_spec):
        self._agent = ToyAgent(config, run_spec)
        self._calls = itertools.count()

    def __getattr__(self, name):
        return getattr(self._agent, name)

    def shard_actor_state(self, actor_state, sharding):
        if jax.process_index() == 1 and next(self._calls) >= FAILING_CALL:
            raise RuntimeError("the second host fails")
        return self._agent.shard_actor_state(actor_state, sharding)
