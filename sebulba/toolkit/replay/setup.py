"""The sizes of an agent's replay, from its settings and the run."""

from typing import Literal

import jax

from sebulba.errors import ConfigError
from sebulba.toolkit.replay.buffer import ReplaySpec
from sebulba.toolkit.replay.ratio import ReplayRatio
from sebulba.toolkit.settings import ReplayConfig
from sebulba.types import FrameStack, RunSpec


def frame_stack(
    size: int | None, fill: Literal["repeat", "zeros"], run_spec: RunSpec
) -> FrameStack | None:
    """Return how frames are stacked; None, also as `size`: whole observations are stored.

    Raises:
        ConfigError: the observations are not stacks of `size` frames, or begin otherwise.
    """
    if size is None:
        return None
    shapes = [leaf.shape for leaf in jax.tree.leaves(run_spec.environment.observation)]
    if len(shapes) != 1 or shapes[0][:1] != (size,):
        raise ConfigError(
            f"agent.frame_stack: expected one observation with {size} frames on its"
            f" first axis, got observations of {' and '.join(map(str, shapes))}; null stores any"
        )
    known = run_spec.environment.frame_stack
    if known is not None and known.fill != fill:
        raise ConfigError(
            f"agent.frame_stack_fill: expected {known.fill}, which the environment shows in place"
            f" of frames before an episode, got {fill}"
        )
    return FrameStack(size=size, axis=0, fill=fill)


def replay_spec(
    config: ReplayConfig,
    run_spec: RunSpec,
    *,
    sequence_length: int,
    stride: int,
    stack: FrameStack | None,
    priority_exponent: float,
) -> ReplaySpec:
    """Return the sizes of one learner device's replay.

    Raises:
        ConfigError: batch size, minimum size or capacity do not suit run and sequences.
    """
    if config.batch_size % run_spec.num_learner_devices:
        raise ConfigError(
            f"agent.batch_size: expected a multiple of the {run_spec.num_learner_devices} learner"
            f" devices, got {config.batch_size}"
        )
    num_streams = run_spec.num_streams * run_spec.num_actors
    # With this many rows at least one actor has a complete sequence, however uneven the actors.
    least = num_streams * sequence_length
    if config.min_replay_rows < least:
        raise ConfigError(
            f"agent.min_replay_rows: expected at least {least}, for one sequence of"
            f" {sequence_length} transitions in {num_streams} streams, got"
            f" {config.min_replay_rows}"
        )
    length = run_spec.trajectory_length
    capacity = config.replay_capacity // num_streams // length * length
    try:
        return ReplaySpec(
            num_actors=run_spec.num_actors,
            num_envs=run_spec.num_streams_per_learner_device,
            trajectory_length=length,
            capacity=capacity,
            sequence_length=sequence_length,
            stride=stride,
            num_context_rows=0 if stack is None else stack.num_context_rows,
            priority_exponent=priority_exponent,
        )
    except ValueError as error:
        raise ConfigError(
            f"agent.replay_capacity: {config.replay_capacity} rows are {capacity} for each of"
            f" {num_streams} streams: {error}"
        ) from error


def replay_ratio(config: ReplayConfig, run_spec: RunSpec, *, rows_per_update: int) -> ReplayRatio:
    """Return the number of updates that keeps the replay ratio; see `ReplayRatio`."""
    return ReplayRatio(
        run_spec,
        replay_ratio=config.replay_ratio,
        min_replay_rows=config.min_replay_rows,
        rows_per_update=rows_per_update,
    )
