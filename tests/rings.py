"""Builds rings and their parts, and runs them: the one place in the tests that knows their classes.

Tests say what they need, and ask about what came out. A ring's parts are *actors*, a *learner*,
their *act cycles*, and *items*: trajectories with their states and facts, as they go round.
"""

import collections
import contextlib
import dataclasses
import functools
import signal
import time
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import LearnerConfig
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.roles import assign_devices
from sebulba.devices.xla_workarounds import is_slow_in_a_loop as is_slow_in_a_loop
from sebulba.hosts.agreement import Agreement
from sebulba.process import start_daemon
from sebulba.pytree import pytree_dataclass
from sebulba.ring import act_functions, anakin, calls, running
from sebulba.ring import make as making
from sebulba.ring import programs as making_programs
from sebulba.ring.act_cycle import Buffer, act_row, init_carry
from sebulba.ring.actor import Actor
from sebulba.ring.clocks import UPDATE, WAIT_FOR_TRAJECTORIES, WallClock
from sebulba.ring.collectors import CollectorLost
from sebulba.ring.deques import Closed, NetworksDeque, TrajectoryDeque
from sebulba.ring.deques import SequenceError as SequenceError
from sebulba.ring.episodes import EpisodeTracker
from sebulba.ring.episodes import load_reducers as load_reducers
from sebulba.ring.fused_cycle import FusedCycle, FusedFunctions, SharedFunctions
from sebulba.ring.learner import Learner, LearnerPrograms, update_program
from sebulba.ring.ledger import Ledger
from sebulba.ring.progress import EpisodeWindow as EpisodeWindow
from sebulba.ring.progress import Progress
from sebulba.ring.records import ActCarry, Delivery, EndedRows, FinishedEpisodes, Unroll, UnrollInfo
from sebulba.ring.records import DueTimes as DueTimes
from sebulba.ring.ring import Observer as Observer
from sebulba.ring.running import run as run
from sebulba.ring.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.ring.update import STATE_SPECS, clock_of, experience_of, loss_and_gradients
from sebulba.ring.update import NonFiniteError as NonFiniteError
from sebulba.run import autosave, watchdog
from sebulba.run.all_reduce import AllReduceProbe, AllReduceUse
from sebulba.run.replicas import ReplicaCheck
from sebulba.run.replicas import ReplicaError as ReplicaError
from sebulba.run.resume import resume as resume_from
from sebulba.run.rows import MetricsRows
from sebulba.run.warm_start import InitialNetworks
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.metrics.writers import MetricsFanOut
from sebulba.types import ActorState, EnvStepCount, Trajectory

# Rings


def keep_observations(monkeypatch):
    """Let trajectories of the rings made from now on hold stacks, and not each frame once."""
    monkeypatch.setattr(making_programs, "_frames_kept_once", lambda config, environment: None)


def make_ring(config, *, devices=None, programs=None, make_collector=None, on_warning=print):
    """Return the ring of a config, which has not run; `close` it in the end."""
    return making.make_ring(
        config,
        devices=None
        if devices is None
        else assign_devices(config.devices, devices, num_envs=config.actor.num_envs),
        programs=programs,
        initial_networks=InitialNetworks(
            config.init_from if config.resume is None else None, mismatch=config.init_mismatch
        ),
        make_collector=make_collector,
        on_warning=on_warning,
    )


def close(ring):
    """Close a ring's deques and environments; no thread may be in one of them."""
    ring.close()
    ring.close_environments()


class _Cycles(Observer):
    """Calls a function with the infos of each report."""

    def __init__(self, call):
        self._call = call

    def on_cycle(self, report):
        self._call(report.infos)


def run_ring(ring, *, mode="threads", on_cycle=lambda infos: None, interval=None):
    """Run a ring to its end and close it; return its rows of metrics.

    Args:
        ring: a new or a resumed one.
        mode: as `run.mode`.
        on_cycle: called after each learner cycle, in the learner's thread, with what is known of
            each of its trajectories: `actor_id`, `sequence_number`, `policy_version`, `env_steps`,
            `episodes`, `episodes_cut`, `env_restarts`.
        interval: env steps between two rows of metrics; None: as the ring's config says.
    """
    observer, rows = rows_observer(ring, interval=interval)
    try:
        run(
            ring,
            mode=mode,
            observers=[observer, *_checks(ring), _Cycles(on_cycle)],
            due=DueTimes(every_env_steps=(_interval(ring, interval),)),
        )
    finally:
        close(ring)
    return rows


