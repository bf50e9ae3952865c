"""What a replay stores of a row, and the row as the actor saw it."""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.replay.frame_stack import FrameStack, newest_frame, rebuild_stacks
from sebulba.toolkit.spaces import action_shape
from sebulba.types import Array, EnvStep, PyTree, RunSpec, Trajectory


@pytree_dataclass
class Row:
    """What the replay stores of a row."""

    env_step: EnvStep  # with only the newest frame of a stack
    action: Array
    extras: PyTree  # what the agent keeps of its own


def row_shapes(run_spec: RunSpec, stack: FrameStack | None, extras: PyTree) -> Row:
    """Return the `jax.ShapeDtypeStruct`s of one stored row of one environment.

    Args:
        run_spec: of the run.
        stack: how frames are stacked, if each is stored once.
        extras: of `jax.ShapeDtypeStruct`; `()` if the agent keeps nothing.
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
        ),
        action=action_shape(run_spec.environment.action_space),
        extras=extras,
    )


def rows_of(trajectory: Trajectory, stack: FrameStack | None, extras: PyTree) -> Row:
    """Return rows 0 … `T − 1` as they are stored: `[T, B]`.

    Raises:
        ConfigError: frames are to be stored once, but stacks outlive the stream's episodes.
    """
    env_steps = jax.tree.map(lambda x: x[:-1], trajectory.env_steps)
    observation = env_steps.observation
    if stack is not None:
        if env_steps.episode_over is not None:
            raise ConfigError(
                "agent.frame_stack: a lost life ends an episode of the stream but clears no frame"
                " stack: expected env.options.episodic_life false or agent.frame_stack null"
            )
        observation = newest_frame(observation, stack)
    return Row(
        env_step=dataclasses.replace(env_steps, observation=observation, episode_over=None),
        action=trajectory.action,
        extras=extras,
    )


def valid_transitions(env_steps: EnvStep) -> jax.Array:
    """Return `[T, n]` bool: of rows `[T + 1, n]`, which transitions are experience.

    As `Trajectory.valid`, and besides not one into a reset from a row that ended no episode: there
    the environment was made anew between two trajectories. The row before is the last one known of
    its episode, and is bootstrapped from as a truncation's final observation is.
    """
    return ~(env_steps.done[:-1] | env_steps.is_first[1:])


def as_seen(rows: Row, stack: FrameStack | None) -> Row:
    """Return the rows `[T, n]` as the actor saw them.

    Args:
        rows: `[context + T, n]`, as `sebulba.toolkit.replay.buffer` gives them.
        stack: how frames are stacked, if each is stored once.
    """
    if stack is None:
        return rows
    observation = rebuild_stacks(rows.env_step.observation, rows.env_step.is_first, stack)
    rows = jax.tree.map(lambda x: x[stack.num_context_rows :], rows)
    env_step = dataclasses.replace(rows.env_step, observation=observation)
    return dataclasses.replace(rows, env_step=env_step)
