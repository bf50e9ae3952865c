"""Agents for groups of players: each group has networks, an optimizer and experience of its own.

All groups have the same agent and settings, and the spaces that the players have in common. Each
acts for the rows of its players, and learns from them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import ActorStateSharding, Agent, Metrics, declared
from sebulba.errors import ConfigError
from sebulba.types import (
    ActorState,
    Clock,
    EnvStep,
    Experience,
    Networks,
    PyTree,
    RunSpec,
    Trajectory,
)

_MAX_CYCLES = 100_000  # in which groups are compared, until they update
_NUM_COMPARED = 20  # learner cycles with updates


class GroupedAgent:
    """An `Agent` whose networks and states are dicts of those of each group, by its name.

    The loss is the sum of the groups' losses, of which each depends on its own networks alone.
    Metrics have the name of their group: `prey/value_loss`.
    """

    def __init__(self, groups: Mapping[str, Sequence[int]], make: Callable[[int], Agent]):
        """Make the agents of the groups.

        Args:
            groups: the numbers of the players of each group, from 0 on; each player is in one.
            make: makes the agent for a number of players of an environment.

        Raises:
            ConfigError: the groups would not take equal numbers of updates in each learner cycle.
        """
        self._players = {name: np.array(players) for name, players in groups.items()}
        self._num_players = sum(map(len, groups.values()))
        self._agents = {name: make(len(players)) for name, players in groups.items()}
        self._check_updates()

    def __getattr__(self, name: str) -> Any:
        # What depends on the agent's settings alone is the same for all groups.
        return getattr(next(iter(self._agents.values())), name)

    def init_networks(self, key: jax.Array) -> Networks:
        """Return the networks of each group."""
        keys = self._keys(key)
        return {name: agent.init_networks(keys[name]) for name, agent in self._agents.items()}

    def copy_to_targets(self, networks: Networks) -> Networks:
        """Return the networks of each group, with target networks equal to those they follow."""
        return {
            name: declared(agent, Agent, "copy_to_targets")(networks[name])
            for name, agent in self._agents.items()
        }

    def init_opt_state(self, networks: Networks) -> PyTree:
        """Return the optimizer state of each group."""
        return {name: each.init_opt_state(networks[name]) for name, each in self._agents.items()}

    def init_experience(self, networks: Networks, num_envs: int) -> Experience:
        """Return the experience of each group; `num_envs` counts the streams of all."""
        return {
            name: agent.init_experience(networks[name], len(self._rows(name, num_envs)))
            for name, agent in self._agents.items()
        }

    def init_actor_state(
        self, networks: Networks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> ActorState:
        """Return the actor state of each group; `num_envs` counts the streams of all."""
        keys = self._keys(key)
        return {
            name: agent.init_actor_state(
                networks[name], len(self._rows(name, num_envs)), keys[name], global_actor_id
            )
            for name, agent in self._agents.items()
        }

    def advance_actor_state(self, actor_state: ActorState, env_steps: int) -> ActorState:
        """Advance that of each group."""
        return {
            name: declared(agent, Agent, "advance_actor_state")(actor_state[name], env_steps)
            for name, agent in self._agents.items()
        }

    def act(
        self, networks: Networks, actor_state: ActorState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[PyTree, PyTree, ActorState]:
        """Select the actions of each group's players."""
        acted, after, num_streams = [], {}, env_step.reward.shape[0]
        for name, agent in self._agents.items():
            seen = _take(env_step, self._rows(name, num_streams), axis=0)
            action, extras, after[name] = agent.act(
                networks[name], actor_state[name], seen, greedy=greedy
            )
            acted.append((action, extras))
        # The rows in the order of the groups, and back in that of the environments.
        order = np.concatenate([self._rows(name, num_streams) for name in self._agents])
        grouped = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *acted)
        action, extras = _take(grouped, np.argsort(order), axis=0)
        return action, extras, after

    def shard_actor_state(
        self, actor_state: ActorState, sharding: ActorStateSharding
    ) -> ActorState:
        """Place that of each group as the agent does."""
        return {
            name: agent.shard_actor_state(actor_state[name], sharding)
            for name, agent in self._agents.items()
        }

    def update_experience(
        self,
        networks: Networks,
        experience: Experience,
        initial_state: ActorState,
        final_state: ActorState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Experience:
        """Add the streams of each group's players to its experience."""
        num_streams = trajectory.env_steps.reward.shape[1]
        return {
            name: agent.update_experience(
                networks[name],
                experience[name],
                initial_state[name],
                final_state[name],
                _take(trajectory, self._rows(name, num_streams), axis=1),
                actor_id,
            )
            for name, agent in self._agents.items()
        }

    def loss(
        self, networks: Networks, experience: Experience, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[Experience, Metrics]]:
        """Return the sum of the groups' losses, and the metrics of all."""
        keys, after = self._keys(key), {}
        of_all: Metrics = {}
        losses = []
        for name, agent in self._agents.items():
            loss, (after[name], metrics) = agent.loss(
                networks[name], experience[name], keys[name], clock
            )
            losses.append(loss)
            of_all |= {f"{name}/{metric}": value for metric, value in metrics.items()}
        return sum(losses[1:], losses[0]), (after, of_all)

    def optimize(
        self,
        networks: Networks,
        opt_state: PyTree,
        grads: Networks,
        experience: Experience,
        clock: Clock,
    ) -> tuple[Networks, PyTree]:
        """Take the step of each group, with its own optimizer and norm of gradients."""
        taken = {
            name: agent.optimize(
                networks[name], opt_state[name], grads[name], experience[name], clock
            )
            for name, agent in self._agents.items()
        }
        return (
            {name: networks for name, (networks, _) in taken.items()},
            {name: opt_state for name, (_, opt_state) in taken.items()},
        )

    def actor_networks(self, networks: Networks) -> Networks:
        """Return what each group acts with."""
        return {name: each.actor_networks(networks[name]) for name, each in self._agents.items()}

    def _keys(self, key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, len(self._agents))
        return {name: keys[number] for number, name in enumerate(self._agents)}

    def _rows(self, name: str, num_streams: int) -> np.ndarray:
        """Return the numbers of a group's streams, those of an environment one after another."""
        num_envs, rest = divmod(num_streams, self._num_players)
        if rest:
            raise ValueError(
                f"expected the rows of all {self._num_players} players of each environment, got"
                f" {num_streams} rows; env.groups has networks for each group of players"
            )
        first = self._num_players * np.arange(num_envs)[:, None]
        return (first + self._players[name]).reshape(-1)

    def _check_updates(self) -> None:
        """Check that the groups update in the same learner cycles.

        Raises:
            ConfigError: they do not, such as with replay, whose updates follow the rows.
        """
        compared = 0
        for cycle in range(_MAX_CYCLES):
            counts = {each.num_updates_per_cycle(cycle) for each in self._agents.values()}
            if len(counts) > 1:
                sizes = {name: len(players) for name, players in self._players.items()}
                raise ConfigError(
                    "env.groups: expected groups that take equal numbers of updates, got"
                    f" {sorted(counts)} in learner cycle {cycle} for groups of {sizes} players."
                    " Make groups of equal size, or choose an agent without replay"
                )
            compared += counts != {0}
            if compared == _NUM_COMPARED:
                return


def _take(tree: PyTree, rows: np.ndarray, *, axis: int) -> PyTree:
    # All rows exist; "fill", the default, would look for others.
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=axis, mode="clip"), tree)


