"""Builds rings and their parts, and runs them: the one place in the tests that knows their classes.

Tests say what they need, and ask about what came out. A ring's parts are *actors*, a *learner*,
their *act cycles*, and *items*: trajectories with their states and facts, as they go round.
"""

import contextlib
import functools
import signal
import time

import jax
import jax.numpy as jnp

from sebulba.acting import environment_factory
from sebulba.acting.act_cycle import BufferAllocator, init_carry
from sebulba.acting.actor import Actor
from sebulba.acting.episode_reducers import EpisodeTracker
from sebulba.acting.episode_reducers import load_reducers as load_reducers
from sebulba.acting.episodes import finished_episodes as finished_episodes
from sebulba.acting.fused_cycle import FusedCycle, FusedFunctions, SharedFunctions
from sebulba.acting.stepped_cycle import StepFunctions, SteppedCycle
from sebulba.acting.trajectory_buffer import Buffer, append_choice
from sebulba.config import LearnerConfig
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import shard
from sebulba.hosts.agreement import TrajectoryReport
from sebulba.learning.all_reduce import AllReduce, AllReduceUse
from sebulba.learning.learner import Learner
from sebulba.learning.loops import is_slow_in_a_loop as is_slow_in_a_loop
from sebulba.learning.non_finite import NonFiniteError as NonFiniteError
from sebulba.learning.progress import Progress
from sebulba.learning.replicas import ReplicaError as ReplicaError
from sebulba.learning.update import STATE_SPECS, experience_of, loss_and_gradients
from sebulba.ring.ledger import Ledger
from sebulba.ring.queues import Closed, NetworksDeque, TrajectoryDeque
from sebulba.ring.queues import SequenceError as SequenceError
from sebulba.ring.timing import UPDATE, WAIT_FOR_TRAJECTORIES, WallClock
from sebulba.ring.watchdog import Watchdog
from sebulba.run import autosave, modes
from sebulba.run.assembly import assemble
from sebulba.run.state import resume as resume_from
from sebulba.run.supervision import start_daemon
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.types import TrajectoryItem

# Rings


def make_ring(config, *, devices=None, on_warning=print):
    """Return the ring of a config, which has not run; `close` it in the end."""
    return assemble(config, write_row=lambda row: None, devices=devices, on_warning=on_warning)


def close(ring):
    """Close a ring's deques and environments; no thread may be in one of them."""
    ring.close()
    ring.close_environments()


def run_ring(ring, *, mode="threads", on_cycle=lambda infos: None):
    """Run a ring to its end and close it; return its rows of metrics.

    Args:
        ring: a new or a resumed one.
        mode: as `run.mode`.
        on_cycle: called after each learner cycle, in the learner's thread, with what is known of
            each of its trajectories: `actor_id`, `sequence_number`, `policy_version`, `env_steps`,
            `episodes`, `episodes_cut`, `env_restarts`.
    """
    rows = []
    try:
        _run(ring, rows, mode=mode, on_cycle=on_cycle)
    finally:
        close(ring)
    return rows


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
    rows = []
    ring = make_ring(config)
    resumed = None if which is None else resume(ring, directory, which)
    saving = None
    if directory is not None:
        saving = autosave.Autosave(
            ring,
            Checkpointer(directory, keep=config.checkpoint.keep, start_thread=start_daemon),
            interval_s=config.checkpoint.interval_s,
            on_warning=[].append if warnings is None else warnings.append,
        )

    def on_cycle(items):
        if saving is not None:
            saving.after_cycle(items)
        if ring.learner.num_cycles == stop_at_cycle:
            while config.run.mode == "threads" and not _is_ahead(ring):
                time.sleep(0.001)
            raise Closed

    on_poll = {} if saving is None else {"on_poll": saving.poll}
    try:
        with contextlib.suppress(Closed):
            _run(ring, rows, mode=config.run.mode, on_cycle=on_cycle, **on_poll)
    finally:
        if saving is not None:
            saving.finish(threads_have_ended=True)
        close(ring)
    return ring, rows, resumed


def _run(ring, rows, *, mode, on_cycle, on_poll=lambda: None):
    ring.progress._write_row = rows.append
    modes.run(ring, mode=mode, after_cycle=on_cycle, on_poll=on_poll)


def _is_ahead(ring):
    """Whether something has been acted that is not learned from."""
    return ring.ledger.total("acted") > ring.ledger.total("learned")


def resume(ring, directory, which="latest"):
    """Bring a new ring to a checkpoint; return `level`, `num_cycles`, `env_steps`, and `str`."""
    return resume_from(ring, directory, which)


