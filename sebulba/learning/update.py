"""The update, written for one learner device and its blocks of the arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from sebulba.agent import Agent, Metrics
from sebulba.devices.learner_devices import PER_DEVICE, REPLICATED, LearnerDevices
from sebulba.learning.all_reduce import mean_of_gradients
from sebulba.learning.non_finite import count, init_counts, select
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.prng import stream
from sebulba.toolkit.reductions import learner_device_index
from sebulba.types import ActorState, Array, Experience, Networks, PyTree, Trajectory


@pytree_dataclass
class LearnerState:
    """Everything that an update changes; donated from update to update."""

    networks: Networks  # replicated
    opt_state: PyTree  # replicated
    experience: Experience  # per learner device, with a leading axis of devices
    step: Array  # [] int32, optimisation steps taken
    key: Array  # constant: the key of a step is folded from it
    non_finite: PyTree  # `NonFiniteCounts`, replicated


@pytree_dataclass
class Share:
    """One learner device's share of a trajectory: some of its environments."""

    initial_state: ActorState
    final_state: ActorState
    trajectory: Trajectory
    actor_id: jax.Array  # [] int32, of this host


STATE_SPECS = LearnerState(
    networks=REPLICATED,
    opt_state=REPLICATED,
    experience=PER_DEVICE,
    step=REPLICATED,
    key=REPLICATED,
    non_finite=REPLICATED,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """The functions of an agent that are mapped over the learner devices."""

    agent: Agent
    max_non_finite_updates: int
    gradients: str = "float32"  # dtype in which gradients cross between devices

    def cycle(
        self, state: LearnerState, shares: tuple[Share, ...], *, num_updates: int
    ) -> tuple[LearnerState, Networks, Metrics]:
        """Add trajectories to the experience, and take optimisation steps.

        Args:
            state: before.
            shares: of the cycle's trajectories; empty to continue a cycle.
            num_updates: optimisation steps.

        Returns:
            The state, the actors' networks, and the metrics `[num_updates]` of the steps.
        """
        if shares:
            state = _with_experience(state, self._updated_experience(state, shares))
        metrics: Metrics = {}
        if num_updates == 1:
            state, metrics = self.step(state)
            metrics = jax.tree.map(lambda x: x[None], metrics)
        elif num_updates > 1:
            state, metrics = jax.lax.scan(
                lambda state, _: self.step(state), state, length=num_updates
            )
        return state, self.agent.actor_networks(state.networks), metrics

    def _updated_experience(self, state: LearnerState, shares: tuple[Share, ...]) -> Experience:
        experience = experience_of(state)
        for share in shares:
            experience = self.agent.update_experience(
                state.networks,
                experience,
                share.initial_state,
                share.final_state,
                share.trajectory,
                share.actor_id,
            )
        return experience

    def step(self, state: LearnerState) -> tuple[LearnerState, Metrics]:
        """Take an optimisation step; return the state and the metrics."""
        before = experience_of(state)
        value, metrics, grads, experience = loss_and_gradients(
            self.agent, state, before, dtype=self.gradients
        )
        metrics = {"loss": value, "grad_norm": optax.tree.norm(grads), **metrics}
        # One test for all gradients: the norm is finite only if each of them is (an overflow of
        # the squares counts as not finite, too).
        is_finite = jnp.isfinite(value) & jnp.isfinite(metrics["grad_norm"])
        is_applied, is_taken, counts = count(
            state.non_finite, is_finite, self.max_non_finite_updates
        )
        networks, opt_state = select(
            is_applied,
            self.agent.optimize(state.networks, state.opt_state, grads, experience),
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
        return state, metrics


def loss_and_gradients(
    agent: Agent, state: LearnerState, experience: Experience, *, dtype: str = "float32"
) -> tuple[jax.Array, Metrics, Networks, Experience]:
    """Return an update's loss, metrics and gradients, averaged over devices, and its experience.

    Runs on each learner device, with the `experience_of(state)` of that device. Gradients cross
    between devices in `dtype`.
    """
    # Folded from the number of the step, so that a resumed run draws the same numbers.
    key = jax.random.fold_in(state.key, state.step)
    key = jax.random.fold_in(key, learner_device_index())
    loss = jax.value_and_grad(agent.loss, has_aux=True)
    (value, (experience, metrics)), grads = loss(state.networks, experience, key, state.step)
    grads, (value, metrics) = mean_of_gradients(grads, (value, metrics), dtype=dtype)
    return value, metrics, grads, experience


def experience_of(state: LearnerState) -> Experience:
    """Return one device's experience: its block without the leading axis of devices."""
    return jax.tree.map(lambda x: x[0], state.experience)


def _block(experience: Experience) -> Experience:
    return jax.tree.map(lambda x: x[None], experience)


def _with_experience(state: LearnerState, experience: Experience) -> LearnerState:
    return dataclasses.replace(state, experience=_block(experience))


def init_state(
    agent: Agent, learner_devices: LearnerDevices, num_envs_per_device: int, key: jax.Array
) -> LearnerState:
    """Return the state before the first update, on the learner devices."""

    def init(key: jax.Array) -> LearnerState:
        networks = agent.init_networks(stream(key, "networks"))
        experience = agent.init_experience(networks, num_envs_per_device)
        return LearnerState(
            networks=networks,
            opt_state=agent.init_opt_state(networks),
            experience=jax.tree.map(
                lambda x: jnp.broadcast_to(x, (len(learner_devices), *x.shape)), experience
            ),
            step=jnp.int32(0),
            key=stream(key, "updates"),
            non_finite=init_counts(),
        )

    # Jitted with shardings, each device allocates its own share: a large replay buffer is never
    # built on one device and copied.
    shardings = jax.tree.map(learner_devices.sharding, STATE_SPECS)
    return jax.jit(init, out_shardings=shardings)(learner_devices.replicate(key))
