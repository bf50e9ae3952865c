"""The pytrees that actors and learner exchange. Read this file first.

Axes, in every docstring of the project: `T` transitions of a trajectory, `B` streams of one actor
(on the learner: of one learner device's share), `A` actions. An environment is one stream, or `P`
streams that follow each other if `P` players act in it at the same time.

The stream contract. A *row* is one time step: the observation, reward and flags of one env step,
and the action selected from that observation.

    row t:   observation_t  reward_t  terminated_t  truncated_t  is_first_t | action_t  extras_t

`reward_t` was received on arriving at `observation_t`, so transition `t` is
`(observation_t, action_t) -> (reward_{t+1}, observation_{t+1})`. Every environment autoresets on
the *next* step: a row that ends an episode has the true final observation, its action is ignored,
and the next row is a reset (`is_first`, reward 0). The transition between the two is not `valid`.

The players of an environment begin together. Of a player that is out before the others, the final
row is repeated, done and with reward 0, until the environment is reset.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.pytree import pytree_dataclass
from sebulba.task import ObservationLeaf

PyTree = Any
Array = Any
"""A leaf: a `jax.Array`, a NumPy array in host memory, or a `jax.ShapeDtypeStruct` in a spec."""
Networks = PyTree
"""Parameters, and target parameters and normalisation statistics if any."""
ActorState = PyTree
"""An agent's state between act steps; per-environment leaves have `B` as leading axis."""
Experience = PyTree
"""One learner device's training data: the newest trajectories, or a replay buffer."""


@pytree_dataclass
class EnvStep:
    """The result of one step of `B` streams; trajectories add a leading time axis."""

    observation: PyTree  # [B, ...], the true final observation at an episode's end
    reward: Array  # [B] float32, raw, received on arriving here; 0 on a reset row
    terminated: Array  # [B] bool, the discount on arriving here is 0
    truncated: Array  # [B] bool, targets bootstrap from this observation
    is_first: Array  # [B] bool, this observation is a reset
    # [B] bool, the ends of episodes for statistics, where they differ from the stream's: a lost
    # life ends the stream's episode, but not the game. None: `terminated | truncated`.
    episode_over: Array | None = None
    # [B, A] bool, the legal actions; for MultiDiscrete, those of one choice after another, and A is
    # the sum of their sizes. At least one action of each choice is legal. None: all always are.
    action_mask: Array | None = None

    @property
    def done(self) -> Array:
        """`[B]` bool: this row ends an episode, and its action is ignored."""
        return self.terminated | self.truncated


@pytree_dataclass
class Trajectory:
    """`T` transitions of `B` environments; row `T` is row 0 of the next trajectory."""

    env_steps: EnvStep  # [T + 1, B, ...]
    action: PyTree  # [T, B, ...], selected in rows 0 … T - 1
    extras: PyTree  # [T, B, ...], outputs of `Agent.act`: behaviour policy, values …

    @property
    def valid(self) -> Array:
        """`[T, B]` bool: False for the transition from a final observation to a reset.

        An invalid transition has weight 0 in every loss term, priority, normalisation, entropy and
        mean, and counts as no env step.
        """
        return ~self.env_steps.done[:-1]


@pytree_dataclass
class EnvStepCount:
    """A number of env steps that may exceed 2**32, in jitted functions too."""

    words: Array  # [2] uint32: the remainder modulo 2**32, and the multiples of 2**32

    @classmethod
    def of(cls, count: int) -> "EnvStepCount":
        """Return a number in host memory."""
        high, low = divmod(count, 2**32)
        return cls(words=np.array([low, high], np.uint32))

    def __add__(self, count: Array) -> "EnvStepCount":
        """Return the sum with `[]` int32."""
        low = self.words[0] + count.astype(jnp.uint32)
        carry = (low < self.words[0]).astype(jnp.uint32)
        return EnvStepCount(words=jnp.stack([low, self.words[1] + carry]))

    def as_float(self) -> Array:
        """Return `[]` float32, the nearest that there is."""
        low, high = self.words[0], self.words[1]
        return high.astype(jnp.float32) * 2.0**32 + low.astype(jnp.float32)


