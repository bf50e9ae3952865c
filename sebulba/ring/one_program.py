"""Learner cycles with their act cycles as one jitted function, of one seed or mapped over several.

Mapped, every array has a leading axis of seeds. All seeds compute every cycle of a call: one that
has ended costs an accelerator nothing that the others would not cost, and nobody reads its results.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from sebulba.devices.learner_devices import PER_DEVICE, REPLICATED, LearnerDevices
from sebulba.devices.mapping import shard, specs_of
from sebulba.devices.memory import num_bytes
from sebulba.pytree import pytree_dataclass
from sebulba.ring.records import ActCarry, Collected, EndedRows, Unroll
from sebulba.ring.update import STATE_SPECS, LearnerState, Update
from sebulba.types import Array, EnvStepCount, Networks, PyTree, RunSpec

ActWithin = Callable[[Networks, ActCarry], Collected]
"""Acts a cycle within another jitted function; see `LocalCollector.act_within`."""

_MAX_BYTES = 1 << 20  # of what a call hands to Python; a cycle is 1 to 13 kilobytes
_WORTH_A_SLICE = 256 << 10  # bytes: copying fewer from a device takes as long as copying none


@pytree_dataclass
class RecordedCycle:
    """What Python records of a learner cycle, or of `[n]` cycles."""

    env_steps: tuple[Array, ...]  # [] int32 of each trajectory
    num_episodes: tuple[Array, ...]  # [] int32 of each trajectory, that finished in it
    ended: tuple[EndedRows, ...]  # [K] of each trajectory, as in a `Tally`
    is_finite_and_learning: Array  # [] bool: finite data of the environments, and no frozen state
    num_discarded: Array  # [] int32, updates of the run that were not finite
    metrics: dict[str, Array]  # [num_updates]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ProgramOfCycles:
    """Several learner cycles as one jitted call, and what reads its records."""

    # Takes the learner's state, the networks of the last `policy_lag` versions before it, the
    # oldest first, the actors' carries, the env steps learned from, and the number of cycles.
    # Returns the first four as of its end, the actors' networks, and the records: the bytes of a
    # `RecordedCycle` of each cycle, `[capacity, bytes]` uint8; mapped `[capacity, S, bytes]`.
    call: Callable[..., Any]
    capacity: int  # most cycles of a call
    shapes: RecordedCycle  # of a learner cycle of a seed

    def of_cycles(self, records: jax.Array, num_cycles: int) -> jax.Array:
        """Return the records of the cycles that ran; of up to twice as many.

        A slice is compiled for each of its lengths, so these are powers of two.
        """
        length = min(self.capacity, 1 << (num_cycles - 1).bit_length())
        if records.nbytes <= _WORTH_A_SLICE or length == self.capacity:
            return records
        return _first_rows(records, length)

    def read(self, records: jax.Array, num_cycles: int) -> RecordedCycle:
        """Wait for the records of `num_cycles` cycles, and return them as NumPy arrays.

        They are `[n, ...]`; mapped over seeds `[n, S, ...]`.
        """
        rows = np.asarray(records)[:num_cycles]
        leaves, structure = jax.tree.flatten(self.shapes)
        read, begin = [], 0
        for leaf in leaves:
            end = begin + num_bytes(leaf)
            values = np.ascontiguousarray(rows[..., begin:end]).view(leaf.dtype)
            read.append(values.reshape(*rows.shape[:-1], *leaf.shape))
            begin = end
        return jax.tree.unflatten(structure, read)


_first_rows = jax.jit(lambda rows, length: rows[:length], static_argnums=1)


def _bytes_of(recorded: RecordedCycle) -> jax.Array:
    """Return all leaves as one array of uint8, so that a cycle writes and a call copies one."""

    def bytes_of(leaf: jax.Array) -> jax.Array:
        if leaf.dtype == bool:
            return leaf.astype(jnp.uint8).reshape(-1)
        return jax.lax.bitcast_convert_type(leaf, jnp.uint8).reshape(-1)

    return jnp.concatenate([bytes_of(leaf) for leaf in jax.tree.leaves(recorded)])


def carry_shardings(
    carries: PyTree, learner_devices: LearnerDevices, *, run_spec: RunSpec
) -> PyTree:
    """Return where each leaf of a seed's carries is: split, if per stream or environment."""
    split = (run_spec.num_streams, run_spec.num_envs)

    def sharding(leaf: Any) -> jax.sharding.NamedSharding:
        is_split = leaf.ndim > 0 and leaf.shape[0] in split
        return learner_devices.sharding(PER_DEVICE if is_split else REPLICATED)

    return jax.tree.map(sharding, carries)


