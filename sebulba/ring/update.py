"""The update, written for one learner device and its blocks of the arguments.

An update whose loss or gradients are not finite is discarded. The learner devices decide that, from
averaged gradients that are equal on all of them: asking the host would stall every update. The host
looks once a learner cycle, so after `max_non_finite_updates` such updates in a row the devices
freeze the state. It then still holds the inputs of the last of them, and a checkpoint of it can
rerun that update.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from sebulba.agent import Agent, Metrics
from sebulba.devices.learner_devices import PER_DEVICE, REPLICATED, LearnerDevices
from sebulba.devices.memory import num_bytes
from sebulba.pytree import pytree_dataclass
from sebulba.ring.records import Unroll
from sebulba.toolkit.frame_stack import with_stacks
from sebulba.toolkit.prng import stream
from sebulba.toolkit.reductions import learner_device_index, mean_over_learner_devices
from sebulba.toolkit.sums import global_norm
from sebulba.types import Array, Clock, EnvStepCount, Experience, Networks, PyTree

UPDATE_SCOPE = "update"
"""The named scope of an optimisation step, in compiled programs and profiles."""

_REPLAY_PER_UNROLL = 4  # bytes; experience of an on-policy agent is about as large as the unrolls
_Tree = TypeVar("_Tree", bound=PyTree)


class NonFiniteError(FloatingPointError):
    """The loss or gradients of too many updates in a row were not finite.

    Attributes:
        update: number of the last of these updates, from 0 over the whole run.
        cycle: number of its learner cycle.
        env_steps: the env steps of all hosts that were learned from before that cycle.
    """

    def __init__(self, *, update: int, cycle: int, env_steps: int, in_a_row: int):
        self.update = update
        self.cycle = cycle
        self.env_steps = env_steps
        before = f", the last of {in_a_row} in a row," if in_a_row > 1 else ""
        super().__init__(
            f"the loss or the gradients of update {update} (learner cycle {cycle}){before} are not"
            " finite; the update was discarded"
        )


@pytree_dataclass
class NonFiniteCounts:
    """Numbers of discarded updates."""

    total: jax.Array  # [] int32
    in_a_row: jax.Array  # [] int32, directly before the next update


@pytree_dataclass
class LearnerState:
    """Everything that an update changes; donated from update to update."""

    networks: Networks  # replicated
    opt_state: PyTree  # replicated
    experience: Experience  # per learner device, with a leading axis of devices
    step: Array  # [] int32, optimisation steps taken
    key: Array  # constant: the key of a step is folded from it
    non_finite: PyTree  # `NonFiniteCounts`, replicated


STATE_SPECS = LearnerState(
    networks=REPLICATED,
    opt_state=REPLICATED,
    experience=PER_DEVICE,
    step=REPLICATED,
    key=REPLICATED,
    non_finite=REPLICATED,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """The functions of an agent that are mapped over the learner devices."""

    agent: Agent
    max_non_finite_updates: int
    gradients: str = "float32"  # dtype in which gradients cross between devices
    adds_in_branch: bool = False  # to a replay; on a CPU, and not with a batched `LearnerState`

    def cycle(
        self,
        state: LearnerState,
        unrolls: tuple[Unroll, ...],
        env_steps: EnvStepCount,
        *,
        num_updates: int,
    ) -> tuple[LearnerState, Networks, Metrics]:
        """Add trajectories to the experience, and take optimisation steps.

        Args:
            state: the state before the cycle.
            unrolls: this device's shares of them; empty to continue a cycle.
            env_steps: the env steps of all hosts that were learned from before this cycle.
            num_updates: optimisation steps.

        Returns:
            The state, the actors' networks, and the metrics `[num_updates]` of the steps.
        """
        if unrolls:
            state = dataclasses.replace(state, experience=_block(self._add(state, unrolls)))
        metrics: Metrics = {}
        if num_updates == 1:
            state, metrics = self.step(state, env_steps)
            metrics = jax.tree.map(lambda x: x[None], metrics)
        elif num_updates > 1:

            def step(packed: PyTree, _: None) -> tuple[PyTree, dict[tuple[str, ...], jax.Array]]:
                state, metrics = self.step(_unpack_counts(*packed), env_steps)
                return _pack_counts(state), _pack(metrics)

            packed, metrics_of_steps = jax.lax.scan(step, _pack_counts(state), length=num_updates)
            state, metrics = _unpack_counts(*packed), _unpack(metrics_of_steps)
        # The actors' networks are results of their own: the next call donates the state only.
        return state, self.agent.actor_networks(state.networks), metrics

    def _add(self, state: LearnerState, unrolls: tuple[Unroll, ...]) -> Experience:
        """Return this device's experience with the unrolls."""

        def add(experience: Experience) -> Experience:
            for unroll in unrolls:
                experience = self.agent.update_experience(
                    state.networks,
                    experience,
                    unroll.initial_state,
                    unroll.final_state,
                    with_stacks(unroll.trajectory),
                    unroll.actor_id,
                )
            return experience

        experience = experience_of(state)
        is_small = num_bytes(experience) <= _REPLAY_PER_UNROLL * num_bytes(unrolls)
        if not self.adds_in_branch or is_small:
            return add(experience)
        # XLA on a CPU fuses the writing of new rows into the reading of a sample as well, which
        # then needs the old replay beside the new one: a copy of all of it. It cannot look into a
        # branch, and does not know that this one is always taken.
        return jax.lax.cond(state.step >= 0, add, lambda before: before, experience)

    @jax.named_scope(UPDATE_SCOPE)
    def step(self, state: LearnerState, env_steps: EnvStepCount) -> tuple[LearnerState, Metrics]:
        """Take an optimisation step; return the state and the metrics."""
        experience_before, clock = experience_of(state), clock_of(state, env_steps)
        value, metrics, grads, experience = loss_and_gradients(
            self.agent, state, experience_before, clock, dtype=self.gradients
        )
        metrics = {"loss": value, "grad_norm": global_norm(grads), **metrics}
        # One test for all gradients: the norm is finite only if each of them is (an overflow of
        # the squares counts as not finite, too).
        is_finite = jnp.isfinite(value) & jnp.isfinite(metrics["grad_norm"])
        counts = state.non_finite
        is_frozen = counts.in_a_row >= self.max_non_finite_updates
        in_a_row = jnp.where(is_finite, 0, counts.in_a_row + 1)
        is_applied = ~is_frozen & is_finite
        # The update that freezes the state is no step: a rerun must draw its key again.
        is_step = ~is_frozen & (in_a_row < self.max_non_finite_updates)
        networks, opt_state = _select(
            is_applied,
            self.agent.optimize(state.networks, state.opt_state, grads, experience, clock),
            (state.networks, state.opt_state),
        )
        state = LearnerState(
            networks=networks,
            opt_state=opt_state,
            experience=_block(_select(is_applied, experience, experience_before)),
            step=state.step + is_step.astype(jnp.int32),
            key=state.key,
            non_finite=NonFiniteCounts(
                total=counts.total + (~is_frozen & ~is_finite).astype(jnp.int32),
                in_a_row=jnp.where(is_frozen, counts.in_a_row, in_a_row),
            ),
        )
        return state, metrics


