"""The learner: takes trajectories, runs optimisation steps, publishes networks."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, Metrics
from sebulba.agent_check import num_updates_of
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices, fetch_replicated
from sebulba.devices.xla_cpu import bound_programs_in_flight
from sebulba.learning.non_finite import NonFiniteCounts, NonFiniteError
from sebulba.learning.progress import Progress
from sebulba.learning.update import STATE_SPECS, LearnerState, Share, Update, init_state
from sebulba.ring.queues import NetworksDeque, TrajectoryDeque
from sebulba.ring.run_end import RunEnd
from sebulba.ring.schedule import Schedule
from sebulba.ring.timing import (
    AGREEMENT,
    CHECKPOINT,
    COMPILE,
    METRICS,
    PUBLISH,
    UPDATE,
    WAIT_FOR_TRAJECTORIES,
    WallClock,
)
from sebulba.types import Networks, PyTree, TrajectoryItem


class Learner:
    """Runs learner cycles over the learner devices."""

    def __init__(
        self,
        *,
        agent: Agent,
        learner_devices: LearnerDevices,
        num_envs_per_device: int,
        key: jax.Array,
        clock: WallClock,
        mapping_name: mapping.Mapping = "shard_map",
        max_non_finite_updates: int = 1,
    ):
        """Initialise the state on the learner devices.

        Args:
            agent: the algorithm.
            learner_devices: of all hosts.
            num_envs_per_device: environments of one trajectory on one device.
            key: consumed.
            clock: of the thread that calls `run_cycle`.
            mapping_name: how to map updates over the devices.
            max_non_finite_updates: consecutive non-finite updates that end the run.
        """
        self.num_cycles = 0
        self.num_updates = 0
        self.num_non_finite_updates = 0  # discarded, including the one that ended the run
        self._in_a_row = 0  # consecutive ones, after the last discarded update
        self.is_between_cycles = True  # False: `state` is of an unfinished cycle
        self.clock = clock
        self.state = init_state(agent, learner_devices, num_envs_per_device, key)
        # A copy: the first update donates the state, and actors would hold deleted arrays.
        self._publish = jax.jit(
            lambda networks: jax.tree.map(jnp.copy, agent.actor_networks(networks))
        )
        self.published: Networks = self._publish(self.state.networks)
        self._agent = agent
        self._learner_devices = learner_devices
        self._actor_ids: dict[int, jax.Array] = {}
        self._max_non_finite_updates = max_non_finite_updates
        self._compiled_for: set[int] = set()  # updates of a cycle: 0, 1, or 2 for more than 1

        def mapped(function: Any, out_specs: PyTree) -> Any:
            return mapping.map_over_learner_devices(
                function,
                learner_devices,
                out_specs=out_specs,
                donate_argnums=(0,),
                mapping=mapping_name,
            )

        update = Update(agent=agent, max_non_finite_updates=max_non_finite_updates)
        updated = (STATE_SPECS, REPLICATED, REPLICATED)
        self._ingest = mapped(update.ingest, (STATE_SPECS,))
        self._ingest_and_step = mapped(update.ingest_and_step, updated)
        self._step = mapped(update.step, updated)

    @functools.partial(jax.profiler.annotate_function, name=UPDATE)  # in a trace of `run.profile`
    def run_cycle(self, items: Sequence[TrajectoryItem]) -> list[Metrics]:
        """Add trajectories, take this cycle's optimisation steps, and wait for them.

        `published` then holds the networks for the actors, which are never donated.

        Returns:
            Each optimisation step's metrics, on the devices.

        Raises:
            AgentError: the agent returned no number of updates.
        """
        self.is_between_cycles = False
        shares = tuple(self._share(item) for item in items)
        # Its Python code may hang.
        self.clock.begin(UPDATE)
        num_updates = num_updates_of(self._agent, self.num_cycles)
        programs = min(num_updates, 2)
        self.clock.begin(UPDATE if programs in self._compiled_for else COMPILE)
        self._compiled_for.add(programs)
        metrics: list[Metrics] = []
        # One program per step instead of a scan: inside a scan, XLA on a CPU computes gradients of
        # convolutions 8 to 16 times slower (Nature CNN: 77 instead of 651 observations/s).
        for update in range(num_updates):
            if update == 0:
                results = self._ingest_and_step(self.state, shares)
            else:
                results = self._step(self.state)
            self.state, self.published, step_metrics = results
            metrics.append(step_metrics)
            bound_programs_in_flight(metrics)
        if num_updates == 0:
            (self.state,) = self._ingest(self.state, shares)
        # The program of an actor that takes unfinished networks waits on its device for this
        # update, and so do those of the device's other actors.
        jax.block_until_ready((self.state, self.published))
        metrics = self._without_frozen(metrics)
        self.num_cycles += 1
        self.num_updates += len(metrics)
        self.is_between_cycles = True
        self.clock.lap(UPDATE)
        return metrics

    def check_finite(self) -> None:
        """Check the last cycle; call after it is recorded, so that a checkpoint can hold it.

        Raises:
            NonFiniteError: too many updates in a row were not finite. The state is the input of the
                last of them.
        """
        if self._in_a_row >= self._max_non_finite_updates:
            raise NonFiniteError(
                update=self.num_updates, cycle=self.num_cycles - 1, in_a_row=self._in_a_row
            )

    def _without_frozen(self, metrics: list[Metrics]) -> list[Metrics]:
        """Return the metrics without those of steps that a frozen state ignored."""
        counts, before = self.state.non_finite, self.num_non_finite_updates
        # `np.asarray` first: `int` of a JAX array takes several times as long, every cycle.
        self.num_non_finite_updates = int(np.asarray(counts.total))
        if self.num_non_finite_updates == before:
            return metrics
        self._in_a_row = int(counts.in_a_row)
        return metrics[: int(self.state.step) - self.num_updates]

    def restore(self, state: LearnerState, *, num_cycles: int, num_updates: int) -> None:
        """Resume from a state on this host's learner devices, before the first cycle."""
        state = self._learner_devices.join_hosts(state)
        if int(state.non_finite.in_a_row) >= self._max_non_finite_updates:
            # These updates ended the earlier run. Resuming resets the count.
            zero = self._learner_devices.replicate(np.int32(0))
            counts = NonFiniteCounts(total=state.non_finite.total, in_a_row=zero)
            state = dataclasses.replace(state, non_finite=counts)
        self.state = state
        self.num_non_finite_updates = int(state.non_finite.total)
        self.published = self._publish(state.networks)
        self.num_cycles = num_cycles
        self.num_updates = num_updates

    def start_from(self, networks: Networks) -> None:
        """Replace the new networks on the learner devices, and what follows from them.

        Call it before the first cycle.
        """
        # Copies: a leaf that the optimizer state shares with the networks would be donated twice.
        opt_state = jax.jit(
            lambda networks: jax.tree.map(jnp.copy, self._agent.init_opt_state(networks)),
            out_shardings=self._learner_devices.sharding(REPLICATED),
        )(networks)
        self.state = dataclasses.replace(self.state, networks=networks, opt_state=opt_state)
        self.published = self._publish(networks)

    @property
    def state_of_host(self) -> LearnerState:
        """This host's share of the state, on its own learner devices, without a copy."""
        return self._learner_devices.share_of_host(self.state)

    def networks_on(self, device: jax.Device) -> Networks:
        """Return the published networks on a device; they are never donated."""
        return fetch_replicated(self.published, device)

    def stage(self, stagings: Mapping[jax.Device, NetworksDeque]) -> None:
        """Append the published networks to the staging deque of every actor device."""
        for device, staging in stagings.items():
            staging.append(self.num_cycles, self.networks_on(device))
        self.clock.lap(PUBLISH)

    def _share(self, item: TrajectoryItem) -> Share:
        if item.actor_id not in self._actor_ids:
            self._actor_ids[item.actor_id] = self._learner_devices.replicate(
                np.int32(item.actor_id)
            )
        return Share(
            initial_state=item.initial_state,
            final_state=item.final_state,
            trajectory=item.trajectory,
            actor_id=self._actor_ids[item.actor_id],
        )


