"""An agent whose experience cannot be dealt to other hosts: its shape depends on their number."""

import dataclasses

import jax.numpy as jnp

from tests.toys import ToyAgent, ToyConfig


class HostCountingAgent(ToyAgent):
    """The toy agent, which counts trajectories of one actor more."""

    Config = ToyConfig

    def init_experience(self, networks, num_envs):
        experience = super().init_experience(networks, num_envs)
        size = self._run_spec.num_actors + self._run_spec.num_hosts
        return dataclasses.replace(experience, trajectories_of=jnp.zeros(size, jnp.int32))