def rows_observer(ring, *, interval=None):
    """Return what makes a ring's rows of metrics, and the list that receives them."""
    rows = []
    observer = MetricsRows(
        ring,
        interval_env_steps=_interval(ring, interval),
        episode_metrics=ring.programs.episode_metrics,
        all_reduce=_probe(ring),
        files=MetricsFanOut([], print),
        listeners=[rows.append],
    )
    return observer, rows


def _interval(ring, interval):
    return interval or ring.progress._config.log_interval_env_steps


def _probe(ring):
    learner = ring.learner
    return AllReduceProbe(
        learner,
        dtype=learner.programs.device_update.gradients,
        is_lock_step=ring.schedule.policy_lag == 0,
    )


def _checks(ring):
    return [ReplicaCheck(ring.learner)]


_recent_programs = collections.deque(maxlen=4)  # of configs without their seed, to trace them once


def _make_with_shared_programs(config):
    """Make a ring with the programs of an earlier one whose config differs in its seed alone."""
    key = dataclasses.replace(config, seed=0, run_dir=None, resume=None)
    known = next((programs for other, programs in _recent_programs if other == key), None)
    ring = make_ring(config, programs=known)
    if known is None:
        _recent_programs.append((key, ring.programs))
    return ring


def run_config(config, directory=None, *, which=None, stop_at_cycle=None, warnings=None):
    """Run a config in its `run.mode`, and save it; from a checkpoint and to a cycle if given.

    Args:
        config: the run's config; its `run_dir` is not used.
        directory: of checkpoints; None: nothing is saved.
        which: the checkpoint that the run resumes from; None: a new run.
        stop_at_cycle: learner cycle after which the run stops; None: at its goal.
        warnings: list that gets the warnings of saves.

    Returns:
        The ring, its rows of metrics, and what it was resumed from.
    """
    ring = _make_with_shared_programs(config)
    resumed = None if which is None else resume(ring, directory, which)
    observer, rows = rows_observer(ring)
    if resumed is not None:
        observer.restore(resumed.row)
    probe = _probe(ring)
    observer._all_reduce = AllReduceUse(probe, ring.progress)
    observer._all_reduce_of_run = AllReduceUse(probe, ring.progress)
    observers = [observer, *_checks(ring), probe]
    saving = None
    if directory is not None:
        saving = autosave.Autosave(
            ring,
            Checkpointer(directory, keep=config.checkpoint.keep, start_thread=start_daemon),
            rows=observer,
            agreement=Agreement(ring.learner.learner_devices, end=ring.end, max_episodes=100),
            interval_s=config.checkpoint.interval_s,
            has_fixed_resets=config.checkpoint.exact_reset_cycles is not None,
            on_warning=[].append if warnings is None else warnings.append,
        )
        observers.append(saving)

    def on_cycle(infos):
        if ring.learner.num_cycles == stop_at_cycle:
            while config.run.mode == "threads" and not _is_ahead(ring):
                time.sleep(0.001)
            raise Closed

    observers.append(_Cycles(on_cycle))
    try:
        with contextlib.suppress(Closed):
            run(
                ring,
                mode=config.run.mode,
                observers=observers,
                due=DueTimes(every_env_steps=(config.run.log_interval_env_steps,)),
            )
    finally:
        if saving is not None:
            saving.close(ring.end)
        close(ring)
    ring.all_reduce_of_run = observer.all_reduce
    return ring, rows, resumed


def _is_ahead(ring):
    """Whether something has been acted that is not learned from."""
    return ring.ledger.total("acted") > ring.ledger.total("learned")


def resume(ring, directory, which="latest"):
    """Bring a new ring to a checkpoint; return `level`, `num_cycles`, `env_steps`, and `str`."""
    return resume_from(ring, directory, which)


def stop(ring):
    """Have a ring stop as a signal does."""
    ring.end.signal = signal.SIGTERM


def has_reached_goal(ring):
    """Return whether a ring has ended because of its goal."""
    return ring.end.goal


def make_episodes(returns, lengths=None, *, has_results=None, **reduced):
    """Return finished episodes of these returns, with the results of reducers by their names."""
    return FinishedEpisodes(
        episode_return=np.array(returns, np.float32),
        episode_length=np.array(np.ones(len(returns)) if lengths is None else lengths, np.int32),
        has_results=np.array(np.ones(len(returns)) if has_results is None else has_results, bool),
        reduced={name: np.array(results, np.float32) for name, results in reduced.items()},
    )


