"""An agent whose opponents are earlier versions of its networks, out of a pool in the networks.

The pool is a part of the networks, so it is published, checkpointed and repeated with them. A game
draws its opponent at the opponent's first move. A share of games is against the pool, with a
preference for versions that the player does not beat: prioritised fictitious self-play (Vinyals et
al. 2019, Nature 575, "Grandmaster level in StarCraft II using multi-agent reinforcement learning"),
with their weights of hard opponents, (1 − p)², of the probability p to win. The other games are
against the present version, without which the player only ever answers what it played before, and
goes around the equilibrium of a game such as poker instead of to it.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from sebulba.agent import ActorStateSharding, Agent, Metrics, declared
from sebulba.pytree import pytree_dataclass
from sebulba.toolkit.reductions import sum_over_learner_devices
from sebulba.toolkit.self_play import Chosen, SelfPlay, SelfPlayState
from sebulba.types import Clock, EnvStep, Experience, Networks, Opponents, PyTree, Trajectory

_KEPT = 0.98  # of the counts of games after a learner cycle, since the player changes
_LEAST_WEIGHT = 1e-3  # of a version that the player always beats
# In place of the number of a version of the pool:
_PRESENT = -1  # the present version
_NOBODY = -2  # no opponent has moved in the game yet


@pytree_dataclass
class Pool:
    """Earlier versions, and the outcomes of the player's games against them.

    Numbers are float32, since networks are differentiated.
    """

    members: Networks  # [m, ...], of `actor_networks`
    num_added: jax.Array  # [], the first version included; m at most are in the pool
    games: jax.Array  # [m], older ones count less
    wins: jax.Array  # [m], of the player, with half of a draw

    @property
    def numbers(self) -> jax.Array:
        """`[m]` int32, of the version in each place: 0 is the first; negative in an empty place."""
        newest, size = self.num_added.astype(jnp.int32) - 1, len(self.games)
        return newest - (newest - jnp.arange(size)) % size

    @property
    def win_rates(self) -> jax.Array:
        """`[m]`, with a win and a loss that were never played; 1/2 of a new version."""
        return (self.wins + 1.0) / (self.games + 2.0)

    @property
    def logits(self) -> jax.Array:
        """`[m]`: of the version that a game is played against; -inf of an empty place."""
        weights = jnp.square(1.0 - self.win_rates) + _LEAST_WEIGHT
        is_taken = jnp.arange(len(self.games), dtype=jnp.float32) < self.num_added
        return jnp.where(is_taken, jnp.log(weights), -jnp.inf)


@pytree_dataclass
class PastNetworks:
    """The player's networks and its opponents'."""

    player: Networks
    pool: Pool


@pytree_dataclass
class PastState:
    """The actor states of both players, and who the opponent is."""

    players: SelfPlayState
    # [B] int32, the number of the version that the game is played against; -1: the present one; -2:
    # no opponent has moved. Not its place: while a game or its trajectory waits, another version
    # may come to that place.
    member: jax.Array
    returns: jax.Array  # [B], the player's rewards in the game so far
    key: jax.Array


@pytree_dataclass
class PastExtras:
    """The player's extras, and the opponent of each row and what the game has paid."""

    player: PyTree
    member: jax.Array  # [B] int32, as in the state
    returns: jax.Array  # [B], with the row's reward


@pytree_dataclass
class PastExperience:
    """The player's experience, and games that the pool does not count yet."""

    player: Experience
    pending: jax.Array  # [2, m], games and wins of this learner device
    counted: jax.Array  # [2, m], those that the present optimisation step adds to the pool


