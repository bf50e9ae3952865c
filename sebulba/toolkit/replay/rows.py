"""The rows that a replay stores, and their conversion from and to what the actor saw."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.frame_stack import newest_frame, rebuild_stacks
from sebulba.types import Array, EnvStep, FrameStack, PyTree, RunSpec, Trajectory


@pytree_dataclass
class Row:
    """A stored row."""

    env_step: EnvStep  # with the newest frame only, if frames are stored once
    action: Array
    extras: PyTree  # what the agent stores, such as its Q values


def row_shapes(run_spec: RunSpec, stack: FrameStack | None, extras: PyTree) -> Row:
    """Return one stored row of one environment as `jax.ShapeDtypeStruct`s.

    Args:
        run_spec: the run's.
        stack: how frames are stacked, if each is stored once.
        extras: `jax.ShapeDtypeStruct` leaves; `()` if the agent stores none.
    """
    observation = run_spec.environment.observation
    if stack is not None:
        observation = jax.ShapeDtypeStruct(observation.shape[1:], observation.dtype)
    flag = jax.ShapeDtypeStruct((), bool)
    return Row(
        env_step=EnvStep(
            observation=observation,
            reward=jax.ShapeDtypeStruct((), jnp.float32),
            terminated=flag,
            truncated=flag,
            is_first=flag,
            action_mask=run_spec.environment.action_mask,
        ),
        action=run_spec.environment.action,
        extras=extras,
    )


def rows_of(trajectory: Trajectory, stack: FrameStack | None, extras: PyTree) -> Row:
    """Return rows 0 … `T − 1` in stored form: `[T, B]`.

    Raises:
        ConfigError: frames are stored once, but a lost life ends episodes without clearing stacks.
    """
    env_steps = jax.tree.map(lambda x: x[:-1], trajectory.env_steps)
    observation = env_steps.observation
    if stack is not None:
        if env_steps.episode_over is not None:
            raise ConfigError(
                "agent.frame_stack is incompatible with env.options.episodic_life: a lost life ends"
                " an episode without clearing the stack. Set agent.frame_stack null or"
                " env.options.episodic_life false"
            )
        observation = newest_frame(observation, stack)
    return Row(
        env_step=dataclasses.replace(env_steps, observation=observation, episode_over=None),
        action=trajectory.action,
        extras=extras,
    )


def valid_transitions(env_steps: EnvStep) -> jax.Array:
    """Return which transitions between rows `[T + 1, n]` are valid: `[T, n]` bool.

    Besides the transitions that `Trajectory.valid` excludes, a transition to a reset is invalid at
    a stream boundary, where the environment was recreated in the middle of an episode. Targets
    bootstrap from the row before it, as from the final observation of a truncation.
    """
    return ~(env_steps.done[:-1] | env_steps.is_first[1:])


def as_seen(rows: Row, stack: FrameStack | None) -> Row:
    """Return the rows `[T, n]` as the actor saw them, with frame stacks rebuilt.

    Args:
        rows: `[context + T, n]`, as read from the replay.
        stack: how frames are stacked, if each is stored once.
    """
    if stack is None:
        return rows
    observation = rebuild_stacks(rows.env_step.observation, rows.env_step.is_first, stack)
    rows = jax.tree.map(lambda x: x[stack.num_context_rows :], rows)
    env_step = dataclasses.replace(rows.env_step, observation=observation)
    return dataclasses.replace(rows, env_step=env_step)