def finish_episodes(ring, episodes):
    """Have a ring look for its goal as if these episodes were the last to finish."""
    ring.progress.window.add(episodes)
    ring.progress.restore(ring.progress.state())


def set_time(ring, now):
    """Have a ring measure its rate with this clock: `() -> seconds`."""
    ring.progress._now = now


def episode_window(ring):
    """Return the last finished episodes of a ring, as JSON values."""
    return ring.progress.window.state()


def all_reduce_of_run(ring):
    """Return what a ring's summary says of the all-reduces of its gradients."""
    return ring.all_reduce_of_run


def num_taken(ring):
    """Return the number of trajectories that the learner has taken, of all actors."""
    return sum(ring.trajectories._next_sequence_number)


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
        The function `(networks, carry) -> (carry, result)`. The result has `trajectory`,
        `final_state`, `env_steps`, `num_episodes`, and `episodes`, of which the last finished.
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
    """What an act cycle gave."""

    trajectory: Trajectory
    final_state: ActorState
    env_steps: jax.Array
    num_episodes: jax.Array
    ended: EndedRows
    carry: ActCarry


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
            carry=None,
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


def act(ring, actor_id=0):
    """Return the item of an actor's next act cycle, with the newest networks."""
    actor = ring.actors[actor_id]
    return actor.act(ring.learner.networks_on(actor.device), 0, ring.ledger)


def are_fused(ring):
    """Return for each actor whether its act cycle is fused."""
    return [isinstance(actor.collector.act_cycle, FusedCycle) for actor in ring.actors]


def actor_devices(ring):
    """Return the device of each actor."""
    return tuple(actor.device for actor in ring.actors)


def actor_cycles(ring):
    """Return the number of act cycles that each actor has completed."""
    return [actor.point.cycle for actor in ring.actors]


def episodes_interrupted(ring):
    """Return the number of episodes that end because a resumed ring recreates environments."""
    boundaries = [actor.point.boundary for actor in ring.actors]
    return sum(boundary.num_interrupted for boundary in boundaries if boundary)


def wrap_act_cycle(ring, actor_id, wrap):
    """Replace an actor's act cycle by `wrap` of it."""
    collector = ring.actors[actor_id].collector
    collector.act_cycle = wrap(collector.act_cycle)


def know_no_platform(monkeypatch):
    """Have no platform step environments outside JAX inside jit by itself."""
    monkeypatch.setattr(act_functions, "_PLATFORMS_OF_FUSED", ())


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


def publish(ring):
    """Give a ring's actors the learner's first networks, as `run` does before the first cycle."""
    ring.publish()


def act_in_turn(ring):
    """Return the items of a ring's next learner cycle, acted in this thread."""
    return ring.act_in_turn()


def trace_update(ring, item):
    """Return the traced program of a learner cycle with one update, which takes an item."""
    learner = ring.learner
    program = update_program(learner.programs.device_update, learner.learner_devices, num_updates=1)
    return program.trace(learner.state, (item.unroll,), EnvStepCount.of(0))


def learn(ring, items):
    """Run a ring's next learner cycle in this thread."""
    ring.learn(items)


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


# Runs that are disturbed, in this process


_STEPS = {
    "act": (Actor, "act"),
    "update": (Learner, "update"),
    "count": (Progress, "count"),
    "put": (TrajectoryDeque, "put"),
    "get": (TrajectoryDeque, "get"),
    "publish": (NetworksDeque, "append"),
    "take": (NetworksDeque, "take"),
    "copy": (autosave, "state_of"),
}


def before(step, call, *, setattr=setattr):
    """Have a function called before a step of every ring, in the thread of that step.

    Args:
        step: an actor's act cycle (`act`) or a learner's updates of a cycle (`update`), whose
            function gets the actor or the learner, with its `clock`; the count of what
            was learned (`count`); trajectories that go onto the deque or come off it (`put`,
            `get`); networks that are staged or taken (`publish`, `take`); the copy that is to be
            saved (`copy`).
        call: takes one argument; what it raises, the step raises.
        setattr: of a `monkeypatch`, which undoes it.
    """
    owner, name = _STEPS[step]
    method = getattr(owner, name)

    def after_call(first, *args, **kwargs):
        call(first)
        return method(first, *args, **kwargs)

    setattr(owner, name, after_call)


def note_calls(call, setattr):
    """Have a function called with the learner cycles of each call of one program."""
    dispatch = calls.Calls.dispatch

    def after_call(self, program, begin, num_cycles, num_updates):
        call(num_cycles)
        return dispatch(self, program, begin, num_cycles, num_updates)

    setattr(calls.Calls, "dispatch", after_call)


