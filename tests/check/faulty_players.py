"""Agents with one fault each in what they make of players, and sound ones that look like it."""

import dataclasses

import jax
import jax.numpy as jnp

from tests.check.faulty_base import Faulty, with_trajectory


class _OfTeams(Faulty):
    """Knows how many players an environment has."""

    def __init__(self, config, run_spec):
        super().__init__(config, run_spec)
        self._num_players = run_spec.environment.num_players

    def _means(self, leaf, axis):
        """Return the mean over the players of each environment, for each player."""
        shape = leaf.shape
        teams = leaf.reshape(*shape[:axis], -1, self._num_players, *shape[axis + 1 :])
        means = jnp.mean(teams, axis=axis + 1, keepdims=True)
        return jnp.broadcast_to(means, teams.shape).reshape(shape)


class ActsOnTheTeam(_OfTeams):
    """Acts on the mean of what the players of an environment observe."""

    def act(self, networks, actor_state, env_step, *, greedy):
        observation = jax.tree.map(lambda leaf: self._means(leaf, 0), env_step.observation)
        env_step = dataclasses.replace(env_step, observation=observation)
        return self.sound.act(networks, actor_state, env_step, greedy=greedy)


class LearnsFromTheTeam(_OfTeams):
    """Learns from the mean of the players' rewards."""

    def update_experience(self, *args):
        def share(env_steps):
            return dataclasses.replace(env_steps, reward=self._means(env_steps.reward, 1))

        return with_trajectory(self, share)(*args)


class SharesRewardsOnPurpose(LearnsFromTheTeam):
    """Does the same, and says so."""

    mixes_players = True


class LearnsFromWaiting(Faulty):
    """Leaves out transitions that arrive at a reset, not those that start from a final row.

    Both are the same unless a final row is repeated.
    """

    def update_experience(self, *args):
        def forget_repeated(env_steps):
            last = jnp.ones_like(env_steps.is_first[:1])
            is_left_out = jnp.concatenate([env_steps.is_first[1:], last])
            before = jnp.concatenate([jnp.zeros_like(last), env_steps.done[:-1]])
            keep = ~before | is_left_out
            return dataclasses.replace(
                env_steps,
                terminated=env_steps.terminated & keep,
                truncated=env_steps.truncated & keep,
            )

        return with_trajectory(self, forget_repeated)(*args)


class SeesTheState(Faulty):
    """Its policy is a little different in another state, which only the value function may see."""

    def act(self, networks, actor_state, env_step, *, greedy):
        if isinstance(env_step.observation, dict):
            seen, state = env_step.observation["observation"], env_step.observation["state"]
            seen = seen + 0.1 * jnp.mean(state, axis=-1, keepdims=True)
            observation = {"observation": seen, "state": state}
            env_step = dataclasses.replace(env_step, observation=observation)
        return self.sound.act(networks, actor_state, env_step, greedy=greedy)
