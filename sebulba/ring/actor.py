"""One actor: its point in its stream, and the trajectories that its collector acts from there."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
from jax.profiler import TraceAnnotation

from sebulba.agent import Agent, declared
from sebulba.agent_check import validate_sharded_state
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.envs.base import EnvironmentFault
from sebulba.ring.clocks import COMPILE, TRANSFER, WallClock
from sebulba.ring.collectors import Collector, CollectorLost, StreamLost
from sebulba.ring.episodes import end_episodes
from sebulba.ring.ledger import Ledger
from sebulba.ring.records import NOTHING_BEFORE, Collected, Delivery, Point, Unroll, UnrollInfo
from sebulba.types import Networks

# A point at which this many collectors in turn are lost is taken for what ends them. Machines that
# are taken away may end several by chance.
_MAX_LOSSES_AT_A_POINT = 8


class Actor:
    """Has trajectories acted from its point on, and places them on the learner devices.

    - An environment fault ends the stream: the cycle is acted in new environments, up to the
      allowed number of restarts. Its env steps are discarded.
    - If the collector is lost, the same point is asked for again: nothing has changed.
    """

    def __init__(
        self,
        *,
        actor_id: int,
        collector: Collector,
        point: Point,
        agent: Agent,
        device: jax.Device,
        learner_devices: LearnerDevices,
        clock: WallClock,
        max_restarts: int = 0,
        recreate_every: int | None = None,
        on_warning: Callable[[str], None] = print,
    ):
        """Start at a point.

        Args:
            actor_id: number on this host.
            collector: acts.
            point: `collector.begin` for a new run.
            agent: the algorithm.
            device: holds the networks that the collector is given.
            learner_devices: receive the trajectories.
            clock: the clock of the thread that calls `act`.
            max_restarts: environment faults of this process after which the environments are
                recreated; the next one is raised.
            recreate_every: act cycles after which environments are recreated; None: never.
            on_warning: takes a line of text, in the same thread.
        """
        self.actor_id = actor_id
        self.collector = collector
        self.device = device
        self.clock = clock
        self.max_restarts = max_restarts
        self.num_restarts = 0  # after faults
        self._agent = agent
        self._learner_devices = learner_devices
        self._recreate_every = recreate_every
        self._on_warning = on_warning
        self._placed_id = learner_devices.replicate(np.int32(actor_id))
        self._has_transferred = False  # a trajectory, and so compiled what that needs
        self.continue_at(point)

    def continue_at(self, point: Point) -> None:
        """Continue from another point, such as a checkpoint's."""
        self.point = point
        # The point's actor state on the learner devices.
        self.placed_state = self._agent.shard_actor_state(
            point.carry.actor_state, self._learner_devices
        )

    def is_recreated_at(self, point: Point) -> bool:
        """Whether environments are recreated before the point's cycle in any case."""
        every = self._recreate_every
        return every is not None and point.cycle > 0 and point.cycle % every == 0

    @property
    def joins_later(self) -> bool:
        """Whether the actor has not acted, and its collector may come long after the run began."""
        return self.point.boundary is NOTHING_BEFORE

    def join(self, env_steps: int) -> None:
        """Begin to act in a run that has taken `env_steps` env steps on all hosts."""
        carry = self.point.carry
        advance = declared(self._agent, Agent, "advance_actor_state")
        carry = dataclasses.replace(carry, actor_state=advance(carry.actor_state, env_steps))
        self.continue_at(dataclasses.replace(self.point, carry=carry))

    def act(self, take: Callable[[], tuple[int, Networks]], ledger: Ledger) -> Delivery:
        """Have one trajectory acted from the present point; the ledger records it as in flight.

        Args:
            take: returns the networks on this actor's device, after their version. It is called
                again for each collector, since the networks may have aged while one was awaited.
            ledger: accounts of the env steps.

        Raises:
            EnvironmentFault: the environments failed, and no restart is left.
            CollectorLost: every collector was lost that was asked for the point.
        """
        point = self.point
        if point.boundary is None and self.is_recreated_at(point):
            point = self._ended(point)
        num_losses = 0
        while True:
            try:
                self.collector.wait()
                policy_version, networks = take()
                collected = self.collector.collect(networks, point)
                break
            except EnvironmentFault as fault:
                # The env steps of a failed cycle did happen; the ledger must balance.
                ledger.collect(self.actor_id, fault.env_steps)
                ledger.move(self.actor_id, fault.env_steps, "in_flight", "discarded")
                self._allow_restart(fault)
                point = dataclasses.replace(self._ended(point), attempt=point.attempt + 1)
            except StreamLost as lost:
                self._on_warning(
                    f"actor {self.actor_id}, cycle {point.cycle}: new episodes begin, since the"
                    f" stream cannot continue in other environments: {lost}"
                )
                point = self._ended(point)
            except CollectorLost as lost:
                num_losses += 1
                if num_losses == _MAX_LOSSES_AT_A_POINT:
                    lost.add_note(f"{num_losses} collectors in turn were lost at this point.")
                    raise
        unroll = self._place(collected)
        tally = jax.tree.map(np.asarray, collected.tally)
        num_episodes, episodes = int(tally.num_episodes), tally.ended.episodes
        num_interrupted = 0
        if point.boundary is not None:
            num_episodes += len(point.boundary.finished)
            episodes = point.boundary.finished.then(episodes)
            num_interrupted = point.boundary.num_interrupted
        info = UnrollInfo(
            actor_id=self.actor_id,
            sequence_number=point.cycle,
            policy_version=policy_version,
            env_steps=int(tally.env_steps),
            num_episodes=num_episodes,
            episodes=episodes,
            episodes_cut=num_interrupted,
            env_restarts=point.attempt,
        )
        ledger.collect(self.actor_id, info.env_steps)
        self.point = self._point_after(point, collected)
        self.placed_state = unroll.final_state
        self.clock.lap(TRANSFER)
        return Delivery(unroll=unroll, info=info, point=self.point)

    def _allow_restart(self, fault: EnvironmentFault) -> None:
        """Count a restart and warn of it, or raise the fault if none is left."""
        if self.num_restarts >= self.max_restarts:
            if self.num_restarts:
                fault.add_note(
                    f"All {self.num_restarts} restarts are used (actor.max_env_restarts)."
                )
            raise fault
        self.num_restarts += 1
        self._on_warning(
            f"actor {self.actor_id}, cycle {self.point.cycle}: {type(fault).__name__}: {fault}."
            f" Discarding {fault.env_steps} env steps and recreating the environments (restart"
            f" {self.num_restarts} of {self.max_restarts}, actor.max_env_restarts)"
        )

    def _place(self, collected: Collected) -> Unroll:
        """Return the cycle's unroll on the learner devices."""
        # The Python code of `shard_actor_state` may hang.
        self.clock.begin(TRANSFER if self._has_transferred else COMPILE)
        self._has_transferred = True
        devices, actor_state = self._learner_devices, collected.carry.actor_state
        with TraceAnnotation(TRANSFER):
            final_state = self._agent.shard_actor_state(actor_state, devices)
            trajectory = devices.split(collected.trajectory, axis=1)
        # Shapes never change, so checking the agent's sharding once is enough.
        if self.point.cycle == 0:
            validate_sharded_state(devices.share_of_host(final_state), actor_state, devices.devices)
        return Unroll(
            initial_state=self.placed_state,
            final_state=final_state,
            trajectory=trajectory,
            actor_id=self._placed_id,
        )

    def _point_after(self, point: Point, collected: Collected) -> Point:
        """Return where the actor continues after a point's cycle."""
        begins = point.boundary is not None or point.cycle == 0
        actions = () if begins else point.actions
        if actions is not None and len(actions) < self.collector.max_kept_cycles:
            of_cycle = jax.tree.map(np.array, collected.trajectory.action)
            actions = (*actions, of_cycle)
        else:
            actions = None
        return Point(
            cycle=point.cycle + 1, carry=collected.carry, began=point.stream, actions=actions
        )

    def _ended(self, point: Point) -> Point:
        """Return the point at which the stream has ended after its last delivered row."""
        if point.boundary is not None:
            return point
        boundary = end_episodes(
            point.carry.statistics,
            point.carry.env_step,
            num_players=self.collector.spec.num_players,
        )
        return dataclasses.replace(point, boundary=boundary)
