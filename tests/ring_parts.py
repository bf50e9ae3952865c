"""Builds parts of rings without a ring: act cycles, deques and learners, and what they hand over.

What they hand over are *items*: trajectories with their states and facts, as they go round.
"""

import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import LearnerConfig
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.xla_workarounds import is_slow_in_a_loop as is_slow_in_a_loop
from sebulba.pytree import pytree_dataclass, without_key
from sebulba.ring.act_cycle import Buffer, act_row, init_carry
from sebulba.ring.clocks import UPDATE, WAIT_FOR_TRAJECTORIES, WallClock
from sebulba.ring.deques import NetworksDeque, TrajectoryDeque
from sebulba.ring.deques import SequenceError as SequenceError
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.episodes import load_reducers as load_reducers
from sebulba.ring.fused_cycle import FusedCycle, FusedFunctions, SharedFunctions
from sebulba.ring.learner import Learner, LearnerPrograms
from sebulba.ring.ledger import Ledger
from sebulba.ring.progress import EpisodeWindow as EpisodeWindow
from sebulba.ring.records import Delivery, EndedRows, FinishedEpisodes, Unroll, UnrollInfo
from sebulba.ring.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.ring.update import STATE_SPECS, clock_of, experience_of, loss_and_gradients
from sebulba.ring.update import NonFiniteError as NonFiniteError
from sebulba.run.all_reduce import AllReduceProbe, AllReduceUse
from sebulba.run.replicas import ReplicaCheck
from sebulba.run.replicas import ReplicaError as ReplicaError
from sebulba.types import ActorState, EnvStepCount, Trajectory

# Acting


def first_carry(agent, networks, env_step, *, key, device, actor_id=0):
    """Return what an actor's first act cycle begins with, from the first row `[B]`."""
    return init_carry(
        agent,
        networks,
        env_step,
        key=key,
        global_actor_id=actor_id,
        device=device,
        tracker=EpisodeTracker(),
    )


def act_cycle(agent, environment, networks, carry, *, fused, length, device, whole_episodes=False):
    """Return an act cycle over environments that were reset: `(networks, carry)` to the same.

    Args:
        agent: the agent that acts.
        environment: it must outlive the act cycle.
        networks: on the device; any of these shapes.
        carry: from `first_carry`.
        fused: whether the environment is stepped within the jitted loop.
        length: steps of each trajectory.
        device: where the actor acts.
        whole_episodes: whether every trajectory is one episode of each environment.

    Returns:
        The function `(networks, carry) -> (carry, result)`; the result is an `Acted`.
    """
    common = {"clock": WallClock(), "whole_episodes": whole_episodes}
    if fused:
        traceable = environment.fused()
        functions = FusedFunctions(agent, traceable.step, trajectory_length=length, device=device)
        return _Cycle(FusedCycle(functions, traceable, **common))
    functions = StepFunctions(agent, trajectory_length=length, device=device)
    return _Cycle(SteppedCycle(functions, environment, **common))


@pytree_dataclass
class Acted:
    """What an act cycle gave, without its carry."""

    trajectory: Trajectory
    final_state: ActorState
    env_steps: jax.Array
    num_episodes: jax.Array
    ended: EndedRows


class _Cycle:
    def __init__(self, cycle):
        self.cycle = cycle

    def __call__(self, networks, carry):
        collected = self.cycle(networks, carry)
        acted = Acted(
            trajectory=collected.trajectory,
            final_state=collected.carry.actor_state,
            env_steps=collected.tally.env_steps,
            num_episodes=collected.tally.num_episodes,
            ended=collected.tally.ended,
        )
        return collected.carry, acted


def compilations(act_cycle):
    """Return how often each of the jitted functions that an act cycle has used was compiled."""
    cycle, names = act_cycle.cycle, ["begin", "step", "finish"]
    if isinstance(cycle, FusedCycle):
        names = ["cycle"] if cycle._restart is None else ["act_episodes", "finish"]
    return [getattr(cycle._functions, name)._cache_size() for name in names]


def collect_donated(act_cycle):
    """Return a list of what a stepped cycle begins with: its copy of the state, and its buffer."""
    begun, functions = [], act_cycle.cycle._functions
    begin = functions.begin
    functions.begin = lambda *args: begun.append(begin(*args)) or begun[-1]
    return begun


def shared_programs(agent, *, length, device):
    """Return the function from a fused environment to the programs of act cycles over it.

    Environments with the same `step` share them, as a device's actors do.
    """
    make = functools.partial(FusedFunctions, agent, trajectory_length=length, device=device)
    return SharedFunctions(make).of