# In a loop, a GPU launches a kernel for each array that an iteration writes, however small. So the
# scalars of an update cross from one to the next in one array.


def _pack_counts(state: LearnerState) -> tuple[LearnerState, jax.Array]:
    """Return a state without its counts, and these: int32 `[3]`."""
    counts = (state.step, state.non_finite.total, state.non_finite.in_a_row)
    return dataclasses.replace(state, step=None, non_finite=None), jnp.stack(counts)


def _unpack_counts(state: LearnerState, counts: jax.Array) -> LearnerState:
    step, total, in_a_row = counts
    non_finite = NonFiniteCounts(total=total, in_a_row=in_a_row)
    return dataclasses.replace(state, step=step, non_finite=non_finite)


def _pack(metrics: Metrics) -> dict[tuple[str, ...], jax.Array]:
    """Return the metrics of each dtype in one array, by their names."""
    by_dtype: dict[Any, dict[str, jax.Array]] = {}
    for name, value in sorted(metrics.items()):
        array = jnp.asarray(value)
        by_dtype.setdefault(array.dtype, {})[name] = array
    return {tuple(each): jnp.stack(list(each.values())) for each in by_dtype.values()}


def _unpack(packed: dict[tuple[str, ...], jax.Array]) -> Metrics:
    """Return the metrics that `_pack` was given, each `[...]` for packed `[..., n]`."""
    columns = {
        name: column
        for names, array in packed.items()
        for name, column in zip(names, jnp.moveaxis(array, -1, 0), strict=True)
    }
    return dict(sorted(columns.items()))


