"""The fused act cycle: one jitted call with the environment inside it."""

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp

from sebulba.agent import Agent
from sebulba.envs.base import EnvironmentFault, FusedEnvironment, StepInTurns, TraceableStep
from sebulba.envs.data_checks import check_structure
from sebulba.ring.act_cycle import (
    ENV_STEP_SCOPE,
    act_row,
    append_rows,
    call_environment,
    check_finite,
    empty_buffer,
    finish_rows,
    jit_on,
    traced_once,
)
from sebulba.ring.clocks import ACT, COMPILE, WallClock
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.records import ActCarry, Collected
from sebulba.ring.whole_episodes import act_at_end, hold_final_row
from sebulba.toolkit.past_play import PastPlay
from sebulba.toolkit.self_play import SelfPlay
from sebulba.types import FrameStack, Networks

# Off the CPU, where a turn of the loop costs the launches of its kernels: rows of a turn. A row's
# leaves are then written together, and copies from turn to turn are needed less often. On an H100,
# a row of PPO on CartPole is 20 kernels with 1 row a turn.
_ROWS_TOGETHER = 8


class FusedFunctions:
    """The jitted functions of fused act cycles over environments with the same `step`."""

    def __init__(
        self,
        agent: Agent,
        step_environment: TraceableStep,
        *,
        trajectory_length: int,
        device: jax.Device,
        tracker: EpisodeTracker | None = None,
        frame_stack: FrameStack | None = None,
        rows_together: int | None = None,
    ):
        """Trace and compile nothing yet.

        Args:
            agent: the algorithm; a `SelfPlay` or `PastPlay` if it moves for the opponents, too.
            step_environment: steps the environments inside `jit`; if it is a `StepInTurns`, against
                the agent.
            trajectory_length: T.
            device: acts.
            tracker: follows the episodes; None: one without custom metrics.
            frame_stack: how observations stack the frames that trajectories hold once; None: they
                hold the observations, as those of whole episodes have to.
            rows_together: rows of a turn of the loop; None: what suits the device.
        """
        tracker, act = tracker or EpisodeTracker(), traced_once(agent)

        def play(networks, env_state, action, actor_state):
            if not isinstance(step_environment, StepInTurns):
                return *step_environment(env_state, action), actor_state
            opponent = functools.partial(cast(SelfPlay | PastPlay, agent).oppose, networks)
            return step_environment.against(env_state, action, opponent, actor_state)

        @jax.named_scope(ENV_STEP_SCOPE)
        def step(networks, actor_state, env_step, buffer, env_state):
            action, actor_state, buffer = act_row(act, networks, actor_state, env_step, buffer)
            env_state, new, actor_state = play(networks, env_state, action, actor_state)
            check_structure(new, env_step)
            return actor_state, new, buffer, env_state

        def begin(networks, carry, env_state):
            buffer = empty_buffer(
                act,
                networks,
                carry.actor_state,
                carry.env_step,
                length=trajectory_length,
                frame_stack=frame_stack,
            )
            return carry.actor_state, carry.env_step, buffer, env_state

        def finish(buffer, actor_state, statistics, env_step):
            statistics, trajectory, tally = finish_rows(buffer, statistics, env_step, tracker)
            carry = ActCarry(actor_state=actor_state, env_step=env_step, statistics=statistics)
            return Collected(carry=carry, trajectory=trajectory, tally=tally)

        def steps(num_rows, networks, actor_state, env_step, buffer, env_state):
            """Take several steps, and write their rows together."""

            @jax.named_scope(ENV_STEP_SCOPE)
            def one(looped, _):
                actor_state, env_step, env_state = looped
                action, extras, actor_state = act(networks, actor_state, env_step)
                env_state, new, actor_state = play(networks, env_state, action, actor_state)
                check_structure(new, env_step)
                return (actor_state, new, env_state), (env_step, action, extras)

            looped = (actor_state, env_step, env_state)
            looped, rows = jax.lax.scan(one, looped, length=num_rows, unroll=True)
            actor_state, env_step, env_state = looped
            return actor_state, env_step, append_rows(buffer, *rows), env_state

        if rows_together is None:
            rows_together = 1 if device.platform == "cpu" else _ROWS_TOGETHER
        num_together = min(rows_together, trajectory_length)

        def cycle(networks, carry, env_state):
            several = step if num_together == 1 else functools.partial(steps, num_together)
            num_turns, num_left = divmod(trajectory_length, num_together)
            looped = jax.lax.fori_loop(
                0,
                num_turns,
                lambda _, looped: several(networks, *looped),
                begin(networks, carry, env_state),
            )
            if num_left:
                looped = steps(num_left, networks, *looped)
            actor_state, env_step, buffer, env_state = looped
            return env_state, finish(buffer, actor_state, carry.statistics, env_step)

        def act_within(networks, carry):
            env_state, collected = cycle(networks, carry, carry.env_state)
            after = dataclasses.replace(collected.carry, env_state=env_state)
            return dataclasses.replace(collected, carry=after)

        def act_episodes(networks, carry, env_state):
            def is_running(looped):
                _, env_step, buffer, _ = looped
                return (buffer.num_rows == 0) | ~jnp.all(env_step.done)

            def body(looped):
                _, before, *_ = looped
                actor_state, new, buffer, env_state = step(networks, *looped)
                row = hold_final_row(before, new, is_last=buffer.num_rows == trajectory_length - 1)
                return actor_state, row, buffer, env_state

            actor_state, env_step, buffer, env_state = jax.lax.while_loop(
                is_running, body, begin(networks, carry, env_state)
            )
            buffer = act_at_end(act, networks, actor_state, env_step, buffer)
            return env_state, actor_state, buffer

        self.device = device
        compiled = functools.partial(jit_on, device)
        self.cycle: Callable = compiled(cycle)
        self.act_episodes: Callable = compiled(act_episodes)
        self.finish: Callable = compiled(finish, donate_argnames=("buffer",))
        self.act_within: Callable = act_within  # see `FusedCycle.act_within`