def set_most_ahead(monkeypatch, *, num_bytes=float("inf"), seconds=float("inf")):
    """Set the state and the length of calls up to which one program is dispatched ahead."""
    monkeypatch.setattr(calls, "_MAX_BYTES_AHEAD", num_bytes)
    monkeypatch.setattr(calls, "_MAX_S_AHEAD", seconds)


def program_of_cycles(ring):
    """Return the one program of a ring, whose cycles have an update."""
    return anakin.Anakin(ring).program(1)


def before_learning_from(call, *, setattr=setattr):
    """Have a function called with the trajectories of each learner cycle, before its updates."""
    update = Learner.update

    def after_call(self, unrolls, **kwargs):
        call([unroll.trajectory for unroll in unrolls])
        return update(self, unrolls, **kwargs)

    setattr(Learner, "update", after_call)


def set_stop_deadlines(monkeypatch, *, deadline_s=None, of_stuck_s=None):
    """Set how long a run that ends waits for its threads, and if one of them hangs; in seconds."""
    if deadline_s is not None:
        monkeypatch.setattr(running, "_STOP_DEADLINE_S", deadline_s)
    if of_stuck_s is not None:
        monkeypatch.setattr(running, "_STOP_DEADLINE_OF_HANGING_S", of_stuck_s)


def set_watchdog_time(monkeypatch, now):
    """Have the watchdog of runs look at this clock: `() -> seconds`."""
    monkeypatch.setattr(watchdog, "Watchdog", functools.partial(watchdog.Watchdog, now=now))


# Who acts


def keep_actions(ring, num_cycles=1000):
    """Have a ring's actors keep the actions of their streams, for collectors that come later."""
    for actor in ring.actors:
        actor.collector.max_kept_cycles = num_cycles


def new_collector(ring, actor_id):
    """Return a collector for an actor that has acted nothing, as in another process."""
    actor, programs = ring.actors[actor_id], ring.programs
    return making.make_local_collector(
        programs.config,
        programs.act[actor.device],
        global_actor_id=actor_id,
        clock=actor.clock,
        on_warning=print,
    )


class _Calls:
    """A collector that calls another through a function: `call(collect, networks, point)`."""

    def __init__(self, collector, call):
        self._collector, self._call = collector, call
        self.max_kept_cycles = collector.max_kept_cycles

    def collect(self, networks, point):
        return self._call(self._collector.collect, networks, point)

    def __getattr__(self, name):
        return getattr(self._collector, name)


def wrap_collect(ring, call):
    """Have every actor of a ring collect through `call(actor_id, collect, networks, point)`."""
    for actor in ring.actors:
        of_actor = functools.partial(call, actor.actor_id)
        actor.collector = _Calls(actor.collector, of_actor)


def drop_collectors(ring, *, before_cycle=lambda cycle: True):
    """Have a new collector in the place of each actor's before every cycle, or some of them."""
    keep_actions(ring)
    current = {actor.actor_id: actor.collector for actor in ring.actors}

    def collect(actor_id, _, networks, point):
        if before_cycle(point.cycle):
            current[actor_id].close()
            current[actor_id] = new_collector(ring, actor_id)
        return current[actor_id].collect(networks, point)

    wrap_collect(ring, collect)


def collected_of(ring, num_cycles):
    """Return `(networks, point, collected)` of each cycle of actor 0, acted in this thread."""
    calls = []

    def collect(actor_id, collect, networks, point):
        calls.append((networks, point, collect(networks, point)))
        return calls[-1][-1]

    keep_actions(ring)
    wrap_collect(ring, collect)
    for _ in range(num_cycles):
        act(ring)
    return calls


def lose_collectors(ring, losses):
    """Have the collector of actor 0 lost so often at each of some cycles: `{cycle: losses}`."""
    left = dict(losses)

    def collect(actor_id, collect, networks, point):
        if actor_id == 0 and left.get(point.cycle, 0):
            left[point.cycle] -= 1
            raise CollectorLost(f"the process of actor 0 is gone before cycle {point.cycle}")
        return collect(networks, point)

    wrap_collect(ring, collect)


def assert_equal_bits(got, expected):
    """Check that two pytrees have the same leaves, bit for bit."""
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, leaf), other in zip(paths, jax.tree.leaves(got), strict=True):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(other), np.asarray(leaf), str(path))
