"""Builds rings and runs them; `ring_parts` and `disturbances` hold the rest.

Most tests reach the classes of the ring through these three files: they say what they need, and ask
about what came out.
"""

import contextlib
import signal
import time

import jax.numpy as jnp

from sebulba.devices.roles import assign_devices
from sebulba.hosts.agreement import Agreement
from sebulba.process import start_daemon
from sebulba.ring import anakin
from sebulba.ring import make as making
from sebulba.ring import programs as making_programs
from sebulba.ring.deques import Closed
from sebulba.ring.fused_cycle import FusedCycle
from sebulba.ring.records import DueTimes as DueTimes
from sebulba.ring.ring import Observer as Observer
from sebulba.ring.running import run as run
from sebulba.run import autosave
from sebulba.run.all_reduce import AllReduceProbe, AllReduceUse
from sebulba.run.replicas import ReplicaCheck
from sebulba.run.resume import resume as resume_from
from sebulba.run.rows import MetricsRows
from sebulba.run.warm_start import InitialNetworks
from sebulba.storage.checkpoints.checkpointer import Checkpointer
from sebulba.storage.metrics.writers import MetricsFanOut
from sebulba.types import EnvStepCount


def keep_observations(monkeypatch):
    """Let trajectories of the rings made from now on hold stacks, and not each frame once."""
    monkeypatch.setattr(making_programs, "_frames_kept_once", _no_frames)


def _no_frames(config, environment):
    return None


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
    ring = make_ring(config)
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
    return total_of(ring, "acted") > total_of(ring, "learned")


def total_of(ring, stage):
    """Return the env steps of all actors of a ring in a stage, or in any (`acted`)."""
    return sum(account[stage] for account in ring.ledger.balance())


def resume(ring, directory, which="latest"):
    """Bring a new ring to a checkpoint; return `level`, `num_cycles`, `env_steps`, and `str`."""
    return resume_from(ring, directory, which)


def stop(ring):
    """Have a ring stop as a signal does."""
    ring.end.signal = signal.SIGTERM


def has_reached_goal(ring):
    """Return whether a ring has ended because of its goal."""
    return ring.end.goal


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


def publish(ring):
    """Give a ring's actors the learner's first networks, as `run` does before the first cycle."""
    ring.publish()


def act(ring, actor_id=0):
    """Return the item of an actor's next act cycle, with the newest networks."""
    actor = ring.actors[actor_id]
    return actor.act(lambda: (0, ring.learner.networks_on(actor.device)), ring.ledger)


def act_in_turn(ring):
    """Return the items of a ring's next learner cycle, acted in this thread."""
    return ring.act_in_turn()


def learn(ring, items):
    """Run a ring's next learner cycle in this thread."""
    ring.learn(items)


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


def trace_update(ring, item):
    """Return the traced program of a learner cycle with one update, which takes an item."""
    learner = ring.learner
    program = learner.programs.update(1, has_unrolls=True)
    return program.trace(learner.state, (item.unroll,), EnvStepCount.of(0))


def program_of_cycles(ring):
    """Return the one program of a ring, whose cycles have an update."""
    return anakin.Anakin(ring).program(1)


def trace_program_of_cycles(ring):
    """Return the traced call of that program for one learner cycle."""
    one_program = anakin.Anakin(ring)
    return one_program.program(1).call.trace(*one_program.begin(), jnp.int32(1))
