"""How much a replay agent stores, and how many updates it takes for it: plain numbers.

The replay ratio is of rows: those learned from for each that was collected since the minimum size.
Reset rows count among the collected ones.
"""

import fractions
import math

import jax
import jax.numpy as jnp

from sebulba.agent import Metrics
from sebulba.errors import ConfigError
from sebulba.toolkit.replay import ReplaySpec, ReplayState
from sebulba.toolkit.replay.frame_stack import FrameStack
from sebulba.toolkit.replay.transitions import TransitionReplay
from sebulba.types import RunSpec
from sebulba_agents.replay_config import QLearningConfig, ReplayConfig


class ReplayRatio:
    """Keeps the replay ratio: how many updates a cycle takes, exactly."""

    def __init__(self, config: ReplayConfig, run_spec: RunSpec, *, rows_per_update: int):
        """Takes `rows_per_update`, the rows that an update learns from, over all devices."""
        self._config = config
        self._run_spec = run_spec
        self._rows_per_update = rows_per_update

    def num_updates_in(self, cycle: int) -> int:
        """Returns the updates of learner cycle `cycle`.

        The replay ratio times the rows that have come since the minimum size, over the rows that an
        update learns from, is what all cycles together take: the ratio holds without drift.
        """
        return self._num_updates_before(cycle + 1) - self._num_updates_before(cycle)

    def metrics(
        self, experience: ReplayState, step: jax.Array, num_sequences: jax.Array
    ) -> Metrics:
        """Returns the ratio that came about, and how much can be drawn on all devices.

        Args:
            experience: of any learner device; they all get equally many rows.
            step: int32 `[]`, updates before this one.
            num_sequences: int32 `[]`, that can be drawn on this device.
        """
        # In float32, which has room for more rows than int32.
        num_rows = jnp.sum(experience.num_rows.astype(jnp.float32)) * self._run_spec.num_envs
        learned = (step + 1).astype(jnp.float32) * float(self._rows_per_update)
        return {
            "replay_ratio": learned / jnp.maximum(num_rows - self._config.min_replay_rows, 1.0),
            "replay_sequences": num_sequences.astype(jnp.float32)
            * self._run_spec.num_learner_devices,
        }

    def _num_updates_before(self, cycle: int) -> int:
        spec = self._run_spec
        rows = cycle * spec.trajectories_per_cycle * spec.num_envs * spec.trajectory_length
        # By way of the decimal digits: 0.1 shall mean a tenth.
        ratio = fractions.Fraction(str(self._config.replay_ratio))
        learned_rows = max(0, rows - self._config.min_replay_rows) * ratio
        return math.floor(learned_rows / self._rows_per_update)


def frame_stack(config: QLearningConfig, run_spec: RunSpec) -> FrameStack | None:
    """Returns how frames are stacked, if each is to be stored once.

    Raises:
        ConfigError: the observations are no such stacks.
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
    """Returns the sizes of one learner device's replay.

    Raises:
        ConfigError: sizes that do not fit each other, naming the key to change.
    """
    if config.batch_size % run_spec.num_learner_devices:
        raise ConfigError(
            f"agent.batch_size: expected a multiple of the {run_spec.num_learner_devices} learner"
            f" devices, got {config.batch_size}"
        )
    num_streams = run_spec.num_envs * run_spec.num_actors
    # Beyond this some actor has a whole sequence, whichever actors the rows are of.
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
    importance_exponent: float = 1.0,
) -> TransitionReplay:
    """Return one learner device's replay of single transitions; see `TransitionReplay`.

    Raises:
        ConfigError: the sizes do not fit each other.
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