def append_to_rows(trajectory, num_rows, action, extras):
    """Return a trajectory with an action and extras in row `num_rows`, and the next row's number.

    As an act cycle writes them, in a jitted call.
    """

    def act(networks, actor_state, env_step):
        return action, extras, actor_state

    def append(trajectory, action, extras):
        buffer = Buffer(trajectory=trajectory, num_rows=jnp.int32(num_rows))
        row = jax.tree.map(lambda rows: rows[num_rows], trajectory.env_steps)
        return act_row(act, (), (), row, buffer)[2]

    buffer = jax.jit(append)(trajectory, action, extras)
    return buffer.trajectory, buffer.num_rows


def make_episodes(returns, lengths=None, *, has_results=None, **reduced):
    """Return finished episodes of these returns, with the results of reducers by their names."""
    return FinishedEpisodes(
        episode_return=np.array(returns, np.float32),
        episode_length=np.array(np.ones(len(returns)) if lengths is None else lengths, np.int32),
        has_results=np.array(np.ones(len(returns)) if has_results is None else has_results, bool),
        reduced={name: np.array(results, np.float32) for name, results in reduced.items()},
    )


def follow_episodes(reducers, trajectory, *, max_finished=10_000, num_players=1):
    """Return what an act cycle counts of a trajectory's episodes: a `Tally`'s two fields.

    Args:
        reducers: `{name: EpisodeReducer}`.
        trajectory: of `T` steps; all episodes are new at its first row.
        max_finished: the last episodes that are kept, if there are many rows.
        num_players: of an environment.
    """
    tracker = EpisodeTracker(reducers, max_finished=max_finished, num_players=num_players)
    num_envs = trajectory.env_steps.reward.shape[1]

    def follow(trajectory):
        statistics = tracker.init(num_envs)
        _, rows = tracker.follow(statistics, trajectory)
        assert not rows.reducer_states
        return tracker.ended(statistics, rows)

    num_episodes, ended = jax.tree.map(np.asarray, jax.jit(follow)(trajectory))
    return int(num_episodes), ended


# Items and deques


def numbered_item(actor_id, sequence_number, *, env_steps=10, policy_version=0):
    """Return an item without a trajectory."""
    return _item(None, None, None, actor_id, sequence_number, policy_version, env_steps)


def placed_item(agent, learner_devices, state, trajectory, *, actor_id=0, sequence_number=0):
    """Return an item with a trajectory on the learner devices.

    Args:
        agent: shards the actor state.
        learner_devices: they share the environments.
        state: of the actor, before the trajectory and after it.
        trajectory: on the host.
        actor_id: the actor's number on this host.
        sequence_number: the number of the actor's earlier trajectories.
    """
    state = agent.shard_actor_state(state, learner_devices)
    trajectory = learner_devices.split(trajectory, axis=1)
    placed_id = learner_devices.replicate(np.int32(actor_id))
    return _item(state, state, trajectory, actor_id, sequence_number, 0, 1, placed_id)


def _item(
    initial_state,
    final_state,
    trajectory,
    actor_id,
    sequence_number,
    policy_version,
    env_steps,
    placed_id=None,
):
    info = UnrollInfo(
        actor_id=actor_id,
        sequence_number=sequence_number,
        policy_version=policy_version,
        env_steps=env_steps,
        num_episodes=0,
        episodes=make_episodes([]),
    )
    unroll = Unroll(
        initial_state=initial_state,
        final_state=final_state,
        trajectory=trajectory,
        actor_id=placed_id,
    )
    return Delivery(unroll=unroll, info=info, point=None)


def trajectory_of(item):
    """Return the trajectory of an item, on the learner devices."""
    return item.unroll.trajectory


def info_of(item):
    """Return what is known of an item's trajectory; `run_ring` lists its attributes."""
    return item.info


def trajectory_deque(num_actors, *, slots_per_actor=1):
    """Return a deque of items and the ledger that it writes."""
    ledger = Ledger(num_actors)
    deque = TrajectoryDeque(num_actors=num_actors, slots_per_actor=slots_per_actor, ledger=ledger)
    return deque, ledger


def networks_deque(num_staged=1):
    """Return a deque of networks, which keeps the newest versions."""
    return NetworksDeque(num_staged)


def make_info(episodes, *, env_steps, policy_version=0):
    """Return what hosts send each other of a trajectory in which these episodes finished."""
    return UnrollInfo(
        actor_id=1,
        sequence_number=4,
        policy_version=policy_version,
        env_steps=env_steps,
        num_episodes=len(episodes),
        episodes=episodes,
    )


def assert_same_infos(infos, expected):
    """Check that infos of trajectories are equal, their episodes too."""
    for each, other in zip(infos, expected, strict=True):
        fields, other_fields = vars(each).copy(), vars(other).copy()
        chex.assert_trees_all_equal(fields.pop("episodes"), other_fields.pop("episodes"))
        assert fields == other_fields


