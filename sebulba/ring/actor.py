"""One actor: its environments, its carry, and the act cycles that make trajectories."""

from collections.abc import Callable

import jax
import numpy as np
from jax.profiler import TraceAnnotation

from sebulba.agent import Agent
from sebulba.agent_check import validate_sharded_state
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.envs.base import EnvironmentFault
from sebulba.ring.clocks import COMPILE, ENVIRONMENT, TRANSFER, WallClock
from sebulba.ring.environments import ActorEnvironments
from sebulba.ring.episodes import StreamBoundary, end_episodes, finished_episodes
from sebulba.ring.ledger import Ledger
from sebulba.ring.records import ActCarry, Item, Tally, Unroll, UnrollInfo
from sebulba.types import Networks, Trajectory


class Actor:
    """Runs act cycles and places their trajectories on the learner devices.

    A cycle in which the environments fail is repeated in new ones, up to the allowed number of
    restarts; its env steps are discarded.
    """

    def __init__(
        self,
        *,
        actor_id: int,
        agent: Agent,
        device: jax.Device,
        environments: ActorEnvironments,
        carry: ActCarry,
        learner_devices: LearnerDevices,
        ledger: Ledger,
        clock: WallClock,
        max_restarts: int,
        on_warning: Callable[[str], None],
    ):
        """Start at the first cycle.

        Args:
            actor_id: number on this host.
            agent: the algorithm.
            device: acts.
            environments: started.
            carry: on the device.
            learner_devices: receive the trajectories.
            ledger: counts the env steps.
            clock: the clock of the thread that calls `act`.
            max_restarts: environment faults of this process after which the environments are
                recreated; the next one is raised.
            on_warning: takes a line of text, in the same thread.
        """
        self.actor_id = actor_id
        self.device = device
        self.environments = environments
        self.clock = clock
        self.num_restarts = 0  # after faults
        self._agent = agent
        self._learner_devices = learner_devices
        self._ledger = ledger
        self.max_restarts = max_restarts
        self._on_warning = on_warning
        self._no_statistics = carry.statistics
        self._placed_id = learner_devices.replicate(np.int32(actor_id))
        self._has_transferred = False  # a trajectory, and so compiled what that needs
        self.start_at(carry, num_cycles=0)

    def start_at(
        self, carry: ActCarry, *, num_cycles: int, boundary: StreamBoundary | None = None
    ) -> None:
        """Continue from the carry of an actor after `num_cycles` cycles.

        Args:
            carry: on the actor's device.
            num_cycles: cycles that the actor has completed.
            boundary: the last episodes of a stream that ended here: the environments are recreated
                before the next cycle, whose trajectory reports them. None: the stream continues.
        """
        self.carry = carry  # of the next cycle
        self.num_cycles = num_cycles
        self._boundary = boundary
        # The carry's actor state on the learner devices.
        self.placed_state = self._agent.shard_actor_state(carry.actor_state, self._learner_devices)

    def act(self, networks: Networks, policy_version: int) -> Item:
        """Act one trajectory with networks on this actor's device, and record it as in flight.

        Raises:
            EnvironmentFault: the environments failed, and no restart is left.
        """
        boundary, num_faults = self._boundary, 0
        if boundary is None and self.environments.is_recreated_before(self.num_cycles):
            boundary = end_episodes(self.carry.statistics, self.carry.env_step)
        while True:
            try:
                carry = self.carry if boundary is None else self._recreate_environments(num_faults)
                with TraceAnnotation("act cycle"):
                    carry, trajectory, tally = self.environments.act_cycle(networks, carry)
                break
            except EnvironmentFault as fault:
                # The env steps of a failed cycle did happen; the ledger must balance.
                self._ledger.collect(self.actor_id, fault.env_steps)
                self._ledger.move(self.actor_id, fault.env_steps, "in_flight", "discarded")
                self._allow_restart(fault)
                num_faults += 1
                # The stream ends after the last row that was delivered.
                if boundary is None:
                    boundary = end_episodes(self.carry.statistics, self.carry.env_step)
        unroll = self._place(carry, trajectory)
        info = self._describe(tally, policy_version, boundary or StreamBoundary(), num_faults)
        self._ledger.collect(self.actor_id, info.env_steps)
        self.carry, self.placed_state, self._boundary = carry, unroll.final_state, None
        self.num_cycles += 1
        self.clock.lap(TRANSFER)
        return Item(unroll=unroll, info=info, carry=carry)

    def _recreate_environments(self, num_faults: int) -> ActCarry:
        """Return the carry of the next cycle in new environments."""
        self.clock.begin(COMPILE)  # environments on an accelerator are compiled to try them
        env_step, env_state = self.environments.recreate(self.num_cycles, num_faults)
        self.clock.lap(ENVIRONMENT)
        return ActCarry(
            actor_state=self.carry.actor_state,
            env_step=env_step,
            statistics=self._no_statistics,
            env_state=env_state,
        )

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
            f"actor {self.actor_id}, cycle {self.num_cycles}: {type(fault).__name__}: {fault}."
            f" Discarding {fault.env_steps} env steps and recreating the environments (restart"
            f" {self.num_restarts} of {self.max_restarts}, actor.max_env_restarts)"
        )

    def _place(self, carry: ActCarry, trajectory: Trajectory) -> Unroll:
        """Return the cycle's unroll on the learner devices."""
        # The Python code of `shard_actor_state` may hang.
        self.clock.begin(TRANSFER if self._has_transferred else COMPILE)
        self._has_transferred = True
        devices = self._learner_devices
        with TraceAnnotation(TRANSFER):
            final_state = self._agent.shard_actor_state(carry.actor_state, devices)
            trajectory = devices.split(trajectory, axis=1)
        # Shapes never change, so checking the agent's sharding once is enough.
        if self.num_cycles == 0:
            validate_sharded_state(
                devices.share_of_host(final_state), carry.actor_state, devices.devices
            )
        return Unroll(
            initial_state=self.placed_state,
            final_state=final_state,
            trajectory=trajectory,
            actor_id=self._placed_id,
        )

    def _describe(
        self, tally: Tally, policy_version: int, boundary: StreamBoundary, num_faults: int
    ) -> UnrollInfo:
        episodes = (*boundary.finished, *finished_episodes(tally.episodes))
        return UnrollInfo(
            actor_id=self.actor_id,
            sequence_number=self.num_cycles,
            policy_version=policy_version,
            env_steps=int(tally.env_steps),
            num_episodes=len(episodes),
            episodes=episodes,
            episodes_cut=boundary.num_interrupted,
            env_restarts=num_faults,
        )
