"""An environment and an agent that go wrong once a run is under way, for `tests.faults.monkey`.

The variable MONKEY says what goes wrong, and at which env step of this process: "hang 300".
"""

import dataclasses
import itertools
import os
import time

import jax.numpy as jnp
import numpy as np

from sebulba.envs.jax_environment import JaxEnvironment
from sebulba.envs.jax_tasks import Catch, Recall
from tests.toys import ToyAgent

_KIND, _AT = os.environ.get("MONKEY", "nothing 0").split()
_PACE_S = 0.002  # per env step, so that a run lasts long enough to be disturbed
_clock = time.time
_steps = itertools.count()


def make(config, *, num_envs, seed):
    """Return environments of a JAX task: stepped from Python, and saved whole all the same."""
    task = {"Catch-v0": Catch, "Recall-v0": Recall}[config.id]()
    return MonkeyEnvironment(task, num_envs=num_envs, seed=seed)


class MonkeyEnvironment(JaxEnvironment):
    """A JAX environment that goes wrong at one step, or from it on."""

    def step(self, action):
        late = next(_steps) - int(_AT)
        time.sleep(0.05 if _KIND == "slow" and 0 <= late < 20 else _PACE_S)
        if late == 0:
            _go_wrong()
        env_step = super().step(action)
        if late == 0 and _KIND == "nan":
            nan = np.full_like(env_step.observation, np.nan)
            return dataclasses.replace(env_step, observation=nan)
        return env_step


def _go_wrong():
    if _KIND == "raise":
        raise ArithmeticError("the pole is off\nin two lines")
    if _KIND == "quit":
        raise SystemExit(0)
    if _KIND == "hang":
        time.sleep(3600)
    if _KIND == "chdir":
        os.chdir("/")
    if _KIND == "clock":
        time.time = lambda: _clock() - 86_400.0


class MonkeyAgent(ToyAgent):
    """A toy agent whose loss or whose number of updates goes wrong."""

    def loss(self, networks, experience, key, clock):
        loss, aux = super().loss(networks, experience, key, clock)
        bad = int(_AT) if _KIND == "loss" else -1
        return loss * jnp.where(clock.step == bad, jnp.nan, 1.0), aux

    def num_updates_per_cycle(self, cycle):
        if cycle == int(_AT) and _KIND == "agent-hangs":
            time.sleep(3600)
        if cycle == int(_AT) and _KIND == "agent-miscounts":
            return -3
        return super().num_updates_per_cycle(cycle)
