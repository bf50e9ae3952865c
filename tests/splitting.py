"""An optimisation step on one batch, whole or split over learner devices."""

import jax
import jax.numpy as jnp

from sebulba.devices.learner_devices import REPLICATED, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.types import Clock


def step_whole(agent, loss, networks, opt_state, batch):
    """Returns networks, optimizer state and loss after a step on the whole batch.

    Args:
        agent: for its `optimize`.
        loss: `(networks, batch) -> []`.
        networks: before the step.
        opt_state: before the step.
        batch: a pytree `[n, ...]`.
    """
    return jax.jit(_step, static_argnums=(0, 1))(agent, loss, networks, opt_state, batch)


def step_split(agent, loss, networks, opt_state, batch, *, num_devices):
    """Returns the same of a batch split over learner devices, by the learner's own mapping."""

    def on_device(networks, opt_state, batch):
        batch = jax.tree.map(lambda x: x[0], batch)
        return _step(
            agent, loss, networks, opt_state, batch, lambda x: jax.lax.pmean(x, LEARNER_AXIS)
        )

    learners = LearnerDevices(jax.devices()[:num_devices])
    mapped = map_over_learner_devices(on_device, learners, out_specs=(REPLICATED,) * 3)
    shares = jax.tree.map(lambda x: jnp.reshape(x, (num_devices, -1, *x.shape[1:])), batch)
    return mapped(
        learners.replicate(networks), learners.replicate(opt_state), learners.split(shares)
    )


def _step(agent, loss, networks, opt_state, batch, average=lambda x: x):
    value, grads = average(jax.value_and_grad(loss)(networks, batch))
    experience = agent.init_experience(networks, 1)
    return *agent.optimize(networks, opt_state, grads, experience, Clock.at()), value
