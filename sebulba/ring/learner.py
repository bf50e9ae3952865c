"""The learner: its state on the learner devices, and the programs that update it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, Metrics
from sebulba.agent_check import num_updates_of
from sebulba.config import LearnerConfig
from sebulba.devices.learner_devices import REPLICATED, LearnerDevices, fetch_replicated
from sebulba.devices.mapping import Mapped, map_over_learner_devices
from sebulba.devices.xla_workarounds import bound_programs_in_flight, is_slow_in_a_loop
from sebulba.ring.clocks import COMPILE, UPDATE, WallClock
from sebulba.ring.one_program import ActWithin, ProgramOfCycles
from sebulba.ring.records import Unroll
from sebulba.ring.update import (
    STATE_SPECS,
    LearnerState,
    NonFiniteCounts,
    NonFiniteError,
    Update,
    state_initializer,
)
from sebulba.types import EnvStepCount, Networks

_DEFAULTS = LearnerConfig()


class LearnerPrograms:
    """The jitted functions of a learner; they do not depend on the seed."""

    def __init__(
        self,
        *,
        agent: Agent,
        learner_devices: LearnerDevices,
        num_streams_per_device: int,
        config: LearnerConfig = _DEFAULTS,
    ):
        """Trace and compile nothing yet.

        Args:
            agent: the algorithm.
            learner_devices: the learner devices of all hosts.
            num_streams_per_device: streams of one trajectory on one device.
            config: the learner's settings.
        """
        self.agent = agent
        self.learner_devices = learner_devices
        self.mapping_name = config.mapping
        self.device_update = Update(
            agent=agent,
            max_non_finite_updates=config.non_finite_limit,
            gradients=config.gradients,
            adds_in_branch=learner_devices.devices[0].platform == "cpu",
        )
        self.init = state_initializer(agent, learner_devices, num_streams_per_device)
        # A copy: the first update donates the state, and actors would hold deleted arrays.
        self.actor_networks = jax.jit(
            lambda networks: jax.tree.map(jnp.copy, agent.actor_networks(networks))
        )
        # Copies: a leaf that the optimizer state shares with the networks would be donated twice.
        self.init_opt_state = jax.jit(
            lambda networks: jax.tree.map(jnp.copy, agent.init_opt_state(networks)),
            out_shardings=learner_devices.sharding(REPLICATED),
        )
        # Whether a cycle with several updates is one call; None: decided before the first of them.
        self.has_one_call = None if config.cycle == "auto" else config.cycle == "one_program"
        # By the number of updates, and whether trajectories are added.
        self._updates: dict[tuple[int, bool], Mapped] = {}
        # Programs of `Anakin` by the updates of a learner cycle, and whether they are mapped over
        # seeds: the act cycles that are part of the program, and the `ProgramOfCycles`.
        self.of_cycles: dict[tuple[int, bool], tuple[tuple[ActWithin, ...], ProgramOfCycles]] = {}

    def state_shapes(self) -> LearnerState:
        """Return the shapes of a new learner's state; a later `init` does not trace it again."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        # The sharding of a key that `replicate` has placed: another one would be traced again.
        replicated = self.learner_devices.sharding(REPLICATED)
        placed = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=replicated)
        return jax.eval_shape(self.init, placed)

    def update(self, num_updates: int, *, has_unrolls: bool) -> Mapped:
        """Return the jitted call for `num_updates` updates, with or without trajectories."""
        key = (num_updates, has_unrolls)
        if key not in self._updates:
            self._updates[key] = map_over_learner_devices(
                functools.partial(self.device_update.cycle, num_updates=num_updates),
                self.learner_devices,
                out_specs=(STATE_SPECS, REPLICATED, REPLICATED),
                donate_argnums=(0,),  # the state
                mapping=self.mapping_name,
            )
        return self._updates[key]


