"""The ring: act, take, learn, report.

`Ring.learn` is one learner cycle. Threads and one thread (`sebulba.ring.running`) differ in who
calls it. One program (`sebulba.ring.anakin`) computes several cycles, then takes the same steps for
them: `count` for each, and `publish` and `report` once.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax

from sebulba.agent import Metrics
from sebulba.config import RunConfig
from sebulba.errors import PLACE
from sebulba.ring.actor import Actor
from sebulba.ring.clocks import (
    AGREEMENT,
    COMPILE,
    METRICS,
    PUBLISH,
    WAIT_FOR_NETWORKS,
    WAIT_FOR_QUEUE,
    WAIT_FOR_TRAJECTORIES,
    WallClock,
)
from sebulba.ring.deques import NetworksDeque, TrajectoryDeque
from sebulba.ring.learner import Learner
from sebulba.ring.ledger import Ledger
from sebulba.ring.programs import RingPrograms
from sebulba.ring.progress import Progress
from sebulba.ring.records import CycleReport, Delivery, Point, Unroll, UnrollInfo
from sebulba.ring.run_end import RunEnd
from sebulba.ring.schedule import Schedule
from sebulba.types import Networks


class Observer:
    """Looks at a run without touching it; these methods do nothing."""

    def on_cycle(self, report: CycleReport) -> None:
        """Look at a learner cycle that has ended, in the learner's thread.

        The ring is between two cycles, and stays there until this returns: copy, and never wait for
        a disk or another thread. An exception ends the run as a failure of the learner.
        """

    def on_poll(self) -> None:
        """Work outside the learner's thread.

        Called about five times a second in the thread that called `run`. An exception ends the run.
        """

    def close(self, end: RunEnd) -> None:
        """Finish, in the thread that called `run`, after all threads have ended.

        If `end.is_stuck`, some have not: this must not touch the environments, and if
        `end.is_learner_stuck`, nothing of the ring.
        """


Gather = Callable[[Sequence[UnrollInfo]], Sequence[UnrollInfo]]
"""Takes the infos of this host's unrolls of a learner cycle; returns those of all hosts.

