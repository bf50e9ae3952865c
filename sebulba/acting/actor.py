"""One actor: its environments, its state, and the loop that makes trajectories."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from jax.profiler import TraceAnnotation

from sebulba.acting.act_cycle import ActCarry, CycleResult
from sebulba.acting.env_reset import (
    EnvResetPolicy,
    LiveEnvironment,
    StreamBoundary,
    boundary_after,
)
from sebulba.acting.episodes import finished_episodes
from sebulba.agent import Agent
from sebulba.agent_check import validate_sharded_state
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.envs.base import EnvironmentFault
from sebulba.ring.ledger import Ledger
from sebulba.ring.queues import NetworksDeque, TrajectoryDeque
from sebulba.ring.schedule import Schedule
from sebulba.ring.timing import (
    COMPILE,
    ENVIRONMENT,
    TRANSFER,
    WAIT_FOR_NETWORKS,
    WAIT_FOR_QUEUE,
    WallClock,
)
from sebulba.types import ActorState, Networks, TrajectoryItem


class Actor:
    """Runs act cycles and places their trajectories on the learner devices.

    Recreates its environments after a fault, up to the allowed number of restarts, and at fixed
    cycles. A failed cycle is repeated; its env steps are discarded.
    """

    def __init__(
        self,
        *,
        actor_id: int,
        agent: Agent,
        live: LiveEnvironment,
        reset_policy: EnvResetPolicy,
        carry: ActCarry,
        learner_devices: LearnerDevices,
        ledger: Ledger,
        clock: WallClock,
    ):
        self.actor_id = actor_id
        self.clock = clock
        self.environment = live.environment
        self.reset_policy = reset_policy
        self.num_restarts = 0  # after faults, of this process
        self._agent = agent
        self.act_cycle = live.act_cycle
        self._learner_devices = learner_devices
        self._ledger = ledger
        self._no_statistics = carry.statistics
        self._has_transferred = False  # a trajectory, and so compiled what that needs
        self._carry: ActCarry  # of the next cycle, which donates its actor state
        self.resume_point: ActCarry  # a copy for checkpoints and repeated cycles, never donated
        self.start_at(carry, num_cycles=0)

    @property
    def actor_state(self) -> ActorState:
        """The actor state before the next cycle, which donates it."""
        return self._carry.actor_state

    def start_at(self, carry: ActCarry, *, num_cycles: int) -> None:
        """Continue from the carry of an actor after `num_cycles` cycles."""
        self.num_cycles = num_cycles
        self._set_carry(carry)
        self._boundary = StreamBoundary()  # not reported yet
        self._restarts_of_cycle = 0
        self._num_restarts_reported = self.num_restarts
        # Whether row 0 of the next trajectory does not follow on the last one that was delivered.
        self._is_stream_ended = self.reset_policy.is_due(num_cycles)
        self._is_reset_due = self._is_stream_ended
        self.initial_state = self._agent.shard_actor_state(
            self.resume_point.actor_state, self._learner_devices
        )

    def end_stream(self, boundary: StreamBoundary) -> None:
        """Have the environments recreated before the next cycle.

        Args:
            boundary: the stream's last episodes; the next trajectory reports them.
        """
        self._boundary = boundary
        self._is_stream_ended = self._is_reset_due = True

    def run_cycle(self, networks: Networks, policy_version: int) -> TrajectoryItem:
        """Act one trajectory with networks on this actor's device.

        Raises:
            EnvironmentFault: the environment failed, and no restart is left.
        """
        result = self._act(networks)
        # The Python code of `shard_actor_state` may hang.
        self.clock.begin(TRANSFER if self._has_transferred else COMPILE)
        self._has_transferred = True
        env_steps = int(result.env_steps)
        with TraceAnnotation(TRANSFER):
            final_state = self._agent.shard_actor_state(result.final_state, self._learner_devices)
            trajectory = self._learner_devices.split(result.trajectory, axis=1)
        # Shapes never change, so checking the agent's sharding once is enough.
        if self.num_cycles == 0:
            validate_sharded_state(
                self._learner_devices.share_of_host(final_state),
                result.final_state,
                self._learner_devices.devices,
            )
        self._ledger.collect(self.actor_id, env_steps)
        self.resume_point = dataclasses.replace(self._carry, actor_state=result.final_state)
        self._is_stream_ended = False
        before, self._boundary = self._boundary, StreamBoundary()
        if self.reset_policy.is_due(self.num_cycles + 1):
            self.end_stream(boundary_after(self.resume_point))
        item = TrajectoryItem(
            initial_state=self.initial_state,
            final_state=final_state,
            trajectory=trajectory,
            actor_id=self.actor_id,
            sequence_number=self.num_cycles,
            policy_version=policy_version,
            env_steps=env_steps,
            episodes=(
                *before.finished,
                *finished_episodes(result.episodes),
                *self._boundary.finished,
            ),
            episodes_cut=before.num_interrupted + self._boundary.num_interrupted,
            env_restarts=self.num_restarts - self._num_restarts_reported,
            resume_point=self.resume_point,
        )
        self._boundary = StreamBoundary()
        self._num_restarts_reported = self.num_restarts
        self._restarts_of_cycle = 0
        self.initial_state = final_state
        self.num_cycles += 1
        self.clock.lap(TRANSFER)
        return item

    def close(self) -> None:
        """Release the environments; no cycle may be running."""
        self.environment.close()

    def _act(self, networks: Networks) -> CycleResult:
        while True:
            try:
                if self._is_reset_due:
                    self._recreate_environments()
                with TraceAnnotation("act cycle"):
                    self._carry, result = self.act_cycle(networks, self._carry)
                return result
            except EnvironmentFault as fault:
                # The env steps of a failed cycle did happen; the ledger must balance.
                self._ledger.collect(self.actor_id, fault.env_steps)
                self._ledger.move(self.actor_id, fault.env_steps, "in_flight", "discarded")
                if self.num_restarts >= self.reset_policy.max_restarts:
                    if self.num_restarts:
                        fault.add_note(
                            f"All {self.num_restarts} restarts are used (actor.max_env_restarts)."
                        )
                    raise
                self._restart_after(fault)

    def _restart_after(self, fault: EnvironmentFault) -> None:
        self.num_restarts += 1
        self._restarts_of_cycle += 1
        self.reset_policy.on_warning(
            f"actor {self.actor_id}, cycle {self.num_cycles}: {type(fault).__name__}: {fault}."
            f" Discarding {fault.env_steps} env steps and recreating the environments (restart"
            f" {self.num_restarts} of {self.reset_policy.max_restarts}, actor.max_env_restarts)"
        )
        # The stream ends after the last row that was delivered, and may have ended there already.
        self.end_stream(
            self._boundary if self._is_stream_ended else boundary_after(self.resume_point)
        )
        self._set_carry(self.resume_point)

    def _set_carry(self, carry: ActCarry) -> None:
        # A copy, since the next cycle donates the state and `resume_point` must outlive it.
        state = jax.tree.map(jnp.copy, carry.actor_state)
        self._carry = dataclasses.replace(carry, actor_state=state)
        self.resume_point = carry

    def _recreate_environments(self) -> None:
        self.clock.begin(COMPILE)
        self.environment.close()
        seed = self.reset_policy.environment_seed(self.num_cycles, self._restarts_of_cycle)
        try:
            live = self.reset_policy.recreate(seed)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"its constructor or reset raised {type(error).__name__}: {error}"
            ) from error
        self.environment, self.act_cycle = live.environment, live.act_cycle
        self._carry = dataclasses.replace(
            self._carry,
            env_step=live.env_step,
            env_state=live.env_state,
            statistics=self._no_statistics,
        )
        self._is_reset_due = False
        self.clock.lap(ENVIRONMENT)


def run_actor(
    actor: Actor, *, schedule: Schedule, staging: NetworksDeque, trajectories: TrajectoryDeque
) -> None:
    """Run act cycles until the deques are closed.

    Raises:
        Closed: the run is stopping.
    """
    actor.clock.restart()
    for cycle in itertools.count(actor.num_cycles):
        version, networks = staging.take(schedule.policy_version(actor.actor_id, cycle))
        # A program that waits for its networks to arrive would block the programs of the device's
        # other actors behind it.
        jax.block_until_ready(networks)
        actor.clock.lap(WAIT_FOR_NETWORKS)
        item = actor.run_cycle(networks, version)
        trajectories.put(item)
        actor.clock.lap(WAIT_FOR_QUEUE)
