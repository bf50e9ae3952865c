"""What agents with a replay share: the sizes of their replay, from settings and run."""

import jax

from sebulba.errors import ConfigError
from sebulba.toolkit.replay import ReplaySpec
from sebulba.toolkit.replay.frame_stack import FrameStack
from sebulba.toolkit.replay.transitions import TransitionReplay
from sebulba.toolkit.schedules import Scheduled
from sebulba.types import RunSpec
from sebulba_agents.replay_config import QLearningConfig, ReplayConfig


def frame_stack(config: QLearningConfig, run_spec: RunSpec) -> FrameStack | None:
    """Return how frames are stacked; None: whole observations are stored.

    Raises:
        ConfigError: the observations are not stacks of `frame_stack` frames.
    """
    if config.frame_stack is None:
        return None
    shapes = [leaf.shape for leaf in jax.tree.leaves(run_spec.environment.observation)]
    if len(shapes) != 1 or shapes[0][:1] != (config.frame_stack,):
        raise ConfigError(
            f"agent.frame_stack: expected one observation with {config.frame_stack} frames on its"
            f" first axis, got observations of {' and '.join(map(str, shapes))}; null stores any"
        )
    return FrameStack(size=config.frame_stack, axis=0, fill=config.frame_stack_fill)


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
    num_streams = run_spec.num_envs * run_spec.num_actors
    # With this many rows at least one actor has a complete sequence, however uneven the actors.
    least = num_streams * sequence_length
    if config.min_replay_rows < least:
        raise ConfigError(
            f"agent.min_replay_rows: expected at least {least}, for one sequence of"
            f" {sequence_length} transitions in {num_streams} environments, got"
            f" {config.min_replay_rows}"
        )
    length = run_spec.trajectory_length
    capacity = config.replay_capacity // num_streams // length * length
    try:
        return ReplaySpec(
            num_actors=run_spec.num_actors,
            num_envs=run_spec.num_envs_per_learner_device,
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
            f" {num_streams} environments: {error}"
        ) from error


def transition_replay(
    config: ReplayConfig,
    run_spec: RunSpec,
    *,
    n_step: int = 1,
    reward_clip: float | None = None,
    stack: FrameStack | None = None,
    priority_exponent: float = 0.0,
    importance_exponent: Scheduled = 1.0,
) -> TransitionReplay:
    """Return one learner device's replay of single transitions; see `TransitionReplay`.

    Raises:
        ConfigError: batch size, minimum size or capacity do not suit run and sequences.
    """
    spec = replay_spec(
        config,
        run_spec,
        sequence_length=n_step,
        stride=1,
        stack=stack,
        priority_exponent=priority_exponent,
    )
    return TransitionReplay(
        spec,
        run_spec,
        discount=config.discount,
        batch_size=config.batch_size // run_spec.num_learner_devices,
        reward_clip=reward_clip,
        stack=stack,
        importance_exponent=importance_exponent,
    )
