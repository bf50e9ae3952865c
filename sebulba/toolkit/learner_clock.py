"""The learner's clock: what schedules and periods depend on, as a part of the experience.

`update_experience` counts env steps with `count_env_steps`, and `loss` stores its step with
`at_step`, so `optimize` finds both in the experience. Optimizer state would be the wrong place: a
non-finite update is discarded together with what it counted, and phases would shift.
"""

import dataclasses

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import masked_sum


@pytree_dataclass
class LearnerClock:
    """The same on every learner device of every host."""

    # [] int32, of the last `loss` whose update was not discarded, or of this one; -1: none.
    step: jax.Array
    env_steps_low: jax.Array  # [] uint32, learned from before this learner cycle, modulo 2**32
    env_steps_high: jax.Array  # [] uint32, multiples of 2**32
    cycle_env_steps: jax.Array  # [] uint32, of this learner cycle's trajectories so far
    num_trajectories: jax.Array  # [] int32, of each host in this learner cycle so far

    @property
    def env_steps(self) -> jax.Array:
        """Env steps of all hosts learned from before this learner cycle: `[]` float32."""
        high = self.env_steps_high.astype(jnp.float32) * 2.0**32
        return high + self.env_steps_low.astype(jnp.float32)


def init_clock() -> LearnerClock:
    """Return the clock before the first trajectory."""
    return LearnerClock(
        step=jnp.int32(-1),
        env_steps_low=jnp.uint32(0),
        env_steps_high=jnp.uint32(0),
        cycle_env_steps=jnp.uint32(0),
        num_trajectories=jnp.int32(0),
    )


def count_env_steps(
    clock: LearnerClock, valid: jax.Array, *, trajectories_per_cycle: int
) -> LearnerClock:
    """Return the clock after a trajectory of each host.

    Args:
        clock: before.
        valid: `[T, B]` bool, this learner device's share of the valid transitions.
        trajectories_per_cycle: `RunSpec.trajectories_per_cycle`.
    """
    env_steps = masked_sum(jnp.ones(valid.shape, jnp.float32), valid).astype(jnp.uint32)
    begins = clock.num_trajectories == trajectories_per_cycle
    low = clock.env_steps_low + jnp.where(begins, clock.cycle_env_steps, jnp.uint32(0))
    return LearnerClock(
        step=clock.step,
        env_steps_low=low,
        env_steps_high=clock.env_steps_high + (low < clock.env_steps_low).astype(jnp.uint32),
        cycle_env_steps=jnp.where(begins, jnp.uint32(0), clock.cycle_env_steps) + env_steps,
        num_trajectories=jnp.where(begins, 0, clock.num_trajectories) + 1,
    )


def at_step(clock: LearnerClock, step: jax.Array) -> LearnerClock:
    """Return the clock at optimisation step `step`, the argument of `Agent.loss`."""
    return dataclasses.replace(clock, step=step)
