"""Agents with one fault each: wrappers around agents that have none."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.config.agents import agent_factory
from sebulba.toolkit.sharding import shard_per_env_leaves


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultyConfig:
    """Settings of an agent with a fault."""

    name: str
    """Which agent."""
    sound: Any = None
    """Settings of the agent without the fault."""


class Faulty:
    """Has no fault: what is not overridden is the sound agent's own."""

    Config = FaultyConfig

    def __init__(self, config, run_spec):
        self.sound = agent_factory(config.sound.name)(config.sound, run_spec)

    def __getattr__(self, name):
        return getattr(self.sound, name)


def faulty(name, sound):
    """Returns the settings of the agent `name` of this module around a sound one."""
    return FaultyConfig(name=f"tests.tools.check.faulty_agents:{name}", sound=sound)


def _with_trajectory(agent, change):
    """Returns `update_experience` of the sound agent, given other trajectories."""

    def update_experience(networks, experience, initial, final, trajectory, actor_id):
        trajectory = dataclasses.replace(trajectory, env_steps=change(trajectory.env_steps))
        return agent.sound.update_experience(
            networks, experience, initial, final, trajectory, actor_id
        )

    return update_experience


class ShiftedReward(Faulty):
    """Learns transition t with the reward that came with its own observation."""

    def update_experience(self, *args):
        def shift(env_steps):
            return dataclasses.replace(env_steps, reward=jnp.roll(env_steps.reward, 1, axis=0))

        return _with_trajectory(self, shift)(*args)


class MergedDone(Faulty):
    """Takes a truncation for a termination."""

    def update_experience(self, *args):
        def merge(env_steps):
            return dataclasses.replace(env_steps, terminated=env_steps.done)

        return _with_trajectory(self, merge)(*args)


class PaidForArriving(Faulty):
    """No fault: pays for each observation, final ones too, and says so."""

    learns_from_final_observations = True

    def update_experience(self, *args):
        return _with_trajectory(self, _pay)(*args)


class PaidAndNeverOver(PaidForArriving):
    """Takes a termination for a truncation as well."""

    def update_experience(self, *args):
        def go_on(env_steps):
            nowhere = jnp.zeros_like(env_steps.done)
            return dataclasses.replace(
                _pay(env_steps), terminated=nowhere, truncated=env_steps.done
            )

        return _with_trajectory(self, go_on)(*args)


def _pay(env_steps):
    paid = jnp.mean(env_steps.observation, axis=-1)
    return dataclasses.replace(env_steps, reward=env_steps.reward + paid)


class NeverReset(Faulty):
    """Keeps its recurrent state from one episode to the next, acting and learning."""

    def act(self, networks, actor_state, env_step, *, greedy):
        return self.sound.act(networks, actor_state, _never_first(env_step), greedy=greedy)

    def update_experience(self, *args):
        return _with_trajectory(self, _never_first)(*args)


class NeverResetInLearner(Faulty):
    """Resets its recurrent state while acting, and forgets to in the loss."""

    def update_experience(self, *args):
        return _with_trajectory(self, _never_first)(*args)


def _never_first(env_step):
    return dataclasses.replace(env_step, is_first=jnp.zeros_like(env_step.is_first))


class SharedKey(Faulty):
    """Gives all actors one key."""

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        del key
        return self.sound.init_actor_state(networks, num_envs, jax.random.key(0), global_actor_id)


class WrongAxis(Faulty):
    """Splits the units of the recurrent state over the learner devices, not the environments."""

    def shard_actor_state(self, actor_state, sharding):
        placed = shard_per_env_leaves(actor_state, sharding, replicated=("key",))
        core = sharding.split(actor_state.memory.core, axis=1)
        memory = dataclasses.replace(placed.memory, core=core)
        return dataclasses.replace(placed, memory=memory)


class EpsilonOfThread(Faulty):
    """Lets all environments of an actor explore as its first one does."""

    def init_actor_state(self, networks, num_envs, key, global_actor_id):
        state = self.sound.init_actor_state(networks, num_envs, key, global_actor_id)
        epsilon = jnp.full_like(state.epsilon, state.epsilon[0])
        return dataclasses.replace(state, epsilon=epsilon)


class LocalMean(Faulty):
    """Divides by the valid transitions of its own learner device."""

    def loss(self, networks, experience, key, step):
        loss, aux = self.sound.loss(networks, experience, key, step)
        return loss / jnp.mean(experience.trajectory.valid.astype(jnp.float32)), aux