def run_learner(
    learner: Learner,
    *,
    schedule: Schedule,
    trajectories: TrajectoryDeque,
    stagings: Mapping[jax.Device, NetworksDeque],
    progress: Progress,
    run_end: RunEnd,
    after_cycle: Callable[[Sequence[TrajectoryItem]], None] = lambda items: None,
) -> None:
    """Run learner cycles until the run's goal is reached.

    `after_cycle` is called with the trajectories of each cycle.

    Raises:
        Closed: the run is stopping.
        NonFiniteError: too many updates in a row were not finite.
    """
    learner.clock.restart()
    learner.stage(stagings)
    has_agreed = False
    while not run_end.is_set:
        turn = schedule.actors_to_take(learner.num_cycles)
        items = [trajectories.get(actor_id) for actor_id in turn]
        learner.clock.lap(WAIT_FOR_TRAJECTORIES)
        metrics = learner.run_cycle(items)
        learner.stage(stagings)
        # `record` gathers from all hosts, and hangs if another host does. It compiles once.
        learner.clock.begin(AGREEMENT if has_agreed else COMPILE)
        progress.record(items, metrics, queue_depth=len(trajectories))
        has_agreed = True
        learner.clock.lap(METRICS)
        after_cycle(items)
        learner.clock.lap(CHECKPOINT)
        learner.check_finite()