def stop(ring):
    """Have a ring stop as a signal does."""
    ring.run_end.signal = signal.SIGTERM


def has_reached_goal(ring):
    """Return whether a ring has ended because of its goal."""
    return ring.run_end.goal


def finish_episodes(ring, records):
    """Have a ring look for its goal as if these episodes were the last to finish."""
    ring.progress.window.add(records, num_finished=len(records))
    ring.progress.restore(ring.progress.state())


def set_time(ring, now):
    """Have a ring measure its rate with this clock: `() -> seconds`."""
    ring.progress._now = now


def episode_window(ring):
    """Return the last finished episodes of a ring, as JSON values."""
    return ring.progress.window.state()


def all_reduce_of_run(ring):
    """Return what a ring's summary says of the all-reduces of its gradients."""
    return ring.progress.all_reduce


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
        `final_state`, `env_steps`, and `episodes`, which `finished_episodes` reads.
    """
    common = {
        "allocate": BufferAllocator(
            agent, networks, carry, trajectory_length=length, device=device
        ),
        "clock": WallClock(),
        "whole_episodes": whole_episodes,
    }
    if not fused:
        functions = StepFunctions(agent, device=device)
        return SteppedCycle(functions, environment, trajectory_length=length, **common)
    traceable = environment.fused()
    functions = FusedFunctions(agent, traceable.step, trajectory_length=length, device=device)
    return FusedCycle(functions, traceable, **common)


def compilations(act_cycle):
    """Return how often each of the jitted functions that an act cycle has used was compiled."""
    names = ["step", "finish"]
    if isinstance(act_cycle, FusedCycle):
        names = ["cycle"] if act_cycle._restart is None else ["act_episodes", "finish"]
    return [getattr(act_cycle._functions, name)._cache_size() for name in names]


def collect_buffers(act_cycle):
    """Return a list that gets every buffer that an act cycle allocates from now on."""
    buffers, allocate = [], act_cycle._allocate
    act_cycle._allocate = lambda: buffers.append(allocate()) or buffers[-1]
    return buffers


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
    buffer = jax.jit(append_choice)(
        Buffer(trajectory=trajectory, num_rows=jnp.int32(num_rows)), action, extras
    )
    return buffer.trajectory, buffer.num_rows


def follow_episodes(reducers, trajectory):
    """Return the episode statistics `[T, B]` up to each row but the last, as an act cycle does.

    Args:
        reducers: `{name: EpisodeReducer}`.
        trajectory: of `T` steps; all episodes are new at its first row.
    """
    tracker = EpisodeTracker(reducers)
    num_envs = trajectory.env_steps.reward.shape[1]
    return jax.jit(tracker.follow)(tracker.init(num_envs), trajectory)[1]


def act(ring, actor_id=0):
    """Return the item of an actor's next act cycle, with the newest networks."""
    actor = ring.actors[actor_id]
    return actor.run_cycle(ring.learner.networks_on(ring.actor_devices[actor_id]), 0)


def are_fused(ring):
    """Return for each actor whether its act cycle is fused."""
    return [isinstance(actor.act_cycle, FusedCycle) for actor in ring.actors]


def actor_devices(ring):
    """Return the device of each actor."""
    return ring.actor_devices


def actor_cycles(ring):
    """Return the number of act cycles that each actor has completed."""
    return [actor.num_cycles for actor in ring.actors]


def episodes_interrupted(ring):
    """Return the number of episodes that end because a resumed ring recreates environments."""
    return sum(actor._boundary.num_interrupted for actor in ring.actors)


def wrap_act_cycle(ring, actor_id, wrap):
    """Replace an actor's act cycle by `wrap` of it."""
    actor = ring.actors[actor_id]
    actor.act_cycle = wrap(actor.act_cycle)


def know_no_platform(monkeypatch):
    """Have actors find out by compiling whether any platform can step an environment."""
    monkeypatch.setattr(environment_factory, "_PLATFORMS_OF_FUSED", ())


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
    return _item(state, state, trajectory, actor_id, sequence_number, 0, 1)


def _item(
    initial_state, final_state, trajectory, actor_id, sequence_number, policy_version, env_steps
):
    return TrajectoryItem(
        initial_state=initial_state,
        final_state=final_state,
        trajectory=trajectory,
        actor_id=actor_id,
        sequence_number=sequence_number,
        policy_version=policy_version,
        env_steps=env_steps,
        episodes=(),
    )


def trajectory_of(item):
    """Return the trajectory of an item, on the learner devices."""
    return item.trajectory


def info_of(item):
    """Return what is known of an item's trajectory; `run_ring` lists its attributes."""
    return item


