"""An agent on one learner device, fed with recorded trajectories."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.check.capture import from_data
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.subject import Subject
from sebulba.types import Clock, Experience, Networks


class OneDevice:
    """An agent with some settings, and its compiled functions."""

    def __init__(self, subject: Subject, *, num_envs: int | None = None, **settings: Any):
        """Compile nothing yet.

        Args:
            subject: the run.
            num_envs: environments of a trajectory; None: the run's.
            settings: of the agent; those that it does not have are ignored.
        """
        self.agent, self.run_spec = subject.agent_on(1, num_envs=num_envs, **settings)
        self.loss_and_gradients = jax.jit(jax.value_and_grad(self.agent.loss, has_aux=True))
        self.optimize = jax.jit(self.agent.optimize)
        self._init_experience = jax.jit(self.agent.init_experience, static_argnums=1)
        self._update_experience = jax.jit(self.agent.update_experience)
        self._like = subject.start_states[0]

    def experience(self, networks: Networks, items: Sequence[RecordedTrajectory]) -> Experience:
        """Return the agent's experience after these trajectories."""
        experience = self._init_experience(networks, self.run_spec.num_streams)
        for item in items:
            experience = self._update_experience(
                networks,
                experience,
                from_data(item.initial_state, self._like),
                from_data(item.final_state, self._like),
                jax.tree.map(jnp.asarray, item.trajectory),
                jnp.int32(item.actor_id),
            )
        return experience

    def clock(self, items: Sequence[RecordedTrajectory], step: int = 0) -> Clock:
        """Return the clock of an update after these trajectories.

        Args:
            items: those of complete learner cycles.
            step: optimisation steps before.
        """
        earlier = items[: len(items) - self.run_spec.trajectories_per_cycle]
        env_steps = sum(int(item.trajectory.valid.sum()) for item in earlier)
        return Clock.at(step, env_steps=env_steps)