def loss_and_gradients(
    agent: Agent,
    state: LearnerState,
    experience: Experience,
    clock: Clock,
    *,
    dtype: str = "float32",
) -> tuple[jax.Array, Metrics, Networks, Experience]:
    """Return an update's loss, metrics and gradients, averaged over devices, and its experience.

    Runs on each learner device, with the `experience_of(state)` of that device and the
    `clock_of(state, …)`. Gradients cross between devices in `dtype`.
    """
    # Folded from the number of the step, so that a resumed run draws the same numbers.
    key = jax.random.fold_in(state.key, state.step)
    key = jax.random.fold_in(key, learner_device_index())
    loss = jax.value_and_grad(agent.loss, has_aux=True)
    (value, (experience, metrics)), grads = loss(state.networks, experience, key, clock)
    grads, (value, metrics) = mean_of_gradients(grads, (value, metrics), dtype=dtype)
    return value, metrics, grads, experience


def clock_of(state: LearnerState, env_steps: EnvStepCount) -> Clock:
    """Return the clock of the next update of a state.

    Args:
        state: the state before the update.
        env_steps: the env steps of all hosts that were learned from before the learner cycle.
    """
    return Clock(
        step=state.step,
        previous_step=state.step - 1 - state.non_finite.in_a_row,
        env_step_count=env_steps,
    )


def experience_of(state: LearnerState) -> Experience:
    """Return one device's experience: its block without the leading axis of devices."""
    return jax.tree.map(lambda x: x[0], state.experience)


def _block(experience: Experience) -> Experience:
    return jax.tree.map(lambda x: x[None], experience)


def state_initializer(
    agent: Agent, learner_devices: LearnerDevices, num_streams_per_device: int
) -> Callable[[jax.Array], LearnerState]:
    """Return the jitted function from a key to the state before the first update.

    The key and the state are on the learner devices.
    """

    def init(key: jax.Array) -> LearnerState:
        networks = agent.init_networks(stream(key, "networks"))
        experience = agent.init_experience(networks, num_streams_per_device)
        return LearnerState(
            networks=networks,
            opt_state=agent.init_opt_state(networks),
            experience=jax.tree.map(
                lambda x: jnp.broadcast_to(x, (len(learner_devices), *x.shape)), experience
            ),
            step=jnp.int32(0),
            key=stream(key, "updates"),
            non_finite=NonFiniteCounts(total=jnp.int32(0), in_a_row=jnp.int32(0)),
        )

    # Jitted with shardings, each device allocates its own share: a large replay buffer is never
    # built on one device and copied.
    shardings = jax.tree.map(learner_devices.sharding, STATE_SPECS)
    return jax.jit(init, out_shardings=shardings)


def _select(use_new: jax.Array, new: _Tree, old: _Tree) -> _Tree:
    """Return `new` if the scalar `use_new` is True, else `old`.

    A leaf that is the same array in both, such as an unchanged replay buffer, costs nothing.
    """
    return jax.tree.map(lambda x, y: x if x is y else jax.lax.select(use_new, x, y), new, old)


def mean_of_gradients(gradients: Networks, others: _Tree, *, dtype: str) -> tuple[Networks, _Tree]:
    """Return the means of gradients and of other numbers over all learner devices.

    Runs on each of them, in one all-reduce.

    Args:
        gradients: float arrays.
        others: arrays of any number type, averaged as they are.
        dtype: the dtype of gradients between devices; their means have their own dtypes.
    """
    mean, others = mean_over_learner_devices((in_dtype(gradients, dtype), others))
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), mean, gradients), others


def in_dtype(gradients: Networks, dtype: str) -> PyTree:
    """Return gradients as they cross between devices."""
    if dtype == "float32":  # Those of a network in a smaller dtype stay as they are.
        return gradients
    return jax.tree.map(lambda leaf: leaf.astype(dtype), gradients)
