"""The pytrees that flow round the ring. Read this file first.

Axes, in every docstring of the project: `T` transitions of a trajectory, `B` environments of one
actor (or, on the learner, of one learner device's share), `A` actions.

The stream contract. Every environment autoresets on the *next* step, and row `t` of a stream is
what arrived together, and what was chosen from it:

    row t:   observation_t  reward_t  terminated_t  truncated_t  is_first_t | action_t  extras_t

`reward_t` was paid on arriving at `observation_t`, so transition `t` is
`(observation_t, action_t) -> (reward_{t+1}, observation_{t+1})`. The observation of a row that ends
an episode is the true final one; the action chosen from it is ignored, and the row after it is a
reset (`is_first`, reward 0). That transition is no experience: it is not `valid`.
"""

import dataclasses
from typing import Any

import gymnasium

from sebulba.pytree import pytree_dataclass

PyTree = Any
Array = Any
"""A leaf: a `jax.Array`, in host memory NumPy's; in a description a `jax.ShapeDtypeStruct`."""
Networks = PyTree
"""Parameters, and whatever travels with them: target parameters, normalisers."""
ActorState = PyTree
"""What an agent carries from step to step while acting; per-environment leaves lead with `B`."""
Experience = PyTree
"""What one learner device learns from: the newest trajectories, or a replay buffer."""


@pytree_dataclass
class EnvStep:
    """What one step of `B` environments gives; with a leading axis of time in a trajectory."""

    observation: PyTree  # [B, ...], also at an episode's end the true observation
    reward: Array  # [B] float32, raw, paid on arriving here; 0 on a reset row
    terminated: Array  # [B] bool, the discount on arriving here is 0
    truncated: Array  # [B] bool, bootstraps from this very observation
    is_first: Array  # [B] bool, this observation is a reset
    # [B] bool where an episode's statistics end elsewhere than its stream (a lost life ends the
    # stream's episode, not the game); None means `terminated | truncated`.
    episode_over: Array | None = None

    @property
    def done(self) -> Array:
        """`[B]` bool: this row ends an episode; the action chosen from it is ignored."""
        return self.terminated | self.truncated


@pytree_dataclass
class Trajectory:
    """`T` transitions of `B` environments: `T + 1` rows, the last being the next one's row 0."""

    env_steps: EnvStep  # [T + 1, B, ...]
    action: PyTree  # [T, B, ...], chosen from rows 0 … T - 1
    extras: PyTree  # [T, B, ...], the agent's own: behaviour logits, values, q …

    @property
    def valid(self) -> Array:
        """`[T, B]` bool: False for the transition out of a final observation (the autoreset step).

        An invalid transition has weight 0 in every loss term, priority, normalisation, entropy and
        mean, and is no environment step in any counter.
        """
        return ~self.env_steps.done[:-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """The spaces of one environment of a batch."""

    observation: PyTree  # of jax.ShapeDtypeStruct, without the batch axis
    action_space: gymnasium.Space  # Discrete, MultiDiscrete or Box
    # What the adapter turns actions into, where that is another space: bounds, 64 bits.
    native_action_space: gymnasium.Space | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What an agent may know about the run that it is built for.

    Counts are of one host, but for `num_cycles` and `num_hosts`.
    """

    environment: EnvironmentSpec
    num_envs: int  # environments of one actor
    num_actors: int  # actor threads
    num_learner_devices: int  # an actor's environments are split evenly over them
    trajectory_length: int  # T
    trajectories_per_cycle: int  # taken from the deque each learner cycle
    num_cycles: int  # learner cycles in the whole run
    num_hosts: int = 1  # that learn together, each with as much as this one

    @property
    def num_envs_of_all_hosts(self) -> int:
        """Environments of all actors of all hosts."""
        return self.num_envs * self.num_actors * self.num_hosts

    @property
    def num_envs_per_learner_device(self) -> int:
        """Environments of one trajectory on one learner device."""
        return self.num_envs // self.num_learner_devices

    @property
    def batch_size_per_learner_device(self) -> int:
        """Environments of all trajectories of one learner cycle on one learner device."""
        return self.num_envs_per_learner_device * self.trajectories_per_cycle


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """A finished episode: of raw rewards, kept across trajectory borders."""

    episode_return: float
    episode_length: int  # env steps; reset steps do not count
    reduced: dict[str, float] = dataclasses.field(default_factory=dict)  # by the reducer's name


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrajectoryItem:
    """What an actor pushes onto the trajectory deque: one act cycle, placed on the learner devices.

    `initial_state` is the actor state before row 0, `final_state` the one after row `T - 1`.
    """

    initial_state: ActorState
    final_state: ActorState
    trajectory: Trajectory
    actor_id: int
    sequence_number: int  # 0, 1, 2 … for each actor
    policy_version: int  # learner cycles that the networks had seen
    env_steps: int  # valid transitions: reset steps do not count
    episodes: tuple[EpisodeRecord, ...]
    episodes_cut: int = 0  # that were under way when their environments were made anew
    env_restarts: int = 0  # faults of the actor's environments since its last trajectory
    resume_point: PyTree = None  # the `ActCarry` that the actor's next cycle began with