def with_seeds(shardings: PyTree) -> PyTree:
    """Return the shardings of arrays that have an axis of seeds before the axes of each seed's."""
    return jax.tree.map(
        lambda each: jax.sharding.NamedSharding(each.mesh, PartitionSpec(None, *each.spec)),
        shardings,
    )


def program_of_cycles(
    begin: tuple[PyTree, PyTree, PyTree, Any],
    device_update: Update,
    learner_devices: LearnerDevices,
    *,
    act_cycles: Sequence[ActWithin],
    placed_states: Sequence[PyTree],
    num_rounds: int,
    num_updates: int,
    max_cycles: int,
    shardings: PyTree,
    is_mapped: bool = False,
) -> ProgramOfCycles:
    """Return the jitted call for several learner cycles.

    Args:
        begin: the first four arguments of the call, or their shapes.
        device_update: the functions of one learner device.
        learner_devices: act and learn.
        act_cycles: `LocalCollector.act_within` of each actor.
        placed_states: the actor state of each actor on the learner devices, or its shape.
        num_rounds: trajectories of each actor in a learner cycle.
        num_updates: the optimisation steps of a learner cycle.
        max_cycles: the call need not take more.
        shardings: the result of `carry_shardings`.
        is_mapped: whether each array has a leading axis of seeds, but for the number of cycles.
    """
    agent = device_update.agent
    if is_mapped:
        device_update = dataclasses.replace(device_update, adds_in_branch=False)
    of_seeds: Callable[..., Any] = jax.vmap if is_mapped else lambda function: function
    cycle = jax.jit(
        of_seeds(
            _cycle_function(
                act_cycles=act_cycles,
                placed_states=placed_states,
                num_rounds=num_rounds,
                device_update=device_update,
                learner_devices=learner_devices,
                num_updates=num_updates,
            )
        )
    )
    actor_networks, bytes_of = of_seeds(agent.actor_networks), of_seeds(_bytes_of)
    state, _, carries, env_steps = begin
    networks = jax.eval_shape(actor_networks, state.networks)
    recorded = jax.eval_shape(cycle, state, networks, carries, env_steps)[-1]
    records_of_cycle = jax.eval_shape(bytes_of, recorded)
    shapes = recorded
    if is_mapped:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)
    capacity = max(1, min(max_cycles, _MAX_BYTES // num_bytes(shapes)))

    def program(
        state: PyTree,
        older: PyTree,
        carries: PyTree,
        env_steps: EnvStepCount,
        num_cycles: jax.Array,
    ) -> PyTree:
        def body(i: jax.Array, looped: PyTree) -> PyTree:
            state, older, carries, env_steps, records = looped
            networks, older = _take_oldest(older, i, actor_networks(state.networks))
            state, carries, env_steps, new = cycle(state, networks, carries, env_steps)
            return state, older, carries, env_steps, _write(records, i, bytes_of(new))

        policy_lag = len(older)
        records = jnp.zeros((capacity, *records_of_cycle.shape), jnp.uint8)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *older) if older else ()
        start = (state, stacked, carries, env_steps, records)
        state, stacked, carries, env_steps, records = jax.lax.fori_loop(0, num_cycles, body, start)
        slots = [(num_cycles + i) % policy_lag for i in range(policy_lag)]
        older = tuple(jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in slots)
        return state, older, carries, env_steps, actor_networks(state.networks), records

    replicated = learner_devices.sharding(REPLICATED)
    states = jax.tree.map(learner_devices.sharding, STATE_SPECS)
    if is_mapped:
        states, shardings = with_seeds(states), with_seeds(shardings)
    out_shardings = (states, replicated, shardings, replicated, replicated, replicated)
    call = jax.jit(program, out_shardings=out_shardings)
    return ProgramOfCycles(call=call, capacity=capacity, shapes=shapes)


def _take_oldest(older: PyTree, cycle: jax.Array, newest: Networks) -> tuple[Networks, PyTree]:
    """Return the networks that act in a cycle of a call, and the older ones of the next cycle.

    The newest take the slot of the oldest: moving the others up would copy all of them.

    Args:
        older: the networks of the last `policy_lag` versions, `[policy_lag, ...]`; () without any.
        cycle: `[]`, number of the cycle in the call.
        newest: the networks that the cycle updates.
    """
    if not jax.tree.leaves(older):
        return newest, older
    slot = cycle % jax.tree.leaves(older)[0].shape[0]
    oldest = jax.tree.map(
        lambda leaf: jax.lax.dynamic_index_in_dim(leaf, slot, keepdims=False), older
    )
    return oldest, _write(older, slot, newest)


def _write(stacked: PyTree, index: jax.Array, entry: PyTree) -> PyTree:
    """Return stacked trees with another entry at the index."""
    write = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
    return jax.tree.map(write, stacked, entry)


def _cycle_function(
    *,
    act_cycles: Sequence[ActWithin],
    placed_states: Sequence[PyTree],
    num_rounds: int,
    device_update: Update,
    learner_devices: LearnerDevices,
    num_updates: int,
) -> Callable[..., Any]:
    """Return the function of one learner cycle: all its act cycles, then its updates.

    It takes the learner's state, the networks that act, the actors' carries, and the env steps
    learned from. It returns the state, the carries, the env steps, and what to record.

    Args:
        act_cycles: `LocalCollector.act_within` of each actor.
        placed_states: the actor state of each actor on the learner devices, or its shape.
        num_rounds: trajectories of each actor in a learner cycle.
        device_update: the functions of one learner device.
        learner_devices: act and learn.
        num_updates: the optimisation steps of a learner cycle.
    """
    split_envs: Any = PartitionSpec(None, *PER_DEVICE)
    replicated: Any = REPLICATED
    specs = [
        Unroll(
            initial_state=specs_of(placed),
            final_state=specs_of(placed),
            trajectory=split_envs,
            actor_id=replicated,
        )
        for placed in placed_states
    ] * num_rounds
    learn = shard(
        functools.partial(device_update.cycle, num_updates=num_updates),
        learner_devices,
        in_specs=(STATE_SPECS, tuple(specs), REPLICATED),
        out_specs=(STATE_SPECS, REPLICATED, REPLICATED),
    )

    def cycle(
        state: LearnerState,
        networks: Networks,
        carries: tuple[ActCarry, ...],
        env_steps: EnvStepCount,
    ) -> PyTree:
        current, unrolls, tallies = list(carries), [], []
        for number in range(len(specs)):
            actor_id = number % len(act_cycles)
            before = current[actor_id]
            collected = act_cycles[actor_id](networks, before)
            current[actor_id] = collected.carry
            tallies.append(collected.tally)
            unrolls.append(
                Unroll(
                    initial_state=before.actor_state,
                    final_state=collected.carry.actor_state,
                    trajectory=collected.trajectory,
                    actor_id=jnp.int32(actor_id),
                )
            )
        state, _, metrics = learn(state, tuple(unrolls), env_steps)
        is_learning = state.non_finite.in_a_row < device_update.max_non_finite_updates
        recorded = RecordedCycle(
            env_steps=tuple(tally.env_steps for tally in tallies),
            num_episodes=tuple(tally.num_episodes for tally in tallies),
            ended=tuple(tally.ended for tally in tallies),
            is_finite_and_learning=functools.reduce(
                operator.and_, [tally.is_finite for tally in tallies], is_learning
            ),
            num_discarded=state.non_finite.total,
            metrics=metrics,
        )
        for tally in tallies:
            env_steps += tally.env_steps
        return state, tuple(current), env_steps, recorded

    return cycle
