"""One actor: its environments, its state, and the loop that turns networks into trajectories."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp

from sebulba.act_cycle import ActCarry, ActCycle
from sebulba.agent import Agent
from sebulba.devices import LearnerDevices
from sebulba.episodes import finished_episodes
from sebulba.ledger import Ledger
from sebulba.queues import NetworksDeque, TrajectoryDeque
from sebulba.schedule import Schedule
from sebulba.timing import TRANSFER, WAIT_FOR_NETWORKS, WAIT_FOR_QUEUE, WallClock
from sebulba.types import Networks, TrajectoryItem
from sebulba.validation import validate_sharded_state


class Actor:
    """Runs act cycles and places what they give on the learner devices."""

    def __init__(
        self,
        *,
        actor_id: int,
        agent: Agent,
        act_cycle: ActCycle,
        carry: ActCarry,
        learners: LearnerDevices,
        ledger: Ledger,
        clock: WallClock,
    ):
        self.actor_id = actor_id
        self.clock = clock
        self._agent = agent
        self._act_cycle = act_cycle
        self._learners = learners
        self._ledger = ledger
        self.start_at(carry, num_cycles=0)

    def start_at(self, carry: ActCarry, *, num_cycles: int) -> None:
        """Goes on from where an actor stood after `num_cycles` cycles; the state is donated."""
        self.num_cycles = num_cycles
        self._carry = carry
        # A copy, since the first cycle donates the state; from then on each cycle's final state is
        # the next one's initial state.
        state = jax.tree.map(jnp.copy, carry.actor_state)
        self._initial_state = self._agent.shard_actor_state(state, self._learners)
        self.resume_point = dataclasses.replace(carry, actor_state=state)

    def run_cycle(self, networks: Networks, policy_version: int) -> TrajectoryItem:
        """Acts one trajectory with networks on this actor's device."""
        self._carry, result = self._act_cycle(networks, self._carry)
        env_steps = int(result.env_steps)
        final_state = self._agent.shard_actor_state(result.final_state, self._learners)
        if self.num_cycles == 0:
            validate_sharded_state(final_state, result.final_state)
        self._ledger.act(self.actor_id, env_steps)
        item = TrajectoryItem(
            initial_state=self._initial_state,
            final_state=final_state,
            trajectory=self._learners.split(result.trajectory, axis=1),
            actor_id=self.actor_id,
            sequence_number=self.num_cycles,
            policy_version=policy_version,
            env_steps=env_steps,
            episodes=finished_episodes(result.episodes),
            resume_point=dataclasses.replace(self._carry, actor_state=result.final_state),
        )
        self._initial_state = final_state
        self.num_cycles += 1
        self.clock.lap(TRANSFER)
        return item


def run_actor(
    actor: Actor, *, schedule: Schedule, staging: NetworksDeque, trajectories: TrajectoryDeque
) -> None:
    """Acts until the deques are closed.

    Raises:
        Closed: the run is stopping.
    """
    actor.clock.restart()
    for cycle in itertools.count(actor.num_cycles):
        min_version = schedule.min_policy_version(actor.actor_id, cycle)
        version, networks = staging.newest(min_version)
        # Otherwise the first act cycle with networks that are still on their way would hold up the
        # device's other actors.
        jax.block_until_ready(networks)
        actor.clock.lap(WAIT_FOR_NETWORKS)
        item = actor.run_cycle(networks, version)
        trajectories.put(item)
        actor.clock.lap(WAIT_FOR_QUEUE)
