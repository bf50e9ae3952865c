"""The learner: experience in, optimisation steps, networks out."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sebulba import mapping
from sebulba.agent import Agent, Metrics
from sebulba.devices import PER_DEVICE, REPLICATED, LearnerDevices, fetch_replicated
from sebulba.non_finite import (
    NonFiniteCounts,
    NonFiniteError,
    count,
    init_counts,
    select,
)
from sebulba.prng import stream
from sebulba.progress import Progress
from sebulba.pytree import pytree_dataclass
from sebulba.queues import Staging, TrajectoryDeque
from sebulba.reductions import LEARNER_AXIS
from sebulba.schedule import Schedule
from sebulba.timing import (
    AGREEMENT,
    CHECKPOINT,
    COMPILE,
    METRICS,
    PUBLISH,
    UPDATE,
    WAIT_FOR_TRAJECTORIES,
    WallClock,
)
from sebulba.types import (
    ActorState,
    Array,
    Experience,
    Networks,
    PyTree,
    Trajectory,
    TrajectoryItem,
)


@pytree_dataclass
class LearnerState:
    """Everything that learning changes; donated from update to update."""

    networks: Networks  # replicated
    opt_state: PyTree  # replicated
    experience: Experience  # per learner device, with a leading axis of devices
    step: Array  # [] int32, optimisation steps taken
    key: Array  # never changes: each step's key is folded from it
    non_finite: PyTree  # `NonFiniteCounts`, replicated


@pytree_dataclass
class _Share:
    """One trajectory's share of one learner device."""

    initial_state: ActorState
    final_state: ActorState
    trajectory: Trajectory
    actor_id: jax.Array  # [] int32


_STATE_SPECS = LearnerState(
    networks=REPLICATED,
    opt_state=REPLICATED,
    experience=PER_DEVICE,
    step=REPLICATED,
    key=REPLICATED,
    non_finite=REPLICATED,
)


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
        self.state = _init_state(agent, learners, num_envs_per_device, key)
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

        updated = (_STATE_SPECS, REPLICATED, REPLICATED)
        self._ingest = mapped(self._ingest_on_device, (_STATE_SPECS,))
        self._ingest_and_step = mapped(self._ingest_and_step_on_device, updated)
        self._step = mapped(self._step_on_device, updated)

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

    def _share(self, item: TrajectoryItem) -> _Share:
        if item.actor_id not in self._actor_ids:
            self._actor_ids[item.actor_id] = self._learners.replicate(np.int32(item.actor_id))
        return _Share(
            initial_state=item.initial_state,
            final_state=item.final_state,
            trajectory=item.trajectory,
            actor_id=self._actor_ids[item.actor_id],
        )

    # What follows runs on each learner device, on that device's blocks of the arguments.

    def _ingest_on_device(
        self, state: LearnerState, shares: tuple[_Share, ...]
    ) -> tuple[LearnerState]:
        return (_with_experience(state, self._updated_experience(state, shares)),)

    def _ingest_and_step_on_device(
        self, state: LearnerState, shares: tuple[_Share, ...]
    ) -> tuple[LearnerState, Networks, Metrics]:
        return self._step_on_device(
            _with_experience(state, self._updated_experience(state, shares))
        )

    def _updated_experience(self, state: LearnerState, shares: tuple[_Share, ...]) -> Experience:
        experience = experience_of(state)
        for share in shares:
            experience = self._agent.update_experience(
                state.networks,
                experience,
                share.initial_state,
                share.final_state,
                share.trajectory,
                share.actor_id,
            )
        return experience

    def _step_on_device(self, state: LearnerState) -> tuple[LearnerState, Networks, Metrics]:
        before = experience_of(state)
        value, metrics, grads, experience = loss_and_gradients(self._agent, state, before)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(grads), **metrics}
        # The norm is finite if all gradients are, and do not overflow when they are squared.
        is_finite = jnp.isfinite(value) & jnp.isfinite(metrics["grad_norm"])
        is_applied, is_taken, counts = count(
            state.non_finite, is_finite, self._max_non_finite_updates
        )
        networks, opt_state = select(
            is_applied,
            self._agent.optimize(state.networks, state.opt_state, grads, experience),
            (state.networks, state.opt_state),
        )
        state = LearnerState(
            networks=networks,
            opt_state=opt_state,
            experience=_block(select(is_applied, experience, before)),
            step=state.step + is_taken.astype(jnp.int32),
            key=state.key,
            non_finite=counts,
        )
        return state, self._agent.actor_networks(networks), metrics


def loss_and_gradients(
    agent: Agent, state: LearnerState, experience: Experience
) -> tuple[jax.Array, Metrics, Networks, Experience]:
    """Returns one update's loss, metrics and gradients, averaged, and the experience after it.

    Runs on each learner device; `experience` is that device's, `experience_of(state)`.
    """
    key = jax.random.fold_in(state.key, state.step)
    key = jax.random.fold_in(key, jax.lax.axis_index(LEARNER_AXIS))
    loss = jax.value_and_grad(agent.loss, has_aux=True)
    (value, (experience, metrics)), grads = loss(state.networks, experience, key, state.step)
    grads, value, metrics = jax.lax.pmean((grads, value, metrics), LEARNER_AXIS)
    return value, metrics, grads, experience


def experience_of(state: LearnerState) -> Experience:
    """Returns one device's experience: its block has a leading axis of one device."""
    return jax.tree.map(lambda x: x[0], state.experience)


def _block(experience: Experience) -> Experience:
    return jax.tree.map(lambda x: x[None], experience)


def _with_experience(state: LearnerState, experience: Experience) -> LearnerState:
    return dataclasses.replace(state, experience=_block(experience))


def _init_state(
    agent: Agent, learners: LearnerDevices, num_envs_per_device: int, key: jax.Array
) -> LearnerState:
    def init(key: jax.Array) -> LearnerState:
        networks = agent.init_networks(stream(key, "networks"))
        experience = agent.init_experience(networks, num_envs_per_device)
        return LearnerState(
            networks=networks,
            opt_state=agent.init_opt_state(networks),
            experience=jax.tree.map(
                lambda x: jnp.broadcast_to(x, (len(learners), *x.shape)), experience
            ),
            step=jnp.int32(0),
            key=stream(key, "updates"),
            non_finite=init_counts(),
        )

    # Each device allocates its own share, so a replay buffer never exists twice.
    shardings = jax.tree.map(learners.sharding, _STATE_SPECS)
    return jax.jit(init, out_shardings=shardings)(learners.replicate(key))


def run_learner(
    learner: Learner,
    *,
    schedule: Schedule,
    trajectories: TrajectoryDeque,
    stagings: Mapping[jax.Device, Staging],
    progress: Progress,
    after_cycle: Callable[[Sequence[TrajectoryItem]], None] = lambda items: None,
) -> None:
    """Learns until the run's goal is reached.

    Args:
        learner: at its start, or restored.
        schedule: whose trajectories to take.
        trajectories: from the actors.
        stagings: to the actors.
        progress: says when the goal is reached.
        after_cycle: is given the trajectories of each cycle once it is over.

    Raises:
        Closed: the run is stopping.
        NonFiniteError: too many updates in a row had a loss or gradients that are not finite.
    """
    learner.clock.restart()
    learner.stage(stagings)
    has_agreed = False
    while not progress.is_done:
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