class Learner:
    """Runs learner cycles over the learner devices."""

    def __init__(self, programs: LearnerPrograms, *, key: jax.Array, clock: WallClock):
        """Initialise the state on the learner devices.

        Args:
            programs: the jitted functions.
            key: consumed.
            clock: the clock of the thread that calls `update`.
        """
        self.num_cycles = 0
        self.num_updates = 0
        self.num_non_finite_updates = 0  # discarded, including the one that ended the run
        self._in_a_row = 0  # consecutive ones, as of the last discarded update
        self._env_steps = 0  # learned from before the last cycle
        self.clock = clock
        self.programs = programs
        self.learner_devices = programs.learner_devices
        self._set_arrays: Callable[[], None] | None = None  # see `defer_arrays`
        self.state = programs.init(self.learner_devices.replicate(key))
        self.published = programs.actor_networks(self.state.networks)

    @property
    def state(self) -> LearnerState:
        """All that updates change, on the learner devices; an update donates it."""
        self.set_deferred()
        assert self._state is not None  # It is None only while it is deferred.
        return self._state

    @state.setter
    def state(self, state: LearnerState) -> None:
        self._state: LearnerState | None = state

    @property
    def published(self) -> Networks:
        """The networks for the actors, which nothing donates."""
        self.set_deferred()
        return self._published

    @published.setter
    def published(self, networks: Networks) -> None:
        self._published: Networks = networks

    @functools.partial(jax.profiler.annotate_function, name=UPDATE)  # in a trace of `run.profile`
    def update(self, unrolls: Sequence[Unroll], *, env_steps: int) -> list[Metrics]:
        """Run a learner cycle: add unrolls, take its optimisation steps, and wait for them.

        `published` then holds the networks for the actors, which are never donated.

        Args:
            unrolls: the cycle's unrolls.
            env_steps: the env steps of all hosts that were learned from before this cycle.

        Returns:
            The metrics of the optimisation steps: for each jitted call, a leading axis of its
            steps. On the devices, or NumPy arrays if an update was discarded.

        Raises:
            AgentError: the agent returned no number of updates.
        """
        self.clock.begin(UPDATE)  # the agent's Python code may hang
        self._env_steps, count = env_steps, EnvStepCount.of(env_steps)
        num_updates = num_updates_of(self.programs.agent, self.num_cycles)
        to_add = tuple(unrolls)
        calls = [num_updates]
        if num_updates > 1 and not self._is_one_call(num_updates, to_add, count):
            calls = [1] * num_updates
        metrics: list[Metrics] = []
        for num_updates_of_call in calls:
            program = self.programs.update(num_updates_of_call, has_unrolls=bool(to_add))
            self.clock.begin(UPDATE if program.has_run else COMPILE)
            self.state, self.published, metrics_of_call = program(self.state, to_add, count)
            metrics.append(metrics_of_call)
            bound_programs_in_flight(metrics)
            to_add = ()
        # An actor's program that was given unfinished networks would wait for this update on its
        # device, and block those of the device's other actors. All results of a program are ready
        # at once, and asking for each of them takes several times as long.
        jax.block_until_ready(self.state.step)
        counts, discarded_before = self.state.non_finite, self.num_non_finite_updates
        # `np.asarray` first: `int` of a JAX array takes several times as long, every cycle.
        self.num_non_finite_updates = int(np.asarray(counts.total))
        if self.num_non_finite_updates > discarded_before:
            self._in_a_row = int(counts.in_a_row)
            # After the last permitted failure the state is frozen: it ignores the later updates.
            num_updates = int(self.state.step) - self.num_updates
            metrics = [jax.tree.map(lambda *x: np.concatenate(x)[:num_updates], *metrics)]
        self.num_updates += num_updates
        self.num_cycles += 1
        self.clock.lap(UPDATE)
        return metrics if calls != [0] else []

    def _is_one_call(
        self, num_updates: int, unrolls: tuple[Unroll, ...], env_steps: EnvStepCount
    ) -> bool:
        """Whether a cycle's updates are one jitted call, which `learner.cycle: auto` decides."""
        programs = self.programs
        if programs.has_one_call is None:
            self.clock.begin(COMPILE)
            program = programs.update(num_updates, has_unrolls=True)
            programs.has_one_call = not is_slow_in_a_loop(
                program.jaxpr(self.state, unrolls, env_steps),
                self.learner_devices.devices[0].platform,
            )
        return programs.has_one_call

    def check(self) -> None:
        """Raise if too many updates in a row were not finite; call it once the cycle is recorded.

        Raises:
            NonFiniteError: the state is the input of the last of these updates.
        """
        if self._in_a_row >= self.programs.device_update.max_non_finite_updates:
            raise NonFiniteError(
                update=self.num_updates,
                cycle=self.num_cycles - 1,
                env_steps=self._env_steps,
                in_a_row=self._in_a_row,
            )

    def restore(self, state: LearnerState, *, num_cycles: int, num_updates: int) -> None:
        """Resume from a state on this host's learner devices, before the first cycle."""
        state = self.learner_devices.join_hosts(state)
        if int(state.non_finite.in_a_row) >= self.programs.device_update.max_non_finite_updates:
            # These updates ended the earlier run. Resuming resets the count.
            zero = self.learner_devices.replicate(np.int32(0))
            counts = NonFiniteCounts(total=state.non_finite.total, in_a_row=zero)
            state = dataclasses.replace(state, non_finite=counts)
        self.state = state
        self.num_non_finite_updates = int(state.non_finite.total)
        self.published = self.programs.actor_networks(state.networks)
        self.num_cycles = num_cycles
        self.num_updates = num_updates

    def start_from(self, networks: Networks) -> None:
        """Replace the new networks on the learner devices, and what follows from them.

        Call it before the first cycle.
        """
        opt_state = self.programs.init_opt_state(networks)
        self.state = dataclasses.replace(self.state, networks=networks, opt_state=opt_state)
        self.published = self.programs.actor_networks(networks)

    def advance(self, *, num_cycles: int, num_updates: int) -> None:
        """Count learner cycles that were run elsewhere; the caller sets or defers their arrays."""
        self.num_cycles += num_cycles
        self.num_updates += num_updates

    def defer_arrays(self, set_arrays: Callable[[], None]) -> None:
        """Set the arrays of the present cycle only when one of them is asked for.

        Args:
            set_arrays: sets `state` and `published`, and what else its caller keeps with them.
        """
        self._set_arrays, self._state, self._published = set_arrays, None, None

    def set_deferred(self) -> None:
        """Set the arrays now, if they are still deferred."""
        if self._set_arrays is not None:
            self._set_arrays()
            # Not before: after a failure, such as a full memory, saving the run tries again.
            self._set_arrays = None

    @property
    def state_of_host(self) -> LearnerState:
        """This host's share of the state, on its own learner devices, without a copy."""
        return self.learner_devices.share_of_host(self.state)

    def networks_on(self, device: jax.Device) -> Networks:
        """Return the published networks on a device; they are never donated."""
        return fetch_replicated(self.published, device)
