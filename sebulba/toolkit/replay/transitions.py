"""Replay of single transitions: sequences of `n` transitions, folded into n-step transitions."""

import jax
import jax.numpy as jnp

from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.replay import buffer
from sebulba.toolkit.replay.buffer import ReplayState, Sample, SequenceIds
from sebulba.toolkit.replay.priorities import (
    MIN_PRIORITY,
    importance_weights,
    over_maximum,
    uniform_weights,
)
from sebulba.toolkit.replay.rows import as_seen, row_shapes, rows_of, valid_transitions
from sebulba.toolkit.replay.setup import replay_ratio, replay_spec
from sebulba.toolkit.schedules import Scheduled, value_at
from sebulba.toolkit.settings import ReplayConfig
from sebulba.types import Clock, EnvStep, FrameStack, PyTree, RunSpec, Trajectory


@pytree_dataclass
class Transitions:
    """n-step transitions; the target is `reward + discount · value(next_observation)`."""

    observation: PyTree  # [n, ...]
    action: jax.Array  # [n, ...]
    reward: jax.Array  # [n], discounted sum
    discount: jax.Array  # [n], 0 where the episode terminated
    next_observation: PyTree  # [n, ...], the true final one at a truncation
    weight: jax.Array  # [n], importance weight; 0 if the replay had nothing to draw
    ids: SequenceIds
    num_transitions: jax.Array  # [] int32, drawable transitions on this device
    # [n, A] bool, legal actions in next_observation; None: the environment has no masks.
    next_action_mask: jax.Array | None = None


class TransitionReplay:
    """Stores all rows of the streams, and draws valid transitions only."""

    def __init__(
        self,
        config: ReplayConfig,
        run_spec: RunSpec,
        *,
        n_step: int = 1,
        reward_clip: float | None = None,
        stack: FrameStack | None = None,
        priority_exponent: float = 0.0,
        importance_exponent: Scheduled = 1.0,
    ):
        """Compute the sizes of one learner device's replay.

        Its `ratio` says how many updates a learner cycle takes, for `Agent.num_updates_per_cycle`.

        Args:
            config: sizes, replay ratio and γ.
            run_spec: the run's.
            n_step: rewards of a transition; fewer near an episode's end.
            reward_clip: rewards are clipped to ± this value when drawn; None: no clipping.
            stack: how frames are stacked, to store each frame once; None: observations are stored
                as they are.
            priority_exponent: α; 0: transitions are drawn uniformly.
            importance_exponent: β or its schedule, used with priorities. Without them, weights
                only correct for unequal numbers of valid transitions on the learner devices.

        Raises:
            ConfigError: batch size, minimum size or capacity do not suit run and transitions.
        """
        self.ratio = replay_ratio(config, run_spec, rows_per_update=config.batch_size)
        self._spec = replay_spec(
            config,
            run_spec,
            sequence_length=n_step,
            stride=1,
            stack=stack,
            priority_exponent=priority_exponent,
        )
        self._batch_size = config.batch_size // run_spec.num_learner_devices
        self._run_spec = run_spec
        self._row = row_shapes(run_spec, stack, ())
        self._discount = config.discount
        self._reward_clip = reward_clip
        self._stack = stack
        self._has_priorities = priority_exponent != 0.0
        self._importance_exponent = importance_exponent

    def init(self) -> ReplayState:
        """Return an empty replay of one learner device."""
        return buffer.init(self._spec, self._row, ())

    def add(self, state: ReplayState, trajectory: Trajectory, actor_id: jax.Array) -> ReplayState:
        """Add rows; completed transitions get the greatest priority, invalid ones priority 0.

        Raises:
            ConfigError: frames are stored once, but a lost life ends episodes without clearing
                stacks.
        """
        state = buffer.add(self._spec, state, rows_of(trajectory, self._stack, ()), (), actor_id)
        ids = buffer.newest(self._spec, state, actor_id)
        env_steps = buffer.read(self._spec, state, ids).rows.env_step
        is_invalid = ~valid_transitions(env_steps)[self._spec.num_context_rows]
        # A negative start is never stored, so valid transitions keep their priority.
        invalid = SequenceIds(stream=ids.stream, start=jnp.where(is_invalid, ids.start, -1))
        return buffer.update_priorities(
            self._spec, state, invalid, jnp.zeros(is_invalid.shape, jnp.float32)
        )

    def sample(self, state: ReplayState, key: jax.Array, clock: Clock) -> Transitions:
        """Draw this device's share of a batch; if there is nothing to draw, weights are 0.

        Args:
            state: this device's.
            key: consumed.
            clock: of the optimisation step, for a schedule of β.
        """
        sample = buffer.sample(self._spec, state, key, self._batch_size)
        rows = as_seen(sample.sequences.rows, self._stack)
        if self._reward_clip is not None:
            clipped = jnp.clip(rows.env_step.reward, -self._reward_clip, self._reward_clip)
        else:
            clipped = rows.env_step.reward
        reward, discount, length = fold(rows.env_step, clipped, self._discount)
        each = jnp.arange(self._batch_size)
        arrival = jax.tree.map(lambda x: x[length, each], rows.env_step)
        return Transitions(
            observation=jax.tree.map(lambda x: x[0], rows.env_step.observation),
            action=rows.action[0],
            reward=reward,
            discount=discount,
            next_observation=arrival.observation,
            weight=self._weights(sample, clock),
            ids=sample.ids,
            num_transitions=sample.num_sequences,
            next_action_mask=arrival.action_mask,
        )

    def _weights(self, sample: Sample, clock: Clock) -> jax.Array:
        if not self._has_priorities:
            return uniform_weights(sample.probability, sample.num_sequences)
        exponent = value_at(
            self._importance_exponent,
            clock.env_steps,
            total_env_steps=self._run_spec.total_env_steps,
        )
        return over_maximum(importance_weights(sample.probability, sample.num_sequences, exponent))

    def update_priorities(
        self, state: ReplayState, ids: SequenceIds, td_error: jax.Array
    ) -> ReplayState:
        """Set the priorities of transitions `[n]` to `|δ|`; no effect if α is 0."""
        if not self._has_priorities:
            return state
        priority = jnp.abs(jax.lax.stop_gradient(td_error)) + MIN_PRIORITY
        return buffer.update_priorities(self._spec, state, ids, priority)


def fold(
    env_steps: EnvStep, reward: jax.Array, discount: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Fold `n` consecutive transitions, up to the episode's end, into one.

    Args:
        env_steps: `[n + 1, B]`; row 0 does not end an episode.
        reward: `[n + 1, B]`, of the same rows, possibly clipped.
        discount: γ.

    Returns:
        Discounted sums of rewards `[B]`; discounts `[B]`, γ^k, or 0 where the episode terminated;
        and `k` `[B]` int32, the row that the transition arrives at.
    """
    counts = jax.lax.cummin(valid_transitions(env_steps).astype(jnp.int32), axis=0)
    length = jnp.maximum(jnp.sum(counts, axis=0), 1)
    discounts = discount * (1.0 - env_steps.terminated[1:].astype(jnp.float32))
    after = jnp.cumprod(discounts, axis=0)
    before = jnp.concatenate([jnp.ones_like(after[:1]), after[:-1]])
    total = jnp.sum(jnp.where(counts > 0, before * reward[1:], 0.0), axis=0)
    return total, jnp.take_along_axis(after, length[None] - 1, axis=0)[0], length
