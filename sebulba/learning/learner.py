"""The learner: experience in, optimisation steps, networks out."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, Metrics
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices, fetch_replicated
from sebulba.learning.non_finite import NonFiniteCounts, NonFiniteError
from sebulba.learning.progress import Progress
from sebulba.learning.update import STATE_SPECS, LearnerState, Share, Update, init_state
from sebulba.ring.queues import Staging, TrajectoryDeque
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
        learners: LearnerDevices,
        num_envs_per_device: int,
        key: jax.Array,
        clock: WallClock,
        mapping_name: mapping.Mapping = "shard_map",
        max_non_finite_updates: int = 1,
    ):
        """Initialises the state on the learner devices.

        Args:
            agent: the algorithm.
            learners: the devices.
            num_envs_per_device: environments of one trajectory on one device.
            key: consumed; networks and updates get streams of it.
            clock: of the thread that runs the cycles.
            mapping_name: how updates are mapped over the devices.
            max_non_finite_updates: so many in a row end the run; none is ever applied.
        """
        self.num_cycles = 0
        self.num_updates = 0
        self.num_non_finite_updates = 0  # of `num_updates`, and the one that ended the run
        self._in_a_row = 0  # of them, when the last of them was taken
        self.is_between_cycles = True  # so that `state` is as a whole cycle left it
        self.clock = clock
        self.state = init_state(agent, learners, num_envs_per_device, key)
        # A copy, which the first update does not donate with the state.
        self._publish = jax.jit(
            lambda networks: jax.tree.map(jnp.copy, agent.actor_networks(networks))
        )
        self.published: Networks = self._publish(self.state.networks)
        self._agent = agent
        self._learners = learners
        self._actor_ids: dict[int, jax.Array] = {}
        self._max_non_finite_updates = max_non_finite_updates
        self._compiled_for: set[int] = set()  # numbers of updates, of which 2 stands for more

        def mapped(function: Any, out_specs: PyTree) -> Any:
            return mapping.map_over_learners(
                function, learners, out_specs=out_specs, donate_argnums=(0,), mapping=mapping_name
            )

        update = Update(agent=agent, max_non_finite_updates=max_non_finite_updates)
        updated = (STATE_SPECS, REPLICATED, REPLICATED)
        self._ingest = mapped(update.ingest, (STATE_SPECS,))
        self._ingest_and_step = mapped(update.ingest_and_step, updated)
        self._step = mapped(update.step, updated)

    def run_cycle(self, items: Sequence[TrajectoryItem]) -> list[Metrics]:
        """Takes trajectories in, takes this cycle's optimisation steps, and waits for them.

        Afterwards `published` holds the networks for the actors; it is never donated.

        Returns:
            Each optimisation step's metrics, still on the devices.
        """
        self.is_between_cycles = False
        shares = tuple(self._share(item) for item in items)
        num_updates = self._agent.num_updates_per_cycle(self.num_cycles)
        programs = min(num_updates, 2)
        self.clock.begin(UPDATE if programs in self._compiled_for else COMPILE)
        self._compiled_for.add(programs)
        metrics: list[Metrics] = []
        # Steps are jitted one by one: inside a scan XLA:CPU runs convolutions' gradients 8 to 16
        # times slower.
        for update in range(num_updates):
            if update == 0:
                results = self._ingest_and_step(self.state, shares)
            else:
                results = self._step(self.state)
            self.state, self.published, step_metrics = results
            # XLA's CPU thread pool starves, and the process dies, with some tens of programs with
            # collectives in flight; one beyond the running one keeps the devices busy.
            if metrics:
                jax.block_until_ready(metrics[-1])
            metrics.append(step_metrics)
        if num_updates == 0:
            (self.state,) = self._ingest(self.state, shares)
        # Networks that are still being computed would hold up the actors that take them.
        jax.block_until_ready((self.state, self.published))
        metrics = self._without_frozen(metrics)
        self.num_cycles += 1
        self.num_updates += len(metrics)
        self.is_between_cycles = True
        self.clock.lap(UPDATE)
        return metrics

    def check_finite(self) -> None:
        """Called once a cycle is over and booked, so that a run can go on from there.

        Raises:
            NonFiniteError: so many updates in a row were not finite that the run is to end; the
                state is as the last of them saw it.
        """
        if self._in_a_row >= self._max_non_finite_updates:
            raise NonFiniteError(
                update=self.num_updates, cycle=self.num_cycles - 1, in_a_row=self._in_a_row
            )

    def _without_frozen(self, metrics: list[Metrics]) -> list[Metrics]:
        """Returns the metrics of the updates that count: a frozen state has taken no more."""
        counts, before = self.state.non_finite, self.num_non_finite_updates
        # Several times as fast as `int` of a JAX array.
        self.num_non_finite_updates = int(np.asarray(counts.total))
        if self.num_non_finite_updates == before:
            return metrics
        self._in_a_row = int(counts.in_a_row)
        return metrics[: int(self.state.step) - self.num_updates]

    def restore(self, state: LearnerState, *, num_cycles: int, num_updates: int) -> None:
        """Goes on from a state on this host's learner devices; called before the first cycle."""
        state = self._learners.join_hosts(state)
        if int(state.non_finite.in_a_row) >= self._max_non_finite_updates:
            # It ended the run. What goes on has all its tries again.
            none = self._learners.replicate(np.int32(0))
            counts = NonFiniteCounts(total=state.non_finite.total, in_a_row=none)
            state = dataclasses.replace(state, non_finite=counts)
        self.state = state
        self.num_non_finite_updates = int(state.non_finite.total)
        self.published = self._publish(state.networks)
        self.num_cycles = num_cycles
        self.num_updates = num_updates

    @property
    def state_of_host(self) -> LearnerState:
        """The state as far as it is this host's, on its own learner devices; not a copy."""
        return self._learners.share_of_host(self.state)

    def networks_on(self, device: jax.Device) -> Networks:
        """Returns the networks for the actors of a device; they are never donated."""
        return fetch_replicated(self.published, device)

    def stage(self, stagings: Mapping[jax.Device, Staging]) -> None:
        """Hands the newest networks to every actor device."""
        for device, staging in stagings.items():
            staging.append(self.num_cycles, self.networks_on(device))
        self.clock.lap(PUBLISH)

    def _share(self, item: TrajectoryItem) -> Share:
        if item.actor_id not in self._actor_ids:
            self._actor_ids[item.actor_id] = self._learners.replicate(np.int32(item.actor_id))
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
    stagings: Mapping[jax.Device, Staging],
    progress: Progress,
    run_end: RunEnd,
    after_cycle: Callable[[Sequence[TrajectoryItem]], None] = lambda items: None,
) -> None:
    """Learns until the run's goal is reached.

    Args:
        learner: at its start, or restored.
        schedule: whose trajectories to take.
        trajectories: from the actors.
        stagings: to the actors.
        progress: counts what was learned, and finds that the goal is reached.
        run_end: ends the run.
        after_cycle: is given the trajectories of each cycle once it is over.

    Raises:
        Closed: the run is stopping.
        NonFiniteError: too many updates in a row had a loss or gradients that are not finite.
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
        # Another host may be stuck; the first time compiles.
        learner.clock.begin(AGREEMENT if has_agreed else COMPILE)
        progress.record(items, metrics, queue_depth=len(trajectories))
        has_agreed = True
        learner.clock.lap(METRICS)
        after_cycle(items)
        learner.clock.lap(CHECKPOINT)
        learner.check_finite()