class PastPlay:
    """A `SelfPlay` whose opponents are versions out of a pool instead of the present one.

    All versions select actions in all games, of which one is used: `m` small networks in one
    operation are faster than one after another.
    """

    def __init__(self, agent: SelfPlay, opponents: Opponents):
        """Wrap an agent.

        Args:
            agent: plays against itself.
            opponents: the size of the pool, and how often a version is added.
        """
        self.agent = agent.agent
        self._self_play = agent
        self._opponents = opponents

    def __getattr__(self, name: str) -> Any:
        # What takes neither networks nor an actor state is the agent's own.
        return getattr(self.agent, name)

    def oppose(
        self, networks: PastNetworks, actor_state: PastState, row: EnvStep, waiting: jax.Array
    ) -> tuple[PyTree, PastState]:
        """Move for the opponent; see `SelfPlay.oppose`."""
        key, draw_key = jax.random.split(actor_state.key)
        versions, logits = self._versions(networks)
        drawn = jax.random.categorical(draw_key, logits, shape=waiting.shape)
        is_new = waiting & row.is_first
        numbers = jnp.append(networks.pool.numbers, _PRESENT)
        member = jnp.where(is_new, numbers[drawn], actor_state.member)

        def move(version: Networks) -> tuple[PyTree, SelfPlayState]:
            return self._self_play.oppose(version, actor_state.players, row, waiting)

        actions, states = jax.vmap(move)(versions)
        size = self._opponents.pool_size
        chosen = Chosen(jnp.where(member == _PRESENT, size, member % size))
        players = self._self_play.shard_actor_state(states, chosen)
        state = dataclasses.replace(actor_state, players=players, member=member, key=key)
        return chosen.split(actions), state

    def _versions(self, networks: PastNetworks) -> tuple[Networks, jax.Array]:
        """Return the versions that may move, and the logits of a game's draw among them."""
        pool, past_share = networks.pool, self._opponents.past_share
        if past_share == 1.0:
            return pool.members, pool.logits
        # The present version comes after the pool.
        versions = jax.tree.map(
            lambda members, present: jnp.concatenate([members, present[None]]),
            pool.members,
            networks.player,
        )
        of_past = jax.nn.log_softmax(pool.logits) + math.log(past_share)
        return versions, jnp.append(of_past, math.log(1.0 - past_share))

    def init_networks(self, key: jax.Array) -> PastNetworks:
        """Return the agent's, and a pool of them alone."""
        player = self.agent.init_networks(key)
        return PastNetworks(player=player, pool=self._pool_of(player))

    def copy_to_targets(self, networks: PastNetworks) -> PastNetworks:
        """Copy within the player's, and the player into a pool of it alone."""
        player = declared(self.agent, Agent, "copy_to_targets")(networks.player)
        return PastNetworks(player=player, pool=self._pool_of(player))

    def _pool_of(self, player: Networks) -> Pool:
        size = self._opponents.pool_size
        return Pool(
            members=jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)),
                self.agent.actor_networks(player),
            ),
            num_added=jnp.float32(1.0),
            games=jnp.zeros(size, jnp.float32),
            wins=jnp.zeros(size, jnp.float32),
        )

    def init_opt_state(self, networks: PastNetworks) -> PyTree:
        """Return that of the agent."""
        return self.agent.init_opt_state(networks.player)

    def init_experience(self, networks: PastNetworks, num_envs: int) -> PastExperience:
        """Return that of the agent, and no games."""
        none = jnp.zeros((2, self._opponents.pool_size), jnp.float32)
        return PastExperience(
            player=self.agent.init_experience(networks.player, num_envs),
            pending=none,
            counted=none,
        )

    def init_actor_state(
        self, networks: PastNetworks, num_envs: int, key: jax.Array, global_actor_id: int
    ) -> PastState:
        """Return those of both players."""
        key, players_key = jax.random.split(key)
        players = self._self_play.init_actor_state(
            networks.player, num_envs, players_key, global_actor_id
        )
        return PastState(
            players=players,
            member=jnp.full(num_envs, _NOBODY, jnp.int32),
            returns=jnp.zeros(num_envs, jnp.float32),
            key=key,
        )

    def advance_actor_state(self, actor_state: PastState, env_steps: int) -> PastState:
        """Advance both players."""
        players = self._self_play.advance_actor_state(actor_state.players, env_steps)
        return dataclasses.replace(actor_state, players=players)

    def act(
        self, networks: PastNetworks, actor_state: PastState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[PyTree, PastExtras, PastState]:
        """Select the player's actions."""
        action, extras, players = self._self_play.act(
            networks.player, actor_state.players, env_step, greedy=greedy
        )
        returns = jnp.where(env_step.is_first, 0.0, actor_state.returns + env_step.reward)
        extras = PastExtras(player=extras, member=actor_state.member, returns=returns)
        # The next game may end before its opponent moves, and is then nobody's.
        member = jnp.where(env_step.done, _NOBODY, actor_state.member)
        state = PastState(players=players, member=member, returns=returns, key=actor_state.key)
        return action, extras, state

    def shard_actor_state(self, actor_state: PastState, sharding: ActorStateSharding) -> PastState:
        """Place both players as the agent does."""
        return PastState(
            players=self._self_play.shard_actor_state(actor_state.players, sharding),
            member=sharding.split(actor_state.member),
            returns=sharding.split(actor_state.returns),
            key=sharding.replicate(actor_state.key),
        )

    def update_experience(
        self,
        networks: PastNetworks,
        experience: PastExperience,
        initial_state: PastState,
        final_state: PastState,
        trajectory: Trajectory,
        actor_id: jax.Array,
    ) -> PastExperience:
        """Add the player's trajectory, and count its games against versions of the pool."""
        extras, is_final = trajectory.extras, trajectory.env_steps.done[:-1]
        player = self._self_play.update_experience(
            networks.player,
            experience.player,
            initial_state.players,
            final_state.players,
            dataclasses.replace(trajectory, extras=extras.player),
            actor_id,
        )
        # Row T is row 0 of the next trajectory, which counts it.
        won = 0.5 + 0.5 * jnp.sign(extras.returns)
        is_counted = is_final & (extras.member >= 0)  # Numbers of empty places are negative, too.
        outcomes = jnp.stack([jnp.ones_like(won), won]) * is_counted.astype(jnp.float32)[None]
        of_member = extras.member[..., None] == networks.pool.numbers[None, None]
        games = jnp.einsum("ctb,tbm->cm", outcomes, of_member.astype(jnp.float32))
        return dataclasses.replace(experience, player=player, pending=experience.pending + games)

    def loss(
        self, networks: PastNetworks, experience: PastExperience, key: jax.Array, clock: Clock
    ) -> tuple[jax.Array, tuple[PastExperience, Metrics]]:
        """Return that of the agent, and how often the player beats each version."""
        loss, (player, metrics) = self.agent.loss(networks.player, experience.player, key, clock)
        rates = jax.lax.stop_gradient(networks.pool.win_rates)
        metrics = metrics | {f"win_rate_{i}": rate for i, rate in enumerate(rates)}
        # The first step of a learner cycle counts its games, and the next ones find none.
        experience = PastExperience(
            player=player,
            pending=jnp.zeros_like(experience.pending),
            counted=experience.pending,
        )
        return loss, (experience, metrics)

    def optimize(
        self,
        networks: PastNetworks,
        opt_state: PyTree,
        grads: PastNetworks,
        experience: PastExperience,
        clock: Clock,
    ) -> tuple[PastNetworks, PyTree]:
        """Take the agent's step, count games, and add the new version if it is due."""
        player, opt_state = self.agent.optimize(
            networks.player, opt_state, grads.player, experience.player, clock
        )
        games, wins = sum_over_learner_devices(experience.counted)
        kept = jnp.where(jnp.sum(games) > 0.0, _KEPT, 1.0)
        pool = dataclasses.replace(
            networks.pool,
            games=kept * networks.pool.games + games,
            wins=kept * networks.pool.wins + wins,
        )
        # If the last update of a period was discarded, the next one adds.
        every = self._opponents.pool_every
        is_due = (clock.step + 1) // every != (clock.previous_step + 1) // every
        version = self.agent.actor_networks(player)
        pool = jax.lax.cond(is_due, lambda: _with_version(pool, version), lambda: pool)
        return PastNetworks(player=player, pool=pool), opt_state

    def actor_networks(self, networks: PastNetworks) -> PastNetworks:
        """Return what the player and its opponents act with."""
        player = self.agent.actor_networks(networks.player)
        return dataclasses.replace(networks, player=player)


def _with_version(pool: Pool, version: Networks) -> Pool:
    """Return the pool with a version in an empty place, or in that of the oldest."""
    place = pool.num_added.astype(jnp.int32) % len(pool.games)
    return Pool(
        members=jax.tree.map(lambda leaf, new: leaf.at[place].set(new), pool.members, version),
        num_added=pool.num_added + 1.0,
        games=pool.games.at[place].set(0.0),
        wins=pool.wins.at[place].set(0.0),
    )


def with_opponents(agent: Agent, opponents: Opponents) -> SelfPlay | PastPlay:
    """Return the agent that also moves for its opponents."""
    return PastPlay(SelfPlay(agent), opponents) if opponents.pool_size else SelfPlay(agent)


def player_of(agent: Agent, networks: Networks) -> tuple[Agent, Networks]:
    """Return who acts for the player alone, and its networks.

    Args:
        agent: the result of `with_opponents`; any other is returned as it is.
        networks: the result of its `actor_networks`.
    """
    if isinstance(agent, PastPlay):
        return agent.agent, networks.player
    return (agent.agent if isinstance(agent, SelfPlay) else agent), networks