On several hosts it also agrees on a signal to stop, and then sets `RunEnd.signal` on all of them.
"""


def alone(infos: Sequence[UnrollInfo]) -> Sequence[UnrollInfo]:
    """Gather the infos of the only host."""
    return infos


class Ring:
    """Actors, learner, and the two deques between them."""

    def __init__(
        self,
        learner: Learner,
        actors: Sequence[Actor],
        schedule: Schedule,
        goal: RunConfig,
        *,
        programs: RingPrograms | None = None,
        end: RunEnd | None = None,
        gather: Gather = alone,
    ):
        """Connect the actors and the learner; nothing runs yet.

        Args:
            learner: with the networks that the run begins with.
            actors: numbered from 0 in this order.
            schedule: the order of their trajectories.
            goal: `run`, of which the goal and the return window are used.
            programs: the result of `make_programs`, which rings of other seeds can share.
            end: why the run ends; None: a new one.
            gather: takes the infos of this host's unrolls, and returns those of all hosts.
        """
        self.learner = learner
        self.actors = tuple(actors)
        self.schedule = schedule
        self.end = end or RunEnd()
        self.ledger = Ledger(len(self.actors))
        self.trajectories = TrajectoryDeque(
            num_actors=len(self.actors),
            slots_per_actor=schedule.slots_per_actor,
            ledger=self.ledger,
        )
        self.stagings = {actor.device: NetworksDeque(schedule.num_staged) for actor in self.actors}
        self.progress = Progress(
            config=goal,
            end=self.end,
            clocks=self.clocks,
            is_awaited=lambda actor_id: not self.actors[actor_id].collector.has_joined,
        )
        self._programs = programs
        self.is_between_cycles = True  # False: the learner's state and the points do not agree
        self.reset_points()
        self._gather = gather
        self._has_gathered = False

    @property
    def clocks(self) -> dict[str, list[WallClock]]:
        """The clocks of the threads by their kind."""
        return {"actor": [each.clock for each in self.actors], "learner": [self.learner.clock]}

    @property
    def programs(self) -> RingPrograms:
        """The agent and the jitted functions, which rings of other seeds can share."""
        if self._programs is None:
            raise ValueError("programs: expected those of make_programs, got none")
        return self._programs

    @property
    def points(self) -> list[Point]:
        """Each actor's point after its last trajectory that was learned from, for checkpoints."""
        self.learner.set_deferred()
        return self._points

    @points.setter
    def points(self, points: list[Point]) -> None:
        self._points = points

    def reset_points(self) -> None:
        """Take the actors' present points as those that were learned from."""
        self.points = [actor.point for actor in self.actors]

    def act(self, actor_id: int) -> None:
        """Put an actor's next trajectory onto the deque; in the actor's thread.

        Waits until the networks for it are staged, and then until the deque has room.

        Raises:
            Closed: the run is stopping.
            EnvironmentFault: the environments failed, and no restart is left.
        """
        actor = self.actors[actor_id]
        with annotate_errors(lambda: where_actor(actor)):
            wanted = self.schedule.policy_version(actor_id, actor.point.cycle)

            def take_networks() -> tuple[int, Networks]:
                version, networks = self.stagings[actor.device].take(wanted)
                # A program that waits for its networks to arrive would block the programs of the
                # device's other actors behind it.
                jax.block_until_ready(networks)
                actor.clock.lap(WAIT_FOR_NETWORKS)
                return version, networks

            if actor.joins_later:
                actor.collector.wait()
                actor.join(self.progress.env_steps)
            self.trajectories.put(actor.act(take_networks, self.ledger))
            actor.clock.lap(WAIT_FOR_QUEUE)

    def take(self) -> list[Delivery]:
        """Take the trajectories of the next learner cycle, waiting for them.

        Raises:
            Closed: the run is stopping.
        """
        with annotate_errors(lambda: where_learner(self.learner)):
            turn = self.schedule.actors_to_take(self.learner.num_cycles)
            deliveries = [self.trajectories.get(actor_id) for actor_id in turn]
            self.learner.clock.lap(WAIT_FOR_TRAJECTORIES)
            return deliveries

    def act_in_turn(self) -> list[Delivery]:
        """Act the trajectories of the next learner cycle in this thread, in actor order."""
        deliveries = []
        for actor_id in self.schedule.actors_in_turn(self.learner.num_cycles):
            self.actors[actor_id].clock.restart()
            self.act(actor_id)
            deliveries.append(self.trajectories.get(actor_id))
        self.learner.clock.restart()
        return deliveries

    def learn(self, deliveries: Sequence[Delivery], observers: Sequence[Observer] = ()) -> None:
        """Run one learner cycle; in the learner's thread.

        Raises:
            NonFiniteError: too many updates in a row were not finite.
            Exception: the agent, a collective or an observer failed.
        """
        place = where_learner(self.learner)  # this cycle, also once the learner has counted it
        with annotate_errors(lambda: place):
            with self.in_cycle():
                metrics = self.learner.update(
                    [each.unroll for each in deliveries], env_steps=self.progress.env_steps
                )
                self.publish()
                counted = self.count([each.info for each in deliveries], metrics)
                for each in deliveries:
                    self.points[each.info.actor_id] = each.point
            self.report([counted], observers, unrolls=[each.unroll for each in deliveries])
            # After the observers, so that a checkpoint can hold the frozen state.
            self.learner.check()

    @contextlib.contextmanager
    def in_cycle(self) -> Iterator[None]:
        """Set `is_between_cycles` to False during the block, and for good if the block raises."""
        self.is_between_cycles = False
        yield
        self.is_between_cycles = True

    def publish(self) -> None:
        """Append the newest networks to the staging deque of every actor device."""
        for device, staging in self.stagings.items():
            staging.append(self.learner.num_cycles, self.learner.networks_on(device))
        self.learner.clock.lap(PUBLISH)

    def older_networks(self) -> list[Networks]:
        """Return the networks of the `policy_lag` versions before the current, the oldest first.

        The next act cycles need them. Before the first learner cycles, version 0 stands for all.
        """
        self.learner.set_deferred()
        device = self.actors[0].device
        current = self.learner.num_cycles
        staged = self.stagings[device].staged
        older = [networks for version, networks in staged if version < current]
        num_older = self.schedule.num_staged - 1
        older = older[max(0, len(older) - num_older) :]  # More, if the current are not staged.
        first = older[0] if older else self.learner.networks_on(device)
        return [first] * (num_older - len(older)) + older

    def stage_older(self, older: Sequence[Networks]) -> None:
        """Stage `older_networks` of a ring at the learner's cycle, except those that are staged."""
        first = self.learner.num_cycles - len(older)
        for device, staging in self.stagings.items():
            newest = staging.newest_version
            for version, networks in enumerate(older, start=first):
                if version > newest:
                    staging.append(version, jax.device_put(networks, device))

    def count(self, infos: Sequence[UnrollInfo], metrics: Sequence[Metrics]) -> "CountedCycle":
        """Count what a learner cycle learned from, and look whether the goal is reached."""
        clock = self.learner.clock
        # Gathering hangs if another host does. It compiles once.
        clock.begin(AGREEMENT if self._has_gathered else COMPILE)
        of_all_hosts = self._gather(infos)
        self._has_gathered = True
        num_updates = sum(next(iter(each.values())).shape[0] for each in metrics)
        lags = self.progress.count(infos, of_all_hosts, num_updates=num_updates)
        for info in infos:
            self.ledger.move(info.actor_id, info.env_steps, "in_flight", "learned")
        clock.lap(METRICS)
        return CountedCycle(infos=of_all_hosts, policy_lags=lags, metrics=metrics)

    def report(
        self,
        counted: Sequence["CountedCycle"],
        observers: Sequence[Observer],
        *,
        unrolls: Sequence[Unroll] = (),
    ) -> None:
        """Report learner cycles to the observers: one, or those of a program of several."""
        report = CycleReport(
            num_cycles=self.learner.num_cycles,
            infos=[info for cycle in counted for info in cycle.infos],
            policy_lags=[lag for cycle in counted for lag in cycle.policy_lags],
            metrics=[each for cycle in counted for each in cycle.metrics],
            queue_depth=len(self.trajectories),
            unrolls=unrolls,
        )
        for observer in observers:
            try:
                observer.on_cycle(report)
            except BaseException as error:
                error.add_note(f"{type(observer).__name__} raised it in `on_cycle`.")
                raise
        self.learner.clock.lap(METRICS)

    def close(self) -> None:
        """Close both deques and end every other wait, so that every thread ends."""
        self.trajectories.close()
        for staging in self.stagings.values():
            staging.close()
        for actor in self.actors:
            actor.collector.interrupt()

    def close_environments(self) -> None:
        """Release the environments; no actor may be running."""
        for actor in self.actors:
            actor.collector.close()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CountedCycle:
    """A learner cycle that has been counted, for its report."""

    infos: Sequence[UnrollInfo]  # of all hosts
    policy_lags: Sequence[int]  # of these unrolls, in learner cycles
    metrics: Sequence[Metrics]


def where_actor(actor: Actor) -> str:
    """Return where an actor is, for messages."""
    return f"actor {actor.actor_id}, cycle {actor.point.cycle}"


def where_learner(learner: Learner) -> str:
    """Return where the learner is, for messages."""
    return f"the learner, cycle {learner.num_cycles}"


@contextlib.contextmanager
def annotate_errors(where: Callable[[], str]) -> Iterator[None]:
    """Add a note that says where it happened to an exception that passes through."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{PLACE} {where()}.")
        raise
