"""Disturbs runs in this process: before a step, by other limits, and in the place of collectors."""

import functools

from sebulba.ring import act_functions, calls, running
from sebulba.ring import make as making
from sebulba.ring.actor import Actor
from sebulba.ring.collectors import CollectorLost
from sebulba.ring.deques import NetworksDeque, TrajectoryDeque
from sebulba.ring.learner import Learner
from sebulba.ring.progress import Progress
from sebulba.run import autosave, watchdog
from tests.rings import act

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


def know_no_platform(monkeypatch):
    """Have no platform step environments outside JAX inside jit by itself."""
    monkeypatch.setattr(act_functions, "_PLATFORMS_OF_FUSED", ())


def wrap_act_cycle(ring, actor_id, wrap):
    """Replace an actor's act cycle by `wrap` of it."""
    collector = ring.actors[actor_id].collector
    collector.act_cycle = wrap(collector.act_cycle)


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
