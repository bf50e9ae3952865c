"""An agent that also moves for the opponent of a game in turns, with its present networks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Agent, declared
from sebulba.pytree import pytree_dataclass
from sebulba.types import ActorState, EnvStep, Experience, Networks, PyTree, Trajectory


@pytree_dataclass
class SelfPlayState:
    """The actor states of the two players of each game."""

    player: ActorState
    opponent: ActorState


class SelfPlay:
    """An agent that plays against itself: the opponent samples its moves as actors do.

    Networks, experience and trajectories are those of the agent inside, which learns from the moves
    of the player alone.
    """

    def __init__(self, agent: Agent):
        """Wrap an agent."""
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        # Methods that take no actor state are the agent's own.
        return getattr(self.agent, name)

    def oppose(
        self, networks: Networks, actor_state: SelfPlayState, row: EnvStep, waiting: jax.Array
    ) -> tuple[PyTree, SelfPlayState]:
        """Move for the opponent; an `Opponent` of `sebulba.envs.base`, given the networks.

        Args:
            networks: the result of `actor_networks`.
            actor_state: before the move.
            row: `[B, ...]`, as the opponent sees it.
            waiting: `[B]` bool, the games in which it is to move.
        """
        before = actor_state.opponent
        action, _, after = self.agent.act(networks, before, row, greedy=False)
        kept = keep_where(self.agent, waiting, after, before)
        return action, dataclasses.replace(actor_state, opponent=kept)

    def init_actor_state(
        self, networks: Networks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> SelfPlayState:
        """Return that of the player, and another one of the opponent."""
        player_key, opponent_key = jax.random.split(key)

        def init(key: jax.Array) -> ActorState:
            return self.agent.init_actor_state(networks, num_envs, key, global_actor_id)

        return SelfPlayState(player=init(player_key), opponent=init(opponent_key))

    def advance_actor_state(self, actor_state: SelfPlayState, env_steps: int) -> SelfPlayState:
        """Advance both."""
        advance = declared(self.agent, Agent, "advance_actor_state")
        return SelfPlayState(
            player=advance(actor_state.player, env_steps),
            opponent=advance(actor_state.opponent, env_steps),
        )

    def act(
        self, networks: Networks, actor_state: SelfPlayState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[PyTree, PyTree, SelfPlayState]:
        """Select the player's actions."""
        action, extras, player = self.agent.act(
            networks, actor_state.player, env_step, greedy=greedy
        )
        return action, extras, dataclasses.replace(actor_state, player=player)

    def shard_actor_state(
        self, actor_state: SelfPlayState, sharding: ActorStateSharding
    ) -> SelfPlayState:
        """Place both as the agent does."""
        return SelfPlayState(
            player=self.agent.shard_actor_state(actor_state.player, sharding),
            opponent=self.agent.shard_actor_state(actor_state.opponent, sharding),
        )

    def update_experience(
        self,
        networks: Networks,
        experience: Experience,
        initial_state: SelfPlayState,
        final_state: SelfPlayState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> Experience:
        """Add the player's trajectory."""
        return self.agent.update_experience(
            networks,
            experience,
            initial_state.player,
            final_state.player,
            trajectory,
            actor_id,
        )


def keep_where(agent: Agent, moved: jax.Array, after: ActorState, before: ActorState) -> ActorState:
    """Return the actor state after a move in the games where there was one, `[B]` bool.

    What is not per environment, such as a key, is that after the move.
    """
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), before, after)
    return agent.shard_actor_state(both, Chosen(moved.astype(jnp.int32)))


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Chooses one of several actor states for each environment; an `ActorStateSharding`.

    Leaves are `[m, ...]`. Of what is not per environment, such as a key, it takes the last.
    """

    number: jax.Array  # [B] int32, below m

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        """Choose per environment."""
        return jax.tree.map(lambda leaf: self._choose(leaf, axis + 1), tree)

    def replicate(self, tree: PyTree) -> PyTree:
        """Take the last."""
        return jax.tree.map(lambda leaf: leaf[-1], tree)

    def _choose(self, leaf: Any, axis: int) -> jax.Array:
        leaf = jnp.moveaxis(leaf, axis, 1)  # [m, B, ...]
        return jnp.moveaxis(leaf[self.number, jnp.arange(len(self.number))], 0, axis - 1)
