"""An agent's experience after recorded trajectories."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from sebulba.agent import Agent
from sebulba.tools.check.capture import from_data
from sebulba.tools.check.recording import RecordedTrajectory
from sebulba.types import ActorState, Clock, Experience, Networks, RunSpec


class Ingestion:
    """The experience of an agent on one learner device, as a function of trajectories."""

    def __init__(self, agent: Agent, run_spec: RunSpec, like: ActorState):
        """Compile nothing yet.

        Args:
            agent: on one learner device.
            run_spec: the agent's.
            like: an actor state, with the structure of the recorded ones.
        """
        self._agent, self._run_spec, self._like = agent, run_spec, like
        self._ingest = jax.jit(agent.update_experience)

    def __call__(self, networks: Networks, items: Sequence[RecordedTrajectory]) -> Experience:
        """Return the agent's experience after these trajectories."""
        experience = self._agent.init_experience(networks, self._run_spec.num_envs)
        for item in items:
            experience = self._ingest(
                networks,
                experience,
                from_data(item.initial_state, self._like),
                from_data(item.final_state, self._like),
                jax.tree.map(jnp.asarray, item.trajectory),
                jnp.int32(item.actor_id),
            )
        return experience

    def clock(self, items: Sequence[RecordedTrajectory], step: int) -> Clock:
        """Return the clock of an update after these trajectories.

        Args:
            items: those of whole learner cycles.
            step: optimisation steps before.
        """
        earlier = items[: len(items) - self._run_spec.trajectories_per_cycle]
        env_steps = sum(int(item.trajectory.valid.sum()) for item in earlier)
        return Clock.at(step, env_steps=env_steps)