def with_groups(make: Callable[[RunSpec], Agent], run_spec: RunSpec) -> GroupedAgent:
    """Return the agent of all groups of `run_spec.groups`.

    Args:
        make: makes the agent of one group, for a run with the players of the group.
        run_spec: the run's.

    Raises:
        ConfigError: a player is in no group or in several, or there is no such player.
    """
    environment, groups = run_spec.environment, run_spec.groups
    num_players = environment.num_players
    lists = {name: each for name, each in groups.items() if isinstance(each, list | tuple)}
    numbers = [number for players in lists.values() for number in players]
    if lists.keys() != groups.keys() or sorted(map(repr, numbers)) != sorted(
        map(repr, range(num_players))
    ):
        raise ConfigError(
            f"env.groups: expected each of the players 0 to {num_players - 1} in one group, such as"
            f" {{first: [0], others: {list(range(1, num_players))}}}, got {dict(groups)}"
        )
    if empty := [name for name, players in groups.items() if not players]:
        raise ConfigError(f"env.groups: expected players in each group, got none in {empty[0]}")

    def make_group(size: int) -> Agent:
        of_group = dataclasses.replace(environment, num_players=size)
        return make(
            dataclasses.replace(
                run_spec, environment=of_group, groups={}, num_players_of_all_groups=num_players
            )
        )

    return GroupedAgent(groups, make_group)
