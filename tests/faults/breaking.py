"""Environments and agents that break, for runs in this process and in others."""

import dataclasses
import time

import gymnasium
import jax.numpy as jnp
import numpy as np

from tests.toys import ToyAgent


class BreakingEnvironment(gymnasium.Env):
    """Fine for some steps; then it hangs, or says when it fails and fails."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, steps: int, then: str):
        self._steps_left = steps
        self._then = then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._steps_left -= 1
        if self._steps_left < 0:
            if self._then == "hang":
                time.sleep(3600)
            print(f"failed at {time.time()}", flush=True)
            raise RuntimeError("the simulator lost its mind")
        return np.zeros(3, np.float32), 1.0, False, False, {}


gymnasium.register("Breaking-v0", entry_point=BreakingEnvironment, disable_env_checker=True)

NAN_AT = 5


class NanAgent(ToyAgent):
    """A toy agent whose loss is not a number in some updates."""

    bad_steps = (NAN_AT,)

    def loss(self, networks, experience, key, clock):
        loss, (experience, metrics) = super().loss(networks, experience, key, clock)
        is_bad = jnp.isin(clock.step, jnp.asarray(self.bad_steps, jnp.int32))
        return loss * jnp.where(is_bad, jnp.nan, 1.0), (experience, metrics)


class DroppingAgent(ToyAgent):
    """Drops a leaf of its actor state on the way to the learner."""

    def shard_actor_state(self, actor_state, sharding):
        state = super().shard_actor_state(actor_state, sharding)
        return dataclasses.replace(state, count=None)


class MisplacingAgent(ToyAgent):
    """Splits a leaf of its actor state that has no axis of environments."""

    def shard_actor_state(self, actor_state, sharding):
        state = super().shard_actor_state(actor_state, sharding)
        return dataclasses.replace(state, count=sharding.replicate(actor_state.count[None]))
