"""An agent that stops its process (SIGSTOP) on the second host, at the start of a learner cycle."""

import os
import signal

import jax

from tests.toys import ToyAgent, ToyConfig

STOPPING_CYCLE = 20


class StoppingAgent:
    """The toy agent, which stops when it returns the number of updates."""

    Config = ToyConfig

    def __init__(self, config, run_spec):
        self._agent = ToyAgent(config, run_spec)

    def __getattr__(self, name):
        return getattr(self._agent, name)

    def num_updates_per_cycle(self, cycle):
        if jax.process_index() == 1 and cycle == STOPPING_CYCLE:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._agent.num_updates_per_cycle(cycle)
