"""The learner: takes trajectories, runs optimisation steps, publishes networks."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, Metrics
from sebulba.agent_check import num_updates_of
from sebulba.config import LearnerConfig
from sebulba.devices import mapping
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices, fetch_replicated
from sebulba.devices.xla_cpu import bound_programs_in_flight
from sebulba.learning.all_reduce import AllReduce
from sebulba.learning.loops import is_slow_in_a_loop
from sebulba.learning.non_finite import NonFiniteCounts, NonFiniteError
from sebulba.learning.progress import Progress
from sebulba.learning.replicas import ReplicaCheck
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
from sebulba.types import Networks, TrajectoryItem

_DEFAULTS = LearnerConfig()


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
        config: LearnerConfig = _DEFAULTS,
    ):
        """Initialise the state on the learner devices.

        Args:
            agent: the algorithm.
            learner_devices: of all hosts.
            num_envs_per_device: environments of one trajectory on one device.
            key: consumed.
            clock: of the thread that calls `run_cycle`.
            config: the settings of the learner.
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
        self.learner_devices = learner_devices
        self._check_replicas = ReplicaCheck(learner_devices, config.mapping)
        self.all_reduce = AllReduce(learner_devices, config, clock)
        self._actor_ids: dict[int, jax.Array] = {}
        self._max_non_finite_updates = config.non_finite_limit
        # None: decided before the first cycle with several updates.
        self._is_one_program = None if config.cycle == "auto" else config.cycle == "one_program"
        self.update = Update(
            agent=agent,
            max_non_finite_updates=config.non_finite_limit,
            gradients=config.gradients,
        )
        self._mapping_name = config.mapping
        # By the number of updates, and whether trajectories are added.
        self._programs: dict[tuple[int, bool], mapping.Mapped] = {}

    @functools.partial(jax.profiler.annotate_function, name=UPDATE)  # in a trace of `run.profile`
    def run_cycle(self, items: Sequence[TrajectoryItem]) -> list[Metrics]:
        """Add trajectories, take this cycle's optimisation steps, and wait for them.

        `published` then holds the networks for the actors, which are never donated.

        Returns:
            The metrics of the optimisation steps, on the devices: for each jitted call, a leading
            axis of its steps.

        Raises:
            AgentError: the agent returned no number of updates.
        """
        self.is_between_cycles = False
        shares = tuple(self._share(item) for item in items)
        # Its Python code may hang.
        self.clock.begin(UPDATE)
        num_updates = num_updates_of(self._agent, self.num_cycles)
        calls = self._calls(num_updates, shares)
        metrics: list[Metrics] = []
        for num_updates_of_call in calls:
            program = self._program(num_updates_of_call, has_shares=not metrics)
            results = program(self.state, () if metrics else shares)
            self.state, self.published, metrics_of_call = results
            metrics.append(metrics_of_call)
            bound_programs_in_flight(metrics)
        # The program of an actor that takes unfinished networks waits on its device for this
        # update, and so do those of the device's other actors. All results of a program are ready
        # at once, and asking for each of them takes several times as long.
        jax.block_until_ready(self.state.step)
        metrics = self._without_frozen(metrics, num_updates)
        self.num_cycles += 1
        self.is_between_cycles = True
        self.clock.lap(UPDATE)
        return metrics if num_updates else []

    def _calls(self, num_updates: int, shares: tuple[Share, ...]) -> list[int]:
        """Return the updates of each jitted call of a learner cycle."""
        if num_updates <= 1:
            return [num_updates]
        if self._is_one_program is None:
            self.clock.begin(COMPILE)
            program = self._program(num_updates, has_shares=True)
            self._is_one_program = not is_slow_in_a_loop(
                program.jaxpr(self.state, shares), self.learner_devices.devices[0].platform
            )
        return [num_updates] if self._is_one_program else [1] * num_updates

    def _program(self, num_updates: int, *, has_shares: bool) -> mapping.Mapped:
        """Return the jitted call of so many updates, whose activity it begins."""
        key = (num_updates, has_shares)
        self.clock.begin(UPDATE if key in self._programs else COMPILE)
        if key not in self._programs:
            self._programs[key] = mapping.map_over_learner_devices(
                functools.partial(self.update.cycle, num_updates=num_updates),
                self.learner_devices,
                out_specs=(STATE_SPECS, REPLICATED, REPLICATED),
                donate_argnums=(0,),
                mapping=self._mapping_name,
            )
        return self._programs[key]

    def check(self) -> None:
        """Check and measure after a cycle is recorded, so that a checkpoint can hold it.

        Raises:
            ReplicaError: the learner devices hold different networks.
            NonFiniteError: too many updates in a row were not finite. The state is the input of the
                last of them.
        """
        if self._in_a_row >= self._max_non_finite_updates:
            raise NonFiniteError(
                update=self.num_updates, cycle=self.num_cycles - 1, in_a_row=self._in_a_row
            )
        self._check_replicas(self.state, self.num_cycles)
        self.all_reduce.measure(self.state.networks, self.num_cycles)
        self.clock.lap(METRICS)

    def _without_frozen(self, metrics: list[Metrics], num_updates: int) -> list[Metrics]:
        """Count updates and discarded ones; drop those that a frozen state ignored."""
        counts, before = self.state.non_finite, self.num_non_finite_updates
        # `np.asarray` first: `int` of a JAX array takes several times as long, every cycle.
        self.num_non_finite_updates = int(np.asarray(counts.total))
        if self.num_non_finite_updates == before:
            self.num_updates += num_updates
            return metrics
        self._in_a_row = int(counts.in_a_row)
        num_taken = int(self.state.step) - self.num_updates
        self.num_updates += num_taken
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_taken], *metrics)
        return [joined]

    def restore(self, state: LearnerState, *, num_cycles: int, num_updates: int) -> None:
        """Resume from a state on this host's learner devices, before the first cycle."""
        state = self.learner_devices.join_hosts(state)
        if int(state.non_finite.in_a_row) >= self._max_non_finite_updates:
            # These updates ended the earlier run. Resuming resets the count.
            zero = self.learner_devices.replicate(np.int32(0))
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
            out_shardings=self.learner_devices.sharding(REPLICATED),
        )(networks)
        self.state = dataclasses.replace(self.state, networks=networks, opt_state=opt_state)
        self.published = self._publish(networks)

    def advance(self, state: LearnerState, *, num_cycles: int, num_updates: int) -> None:
        """Take the state after learner cycles that were run elsewhere."""
        self.state = state
        self.published = self._publish(state.networks)
        self.num_cycles += num_cycles
        self.num_updates += num_updates

    @property
    def state_of_host(self) -> LearnerState:
        """This host's share of the state, on its own learner devices, without a copy."""
        return self.learner_devices.share_of_host(self.state)

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
            self._actor_ids[item.actor_id] = self.learner_devices.replicate(np.int32(item.actor_id))
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
        ReplicaError: the learner devices hold different networks.
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
        learner.check()
