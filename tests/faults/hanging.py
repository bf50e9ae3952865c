"""Agents and an environment that hang until `released` is set, and an agent with slow updates."""

import threading
import time

import jax

from tests.faults.runs import LONG_S
from tests.toys import ToyAgent

SLOW_UPDATE_S = 1.0
released = threading.Event()
_hanging = []


def now():
    """Return the time on a clock that leaps an hour ahead once an agent hangs."""
    return time.perf_counter() + (3600 if _hanging else 0)


def hang():
    _hanging.append(threading.current_thread())
    released.wait()


def join():
    """Wait for the threads that hung."""
    while _hanging:
        thread = _hanging.pop()
        thread.join(LONG_S)
        assert not thread.is_alive()
    released.clear()


def never_made(config, *, num_envs, seed):
    hang()


class HangsInCount(ToyAgent):
    def num_updates_per_cycle(self, cycle):
        if cycle == 3:
            hang()
        return 1


class SlowToLearn(ToyAgent):
    def optimize(self, networks, opt_state, grads, experience, clock):
        jax.debug.callback(lambda: time.sleep(SLOW_UPDATE_S))
        return super().optimize(networks, opt_state, grads, experience, clock)


class HangsInSharding(ToyAgent):
    num_calls = 0

    def shard_actor_state(self, actor_state, sharding):
        self.num_calls += 1
        if self.num_calls == 4:
            hang()
        return super().shard_actor_state(actor_state, sharding)


class HangsInFirstUpdate(ToyAgent):
    def optimize(self, networks, opt_state, grads, experience, clock):
        if threading.current_thread() is not threading.main_thread():
            hang()
        return super().optimize(networks, opt_state, grads, experience, clock)


class HangsInFirstAct(ToyAgent):
    def act(self, networks, actor_state, env_step, *, greedy):
        if threading.current_thread() is not threading.main_thread():
            jax.block_until_ready(networks)
            hang()
        return super().act(networks, actor_state, env_step, greedy=greedy)