class SharedFunctions:
    """Makes the functions of a device's fused act cycles, once for environments that share a step.

    They last as long as an act cycle that uses them: an environment's step may hold resources. The
    newest of environments that are JAX functions, which hold none, last longer: the next ring with
    these programs can use them.
    """

    def __init__(self, make: Callable[[TraceableStep], FusedFunctions]):
        self._make = make
        # By the identity of the step, which its functions keep alive.
        self._made: weakref.WeakValueDictionary[int, FusedFunctions] = weakref.WeakValueDictionary()
        self._kept: FusedFunctions | None = None

    def of(self, environment: FusedEnvironment) -> FusedFunctions:
        """Return the functions for an environment."""
        functions = self._made.get(id(environment.step))
        if functions is None:
            functions = self._made[id(environment.step)] = self._make(environment.step)
        if environment.is_whole_state:
            self._kept = functions
        return functions


class FusedCycle:
    """An act cycle in one jitted loop, for environments that can be stepped inside `jit`."""

    def __init__(
        self,
        functions: FusedFunctions,
        environment: FusedEnvironment,
        *,
        clock: WallClock,
        whole_episodes: bool = False,
    ):
        if whole_episodes and environment.restart is None:
            raise ValueError("expected an environment with `restart` for whole episodes, got none")
        self._functions = functions
        self._is_whole_state = environment.is_whole_state
        self._restart = environment.restart if whole_episodes else None
        self._env_state = jax.device_put(environment.state, functions.device)
        self._clock = clock
        self._next_activity = COMPILE

    def __call__(self, networks: Networks, carry: ActCarry) -> Collected:
        """Act `T` steps; see `ActCycle`."""
        self._clock.begin(self._next_activity)
        self._next_activity = ACT
        if carry.env_state is not None:
            self._env_state = carry.env_state
        # Later rows are already on the device, and even then `device_put` is not free.
        if not isinstance(carry.env_step.reward, jax.Array):
            env_step = jax.device_put(carry.env_step, self._functions.device)
            carry = dataclasses.replace(carry, env_step=env_step)
        # The environment's state is an argument of its own: not every state can be part of a carry.
        carry = dataclasses.replace(carry, env_state=None)
        act = self._act_steps if self._restart is None else self._act_whole_episodes
        try:
            collected = jax.block_until_ready(act(networks, carry))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            # Environments can only fail in a Python callback. XLA reports no number of steps, so
            # `env_steps` of the fault stays 0.
            if "Callback error" not in str(error):
                raise
            raise EnvironmentFault(f"step raised {str(error).strip().splitlines()[-1]}") from error
        check_finite(collected.trajectory, collected.tally)
        if self._is_whole_state:
            after = dataclasses.replace(collected.carry, env_state=self._env_state)
            collected = dataclasses.replace(collected, carry=after)
        self._clock.lap(ACT)
        return collected

    @property
    def act_within(self) -> Callable:
        """Acts `T` steps within another jitted function; all of the carry is on its devices."""
        return self._functions.act_within

    def _act_steps(self, networks: Networks, carry: ActCarry) -> Collected:
        self._env_state, collected = self._functions.cycle(networks, carry, self._env_state)
        return collected

    def _act_whole_episodes(self, networks: Networks, carry: ActCarry) -> Collected:
        # Block: `restart` resets EnvPool's pool in place, so all its steps must have run.
        env_state, actor_state, buffer = jax.block_until_ready(
            self._functions.act_episodes(networks, carry, self._env_state)
        )
        assert self._restart is not None
        reset = call_environment("reset", self._restart, env_state)
        self._env_state, env_step = jax.device_put(reset, self._functions.device)  # row `T`
        return self._functions.finish(buffer, actor_state, carry.statistics, env_step)
