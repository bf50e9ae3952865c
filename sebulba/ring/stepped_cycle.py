"""The stepped act cycle: one jitted call per step, for any environment."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.envs.base import (
    Environment,
    EnvironmentDataError,
    EnvironmentFault,
    Restartable,
    WholeState,
)
from sebulba.envs.data_checks import check_structure, describe_non_finite
from sebulba.ring.act_cycle import (
    ENV_STEP_SCOPE,
    Buffer,
    act_row,
    call_environment,
    check_finite,
    empty_buffer,
    finish_rows,
    jit_on,
    traced_once,
    trajectory_of,
)
from sebulba.ring.clocks import COMPILE, ENVIRONMENT, INFERENCE, WallClock
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.records import ActCarry, Collected
from sebulba.ring.whole_episodes import act_at_end, hold_final_row
from sebulba.toolkit.frame_stack import with_stacks
from sebulba.types import EnvStep, FrameStack, Networks


class StepFunctions:
    """The jitted functions of stepped act cycles; actors of a device share the compiled code."""

    def __init__(
        self,
        agent: Agent,
        *,
        trajectory_length: int,
        device: jax.Device,
        tracker: EpisodeTracker | None = None,
        frame_stack: FrameStack | None = None,
        greedy: bool = False,
    ):
        tracker, act = tracker or EpisodeTracker(), traced_once(agent, greedy=greedy)

        def begin(networks, actor_state, env_step):
            buffer = empty_buffer(
                act,
                networks,
                actor_state,
                env_step,
                length=trajectory_length,
                frame_stack=frame_stack,
            )
            # The steps donate this copy: the carry's own is the unroll's initial state.
            return jax.tree.map(jnp.copy, actor_state), buffer

        @jax.named_scope(ENV_STEP_SCOPE)
        def step(networks, actor_state, env_step, buffer):
            return act_row(act, networks, actor_state, env_step, buffer)

        def finish(buffer, statistics, env_step):
            return finish_rows(buffer, statistics, env_step, tracker)

        self.device = device
        self.trajectory_length = trajectory_length
        compiled = functools.partial(jit_on, device)
        self.begin: Callable = compiled(begin)
        self.step: Callable = compiled(step, donate_argnames=("actor_state", "buffer"))
        self.finish: Callable = compiled(finish, donate_argnames=("buffer",))
        self.act_at_end: Callable = compiled(
            functools.partial(act_at_end, act), donate_argnames=("buffer",)
        )


class SteppedCycle:
    """An act cycle with one jitted call per step, for any environment."""

    def __init__(
        self,
        functions: StepFunctions,
        environment: Environment,
        *,
        clock: WallClock,
        whole_episodes: bool = False,
    ):
        restart = environment.restart if isinstance(environment, Restartable) else None
        if whole_episodes and restart is None:
            raise ValueError("expected an environment with `restart` for whole episodes, got none")
        self._functions = functions
        self._environment = environment
        self._restart = restart if whole_episodes else None
        self._clock = clock
        self._inference = COMPILE  # in the first cycle
        self._storable = environment if isinstance(environment, WholeState) else None

    def __call__(self, networks: Networks, carry: ActCarry) -> Collected:
        """Act `T` steps; see `ActCycle`."""
        if self._storable is not None and carry.env_state is not None:
            # The carry may be another than the last: of a checkpoint, or before a fault.
            self._storable.whole_state = carry.env_state
        length, env_step, num_steps = self._functions.trajectory_length, carry.env_step, 0
        inference, self._inference = self._inference, INFERENCE
        self._clock.begin(inference)
        actor_state, buffer = self._functions.begin(networks, carry.actor_state, env_step)
        try:
            for row in range(1, length + 1):
                self._clock.begin(inference)
                action, actor_state, buffer = self._functions.step(
                    networks, actor_state, env_step, buffer
                )
                action = jax.tree.map(np.asarray, action)
                self._clock.lap(INFERENCE)
                self._clock.begin(ENVIRONMENT)
                before = env_step
                env_step = call_environment("step", self._environment.step, action)
                self._clock.lap(ENVIRONMENT)
                num_steps += 1
                if self._restart is not None:
                    check_structure(env_step, carry.env_step)
                    env_step = hold_final_row(before, env_step, is_last=row == length - 1)
                    if env_step.done.all():
                        break
            check_structure(env_step, carry.env_step)
            if self._restart is not None:
                self._clock.begin(inference)
                buffer = self._functions.act_at_end(networks, actor_state, env_step, buffer)
                self._clock.begin(ENVIRONMENT)
                env_step = call_environment("reset", self._restart)
                self._clock.lap(ENVIRONMENT)
        except Exception as error:
            fault = _find_fault(error, buffer, env_step, num_steps, expected=carry.env_step)
            if fault is error:
                raise
            raise fault from error
        self._clock.begin(inference)
        statistics, trajectory, tally = jax.block_until_ready(
            self._functions.finish(buffer, carry.statistics, env_step)
        )
        check_finite(trajectory, tally)
        self._clock.lap(INFERENCE)
        after = ActCarry(
            actor_state=actor_state,
            env_step=env_step,
            statistics=statistics,
            env_state=None if self._storable is None else self._storable.whole_state,
        )
        return Collected(carry=after, trajectory=trajectory, tally=tally)


def _find_fault(
    error: Exception, buffer: Buffer, env_step: EnvStep, num_steps: int, *, expected: EnvStep
) -> Exception:
    """Return the root cause: bad environment data may raise only in a later call.

    Args:
        error: the exception that was raised.
        buffer: the rows that were written.
        env_step: the environment's last row.
        num_steps: steps taken in this cycle.
        expected: a row of the expected structure.
    """
    # Donated to a call that failed: the rows are gone.
    if buffer.num_rows.is_deleted():
        return error
    fault = error
    rows = jax.tree.map(np.asarray, with_stacks(trajectory_of(buffer)).env_steps)
    try:
        # Another shape or dtype retraces the jitted step, which raises far from the environment.
        check_structure(env_step, expected)
        if (where := describe_non_finite(rows)) is not None:
            fault = EnvironmentDataError(where)
    except EnvironmentDataError as found:
        fault = found
    if isinstance(fault, EnvironmentFault):
        fault.env_steps = int(np.sum(~rows.done[:num_steps]))
    return fault