def trajectory_deque(num_actors, *, slots_per_actor=1):
    """Return a deque of items and the ledger that it writes."""
    ledger = Ledger(num_actors)
    deque = TrajectoryDeque(num_actors=num_actors, slots_per_actor=slots_per_actor, ledger=ledger)
    return deque, ledger


def networks_deque(num_staged=1):
    """Return a deque of networks, which keeps the newest versions."""
    return NetworksDeque(num_staged)


def make_report(episodes, *, env_steps, policy_lag):
    """Return what hosts tell each other of a trajectory in which these episodes finished."""
    return TrajectoryReport(
        env_steps=env_steps,
        policy_lag=policy_lag,
        num_episodes=len(episodes),
        episodes=tuple(episodes),
    )


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
    return Learner(
        agent=agent,
        learner_devices=learner_devices,
        num_envs_per_device=num_envs // len(learner_devices.devices),
        key=jax.random.key(seed),
        clock=WallClock(),
        config=LearnerConfig(**settings),
    )


def update(learner, items):
    """Run a learner's next cycle; return its metrics, as `Learner` does."""
    return learner.run_cycle(items)


def published(learner):
    """Return the networks that actors get from a learner."""
    return learner.published


def publish(ring):
    """Give a ring's actors the learner's first networks, as `run` does before the first cycle."""
    ring.learner.stage(ring.stagings)


def act_in_turn(ring):
    """Return the items of a ring's next learner cycle, acted in this thread."""
    return modes.act_serially(ring)


def learn(ring, items):
    """Run a ring's next learner cycle in this thread."""
    modes.learn_serially(ring, items)


def update_step(learner):
    """Return one optimisation step, mapped over the learner devices: from the learner's state."""
    return shard(
        learner.update.step,
        learner.learner_devices,
        in_specs=(STATE_SPECS,),
        out_specs=(STATE_SPECS, REPLICATED),
    )


def mean_gradients(learner, dtype):
    """Return the function from the learner's state to the gradients' mean over the devices.

    They cross between devices in `dtype`.
    """

    def gradients(state):
        experience = experience_of(state)
        return loss_and_gradients(learner.update.agent, state, experience, dtype=dtype)[2]

    return shard(gradients, learner.learner_devices, in_specs=(STATE_SPECS,), out_specs=REPLICATED)


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
    all_reduce = AllReduce(devices, LearnerConfig(**settings), WallClock())
    all_reduce._is_on_cpu = is_on_cpu
    for cycle in cycles:
        all_reduce.measure(devices.replicate(networks), cycle)
    return all_reduce


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
    use = AllReduceUse(all_reduce)
    use.restart(num_cycles=since[0], num_updates=since[1])
    spent = all_reduce.clock.seconds
    for activity, seconds in ((UPDATE, update_s), (WAIT_FOR_TRAJECTORIES, waited_s)):
        spent[activity] = spent.get(activity, 0.0) + seconds
    return use.columns(num_cycles=now[0], num_updates=now[1])


# Runs that are disturbed, in this process


_STEPS = {
    "act": (Actor, "run_cycle"),
    "update": (Learner, "run_cycle"),
    "count": (Progress, "record"),
    "put": (TrajectoryDeque, "put"),
    "get": (TrajectoryDeque, "get"),
    "publish": (NetworksDeque, "append"),
    "take": (NetworksDeque, "take"),
    "copy": (autosave, "capture"),
}


def before(step, call, *, setattr=setattr):
    """Have a function called before a step of every ring, in the thread of that step.

    Args:
        step: an actor's act cycle (`act`) or a learner's updates of a cycle (`update`), whose
            function gets the actor or the learner, with `num_cycles` and `clock`; the count of what
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


def before_learning_from(call, *, setattr=setattr):
    """Have a function called with the trajectories of each learner cycle, before its updates."""
    run_cycle = Learner.run_cycle

    def after_call(self, items):
        call([item.trajectory for item in items])
        return run_cycle(self, items)

    setattr(Learner, "run_cycle", after_call)


def set_stop_deadlines(monkeypatch, *, deadline_s=None, of_stuck_s=None):
    """Set how long a run that ends waits for its threads, and if one of them hangs; in seconds."""
    if deadline_s is not None:
        monkeypatch.setattr(modes, "_STOP_DEADLINE_S", deadline_s)
    if of_stuck_s is not None:
        monkeypatch.setattr(modes, "_STOP_DEADLINE_OF_STUCK_S", of_stuck_s)


def set_watchdog_time(monkeypatch, now):
    """Have the watchdog of runs look at this clock: `() -> seconds`."""
    monkeypatch.setattr(modes, "Watchdog", functools.partial(Watchdog, now=now))
