"""An environment with JaxMARL's interface whose players leave at known steps, and its suite."""

import jax.numpy as jnp
from jaxmarl.environments.spaces import Discrete

from sebulba.envs.jax_suite import JaxEnvironment, take_step_limit
from sebulba.envs.jaxmarl import _BY_ITSELF, JaxMarlTask
from tests.envs.leavers import FIRST_LEAVES, NUM_ACTIONS, NUM_PLAYERS, Leavers


class LeaversOfJaxMarl:
    """As `tests.envs.leavers`; a player that has left stays `done`, as in JaxMARL."""

    agents = tuple(f"player_{number}" for number in range(NUM_PLAYERS))

    def action_space(self, agent):
        return Discrete(NUM_ACTIONS)

    def reset(self, key):
        state, observation = Leavers().reset(key)
        return dict(zip(self.agents, observation, strict=True)), state

    def step_env(self, key, state, actions):
        action = jnp.stack([actions[agent] for agent in self.agents])
        state, observation, reward, *_ = Leavers().step(state, action, key)
        left = state["elapsed"] >= FIRST_LEAVES + 2 * jnp.arange(NUM_PLAYERS) + state["late"]
        observations, rewards, dones = (
            dict(zip(self.agents, each, strict=True)) for each in (observation, reward, left)
        )
        return observations, state, rewards, dones | {"__all__": left.all()}, {}


def make(config, *, num_envs, seed):
    """Create the environments, as the suite `jaxmarl` does."""
    limit = take_step_limit(dict(config.options))
    task = JaxMarlTask(LeaversOfJaxMarl(), _BY_ITSELF)
    return JaxEnvironment(task, num_envs=num_envs, seed=seed, max_episode_steps=limit)