@pytree_dataclass
class Clock:
    """When an optimisation step is taken: what schedules and periods depend on.

    It is the same on every learner device of every host, and counts updates that were discarded as
    non-finite. A count in the optimizer state would be discarded together with them, and phases
    would shift.
    """

    step: Array  # [] int32, optimisation steps before this one in the run
    previous_step: Array  # [] int32, the latest of them that was not discarded; -1: none
    env_step_count: EnvStepCount  # of all hosts, learned from before this learner cycle

    @property
    def env_steps(self) -> Array:
        """`[]` float32: env steps of all hosts learned from before this learner cycle."""
        return self.env_step_count.as_float()

    @classmethod
    def at(cls, step: int = 0, *, previous_step: int | None = None, env_steps: int = 0) -> "Clock":
        """Return the clock at a step, to call an agent without a run.

        Args:
            step: optimisation steps before.
            previous_step: the latest of them that was not discarded; None: none was discarded.
            env_steps: learned from before.
        """
        return cls(
            step=jnp.int32(step),
            previous_step=jnp.int32(step - 1 if previous_step is None else previous_step),
            env_step_count=jax.tree.map(jnp.asarray, EnvStepCount.of(env_steps)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameStack:
    """How an environment stacks frames: each row shows the newest `size` of them.

    A row's stack is that of the row before with one frame added, or a new one, as after a reset. So
    all are known, bit for bit, from the newest frame of each row.
    """

    size: int  # k
    axis: int  # of one environment's observation, from 0; the last 1/k of it is the newest frame
    # What a new stack shows in place of older frames: copies of its first frame, or zeros.
    fill: Literal["repeat", "zeros"] = "repeat"

    @property
    def num_context_rows(self) -> int:
        """Rows before a sequence whose frames are in its first stack."""
        return self.size - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opponents:
    """The versions of the learner's networks that move for the opponent, in games in turns."""

    pool_size: int = 0  # earlier versions, of which one is drawn for a game; 0: the present one
    pool_every: int = 1  # updates after which the present one replaces the oldest in the pool
    past_share: float = 1.0  # of games against the pool; the others are against the present one


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """The observation and action spaces of a single environment."""

    observation: PyTree  # jax.ShapeDtypeStruct leaves, without the batch axis
    # Discrete or a vector of MultiDiscrete, both from 0 on, or a vector of Box.
    action_space: gymnasium.Space
    # The environment's own, to which `sebulba.envs.actions.to_native` converts; None: the same.
    native_action_space: gymnasium.Space | None = None
    # jax.ShapeDtypeStruct of one `EnvStep.action_mask`; None: the environment has no masks.
    action_mask: Array | None = None
    # For each leaf of `observation`, the values of each component of its Discrete or MultiDiscrete
    # space, () for another space; None: no leaf is of such a space. Networks see one-hot vectors.
    choices: tuple[tuple[range, ...], ...] | None = None
    num_players: int = 1  # that act in it at the same time, each in a stream of its own
    frame_stack: FrameStack | None = None  # that `observation` is, one array; None: it is none
    # Who moves for the opponent, if that is the learner itself; None: nobody, or the environment.
    opponents: Opponents | None = None

    @property
    def action(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of an action of one stream: int32 or float32, without the batch axis."""
        space = self.action_space
        dtype = jnp.int32 if np.issubdtype(space.dtype, np.integer) else jnp.float32
        return jax.ShapeDtypeStruct(space.shape, dtype)

    @property
    def observation_leaves(self) -> tuple[ObservationLeaf, ...]:
        """The leaves of `observation`, without jax."""
        leaves = jax.tree.leaves(self.observation)
        choices = self.choices or ((),) * len(leaves)
        return tuple(
            ObservationLeaf(shape=tuple(leaf.shape), dtype=str(leaf.dtype), choices=each)
            for leaf, each in zip(leaves, choices, strict=True)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Facts about the run that an agent is built for.

    Counts are per host, except `total_env_steps` and `num_hosts`.
    """

    environment: EnvironmentSpec
    num_envs: int  # environments per actor
    num_actors: int  # actor threads
    num_learner_devices: int  # each gets an equal share of every actor's environments
    trajectory_length: int  # T
    trajectories_per_cycle: int  # consumed by each learner cycle
    total_env_steps: int  # that the run learns from, on all hosts
    num_hosts: int = 1  # all with the same numbers of actors and devices
    # The players of each group with networks of its own; empty: all share them.
    groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    # For the agent of a group, whose `environment` has the group's players only; None: no groups.
    num_players_of_all_groups: int | None = None

    @property
    def num_streams(self) -> int:
        """Streams of rows of an actor, the `B` of its trajectories: one for each player."""
        return self.num_envs * self.environment.num_players

    @property
    def num_streams_of_all_hosts(self) -> int:
        """Streams of all actors of all hosts."""
        return self.num_streams * self.num_actors * self.num_hosts

    @property
    def num_streams_of_all_groups(self) -> int:
        """Streams of all actors of all hosts, with those of other groups' players."""
        num_players = self.num_players_of_all_groups or self.environment.num_players
        return self.num_envs * num_players * self.num_actors * self.num_hosts

    @property
    def num_streams_per_learner_device(self) -> int:
        """Streams of one trajectory on one learner device."""
        return self.num_streams // self.num_learner_devices

    @property
    def batch_size_per_learner_device(self) -> int:
        """Streams of all trajectories of one learner cycle on one learner device."""
        return self.num_streams_per_learner_device * self.trajectories_per_cycle
