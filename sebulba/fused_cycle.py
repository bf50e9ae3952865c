"""Act cycles as one jitted call, the environment inside it."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from sebulba.act_cycle import (
    ActCarry,
    BufferAllocator,
    CycleResult,
    act_row,
    check_finite,
    finish_rows,
    guarded,
)
from sebulba.agent import Agent
from sebulba.envs.base import EnvironmentFault, FusedEnvironment
from sebulba.envs.checks import check_structure
from sebulba.episode_reducers import EpisodeTracker
from sebulba.timing import ACT, COMPILE, WallClock
from sebulba.trajectory_buffer import Buffer
from sebulba.types import Networks
from sebulba.whole_episodes import close_episodes, wait_at_the_end


class FusedCycle:
    """An act cycle as one jitted scan; for environments that can be stepped inside `jit`."""

    def __init__(
        self,
        agent: Agent,
        environment: FusedEnvironment,
        *,
        allocate: BufferAllocator,
        trajectory_length: int,
        device: jax.Device,
        clock: WallClock,
        whole_episodes: bool = False,
        tracker: EpisodeTracker | None = None,
    ):
        tracker = tracker or EpisodeTracker()
        if whole_episodes and environment.restart is None:
            raise ValueError("expected an environment with `restart` for whole episodes, got none")
        self._device = device
        self._is_whole_state = environment.is_whole_state
        self._restart = environment.restart if whole_episodes else None
        sharding = jax.sharding.SingleDeviceSharding(device)
        self._env_state = jax.device_put(environment.state, device)
        self._allocate = allocate
        self._clock = clock
        self._next_activity = COMPILE

        def step(networks, t, carry, buffer, env_state):
            action, actor_state, statistics, buffer = act_row(
                agent, networks, carry, buffer, t, tracker=tracker
            )
            env_state, env_step = environment.step(env_state, action)
            check_structure(env_step, carry.env_step)
            carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
            return carry, buffer, env_state

        def cycle(networks, actor_state, buffer, env_step, statistics, env_state):
            def body(scanned, t):
                return step(networks, t, *scanned), None

            carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
            (carry, buffer, env_state), _ = jax.lax.scan(
                body, (carry, buffer, env_state), jnp.arange(trajectory_length)
            )
            return env_state, carry, finish_rows(buffer, carry.actor_state, carry.env_step)

        def episodes_cycle(networks, actor_state, buffer, env_step, statistics, env_state):
            def goes_on(looped):
                t, carry, *_ = looped
                return (t == 0) | ~jnp.all(carry.env_step.done)

            def body(looped):
                t, before, buffer, env_state = looped
                carry, buffer, env_state = step(networks, t, before, buffer, env_state)
                is_last = t + 1 == trajectory_length - 1
                row = wait_at_the_end(before.env_step, carry.env_step, is_last=is_last)
                return t + 1, dataclasses.replace(carry, env_step=row), buffer, env_state

            carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
            t, carry, buffer, env_state = jax.lax.while_loop(
                goes_on, body, (jnp.int32(0), carry, buffer, env_state)
            )
            buffer, statistics = close_episodes(
                buffer, carry.statistics, carry.env_step, t, tracker
            )
            return env_state, dataclasses.replace(carry, statistics=statistics), buffer

        # Networks of a single learner device lie on its mesh, and what is computed from them would
        # too: the second cycle, which begins with that, would be compiled again.
        self._cycle = jax.jit(
            episodes_cycle if whole_episodes else cycle,
            donate_argnames=("actor_state", "buffer"),
            out_shardings=sharding,
        )
        self._finish = jax.jit(finish_rows, donate_argnames=("buffer",), out_shardings=sharding)

    def __call__(self, networks: Networks, carry: ActCarry) -> tuple[ActCarry, CycleResult]:
        """Acts `T` steps; `carry.actor_state` is donated."""
        env_state = self._env_state if carry.env_state is None else carry.env_state
        self._clock.begin(self._next_activity)
        self._next_activity = ACT
        try:
            self._env_state, carry, result = self._cycle(
                networks,
                carry.actor_state,
                self._allocate(),
                jax.device_put(carry.env_step, self._device),
                carry.statistics,
                env_state,
            )
            jax.block_until_ready(result)
            if self._restart is not None:
                carry, result = self._begin_anew(self._restart, carry, result)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            # What a callback raises is the only error that comes from inside an environment; how
            # many steps it had taken is not known.
            if "Callback error" not in str(error):
                raise
            raise EnvironmentFault(f"step raised {str(error).strip().splitlines()[-1]}") from error
        check_finite(result)
        if self._is_whole_state:
            carry = dataclasses.replace(carry, env_state=self._env_state)
        self._clock.lap(ACT)
        return carry, result

    def _begin_anew(
        self, restart: Callable, carry: ActCarry, buffer: Buffer
    ) -> tuple[ActCarry, CycleResult]:
        """Resets all environments, which is row `T`."""
        state, env_step = guarded("reset", restart, self._env_state)
        self._env_state, env_step = jax.device_put((state, env_step), self._device)
        result = jax.block_until_ready(self._finish(buffer, carry.actor_state, env_step))
        return dataclasses.replace(carry, env_step=env_step), result