def assert_equal_bits(got, expected):
    """Check that two pytrees have the same leaves, bit for bit."""
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, leaf), other in zip(paths, jax.tree.leaves(got), strict=True):
        other, leaf = np.asarray(without_key(other)), np.asarray(without_key(leaf))
        np.testing.assert_array_equal(other, leaf, str(path))


# Learning


def make_learner(agent, learner_devices, *, num_envs, seed, **settings):
    """Return a learner without a ring.

    Args:
        agent: the agent that learns.
        learner_devices: a `LearnerDevices`.
        num_envs: environments of a trajectory, which this host's devices share.
        seed: of its key.
        settings: of the config's section `learner`.
    """
    programs = LearnerPrograms(
        agent=agent,
        learner_devices=learner_devices,
        num_streams_per_device=num_envs // len(learner_devices.devices),
        config=LearnerConfig(**settings),
    )
    return Learner(programs, key=jax.random.key(seed), clock=WallClock())


def check_replicas(learner):
    """Compare the networks of the learner's devices, as a ring's observer does."""
    ReplicaCheck(learner).on_cycle(types.SimpleNamespace(num_cycles=learner.num_cycles))


def update(learner, items, *, env_steps=0):
    """Run a learner's next cycle after so many env steps; return its metrics, as `Learner` does."""
    return learner.update([item.unroll for item in items], env_steps=env_steps)


def activities_in_calls(learner, monkeypatch):
    """Return a list that grows by the begun activity in every jitted call of the learner."""
    begun, call = [], mapping.Mapped.__call__

    def noting_call(self, *args):
        begun.append(learner.clock.current[0])
        return call(self, *args)

    monkeypatch.setattr(mapping.Mapped, "__call__", noting_call)
    return begun


def published(learner):
    """Return the networks that actors get from a learner."""
    return learner.published


def update_step(learner):
    """Return one optimisation step, mapped over the learner devices: from the learner's state."""
    return mapping.shard(
        lambda state: learner.programs.device_update.step(state, EnvStepCount.of(0)),
        learner.learner_devices,
        in_specs=(STATE_SPECS,),
        out_specs=(STATE_SPECS, REPLICATED),
    )


def mean_gradients(learner, dtype):
    """Return the function from the learner's state to the gradients' mean over the devices.

    They cross between devices in `dtype`.
    """

    def gradients(state):
        agent, clock = learner.programs.device_update.agent, clock_of(state, EnvStepCount.of(0))
        return loss_and_gradients(agent, state, experience_of(state), clock, dtype=dtype)[2]

    return mapping.shard(
        gradients, learner.learner_devices, in_specs=(STATE_SPECS,), out_specs=REPLICATED
    )


def measure_all_reduces(networks, *, num_devices=2, cycles=(1,), is_on_cpu=True, **settings):
    """Return what measures the all-reduces of gradients, after these learner cycles.

    Args:
        networks: with the shapes of the gradients.
        num_devices: of the learner.
        cycles: numbers of learner cycles.
        is_on_cpu: whether it takes the devices for CPUs.
        settings: of the config's section `learner`.

    Returns:
        An object with `seconds` and `num_bytes` of one update.
    """
    devices = LearnerDevices(jax.devices()[:num_devices])
    config = LearnerConfig(**settings)
    learner = types.SimpleNamespace(
        learner_devices=devices,
        clock=WallClock(),
        state=types.SimpleNamespace(networks=devices.replicate(networks)),
    )
    probe = AllReduceProbe(learner, dtype=config.gradients, is_lock_step=config.policy_lag == 0)
    probe._is_on_cpu = is_on_cpu
    for cycle in cycles:
        probe.on_cycle(types.SimpleNamespace(num_cycles=cycle))
    return probe


def num_measurements(all_reduce):
    """Return how many all-reduces were timed, of those that are kept."""
    return len(all_reduce._durations)


def all_reduce_columns(all_reduce, *, since=(0, 0), now, update_s=0.0, waited_s=0.0):
    """Return the columns of a row of metrics that all-reduces have.

    Args:
        all_reduce: from `measure_all_reduces`.
        since: learner cycles and updates of the run at the last row.
        now: the same, of this row.
        update_s: seconds of updates between them.
        waited_s: seconds between them for which the learner waited for trajectories.
    """
    progress = types.SimpleNamespace(cycles=since[0], updates=since[1])
    use = AllReduceUse(all_reduce, progress)
    spent = all_reduce.clock.seconds
    for activity, seconds in ((UPDATE, update_s), (WAIT_FOR_TRAJECTORIES, waited_s)):
        spent[activity] = spent.get(activity, 0.0) + seconds
    progress.cycles, progress.updates = now
    return use.columns()
