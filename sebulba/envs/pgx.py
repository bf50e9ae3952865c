"""pgx: board and card games in JAX, played against an opponent, batched by `jax_environment`.

Which player begins is drawn for each game. Rewards are the agent's: 1 for a game won, −1 for one
lost, in games without points. An illegal action loses the game, and `EnvStep.action_mask` names the
legal ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pgx

from sebulba.config import EnvConfig
from sebulba.envs.jax_environment import JaxEnvironment, shared_task, take_step_limit
from sebulba.envs.jax_tasks import TaskStep
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.lookup import refuse_unknown_options
from sebulba.envs.opponent_options import OPTIONS, is_run, take_opponents
from sebulba.envs.turns import GameInTurns, make_game
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, did_you_mean
from sebulba.references import load

Opponent = Callable[[Any, jax.Array], jax.Array]
"""`(state of the game, key) -> action`, int32 `[]`, of one game in which it is to move."""

_AGENT = 0  # the agent's number among the players
_ORANGE, _WHITE = np.array([255, 140, 0], np.uint8), np.array([255, 255, 255], np.uint8)
_OPTIONS = (*OPTIONS, "max_episode_steps")
_LEARNERS = ("self", "past")  # the opponents that move with the learner's networks


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment | GameInTurns:
    """Create `pgx.make(env.id)`.

    The option `opponent` is `random` (default), which plays a random legal action; `look_ahead`,
    see `LookAhead`; `module:function`, an `Opponent`; or, in games of two, `self`, `past` or the
    directory of a run, with the options of `take_opponents`. `max_episode_steps` truncates games
    after this many moves of the player.

    Raises:
        ConfigError: pgx has no such game, or there is no such option.
    """
    if config.id not in ids():
        raise ConfigError(f"env.id: pgx has no {config.id!r}{did_you_mean(config.id, ids())}")
    refuse_unknown_options(config, _OPTIONS)
    options = dict(config.options)
    max_episode_steps = take_step_limit(options)
    game = pgx.make(config.id)
    opponent = options.pop("opponent", "random")
    has_networks = opponent in _LEARNERS or is_run(opponent)
    # Refuses a size of a pool that there is not.
    opponents = take_opponents({**options, "opponent": opponent if has_networks else "random"})
    if has_networks and game.num_players != 2:
        raise ConfigError(
            f"env.options.opponent: expected random in {config.id}, which has {game.num_players}"
            f" players, got {opponent}; networks play games of two"
        )

    def make_task() -> PgxTask | PgxGame:
        return PgxGame(game) if has_networks else PgxTask(game, _opponent(opponent, game))

    # The code of a user's opponent may change between two runs.
    task = make_task() if ":" in str(opponent) else shared_task(config, make_task)
    task = wrap(task, wrappers)
    return make_game(
        task,
        num_envs=num_envs,
        seed=seed,
        max_episode_steps=max_episode_steps,
        opponents=opponents,
    )


def ids() -> list[str]:
    """Return the ids of pgx's games."""
    return list(pgx.available_envs())


def _opponent(name: str, game: Any) -> Opponent:
    if name == "look_ahead":
        return LookAhead(game)
    if name == "random":
        return play_at_random
    if not (isinstance(name, str) and ":" in name):
        known = ("random", "look_ahead", *_LEARNERS)
        raise ConfigError(
            f"env.options.opponent: expected {', '.join(known)}, module:function or the directory"
            f" of a run, got {name!r}{did_you_mean(str(name), known)}"
        )
    return load(name, key="env.options.opponent")


def _spaces_of(game: Any) -> tuple[jax.ShapeDtypeStruct, gymnasium.Space]:
    state = jax.eval_shape(game.init, jax.eval_shape(lambda: jax.random.key(0)))
    observation = jax.ShapeDtypeStruct(state.observation.shape, state.observation.dtype)
    return observation, gymnasium.spaces.Discrete(int(game.num_actions))


def _add_render(task: Any) -> None:
    """Give a task `render` if its observation is a board: the stones of two players."""
    if len(task.observation.shape) == 3 and task.observation.shape[-1] == 2:
        task.render = _render_board


def _render_board(state: Any) -> jax.Array:
    """Return uint8 `[H, W, 3]`, one pixel per cell: the agent's stones orange, the others white."""
    stones = state.observation  # of the player to move, and of the other one
    stones = jnp.where(state.current_player == _AGENT, stones, stones[..., ::-1]).astype(jnp.uint8)
    return stones[..., :1] * jnp.asarray(_ORANGE) + stones[..., 1:] * jnp.asarray(_WHITE)


def play_at_random(state: Any, key: jax.Array) -> jax.Array:
    """Return a random legal action."""
    logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
    return jax.random.categorical(key, logits).astype(jnp.int32)


class LookAhead:
    """Opponent that sees one move of each player ahead, in a game of two without hidden cards.

    It plays a random one of the legal actions with the best worst outcome: it wins if it can, and
    leaves no winning reply if it can. The cost of a move is the square of the number of actions.
    """

    def __init__(self, game: Any):
        self._game = game

    def __call__(self, state: Any, key: jax.Array) -> jax.Array:
        """Return an action of the player to move."""
        player = state.current_player
        actions = jnp.arange(self._game.num_actions, dtype=jnp.int32)
        step_key, choice_key = jax.random.split(key)

        def after(state: Any) -> tuple[Any, jax.Array]:
            """Return the states after all actions, and the player's rewards there."""
            states = jax.vmap(lambda action: self._game.step(state, action, step_key))(actions)
            return states, states.rewards[:, player]

        def worst_reply(state: Any) -> jax.Array:
            rewards = jnp.where(state.legal_action_mask, after(state)[1], jnp.inf)
            return jnp.where(state.terminated | state.truncated, 0.0, jnp.min(rewards))

        states, rewards = after(state)
        outcome = rewards + jax.vmap(worst_reply)(states)
        outcome = jnp.where(state.legal_action_mask, outcome, -jnp.inf)
        is_best = outcome == jnp.max(outcome)
        logits = jnp.where(is_best, 0.0, -jnp.inf)
        return jax.random.categorical(choice_key, logits).astype(jnp.int32)


class PgxGame:
    """A game of two players as a `JaxTask` in turns: a step is one move of whoever is to move."""

    def __init__(self, game: Any):
        self._game = game
        self.observation, self.action_space = _spaces_of(game)
        _add_render(self)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Start a game."""
        state = self._game.init(key)
        return state, state.observation

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> TaskStep:
        """Make a move."""
        state = self._game.step(state, action, key)
        reward = state.rewards[_AGENT]
        return state, state.observation, reward, state.terminated, state.truncated

    def action_mask(self, state: Any) -> jax.Array:
        """Return the legal actions."""
        return state.legal_action_mask

    def is_opponents_turn(self, state: Any) -> jax.Array:
        """Return whether the opponent is to move."""
        return state.current_player != _AGENT


class PgxTask:
    """A game of pgx as a `jax_environment.JaxTask`: between two steps, the opponents move.

    The final observation may be that of an opponent, if it made the last move. Games end by
    termination alone, after which no agent evaluates it.
    """

    def __init__(self, game: Any, opponent: Opponent):
        self._game = game
        self._opponent = opponent
        self.observation, self.action_space = _spaces_of(game)
        _add_render(self)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Start a game, up to the agent's first turn."""
        init_key, key = jax.random.split(key)
        state, _ = self._until_turn(self._game.init(init_key), key)
        return state, state.observation

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> TaskStep:
        """Make the agent's move, and those of the opponents up to its next turn."""
        step_key, key = jax.random.split(key)
        state, reward = self._until_turn(self._game.step(state, action, step_key), key)
        return state, state.observation, reward, state.terminated, state.truncated

    def action_mask(self, state: Any) -> jax.Array:
        """Return the legal actions."""
        return state.legal_action_mask

    def _until_turn(self, state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        """Let the opponents move; return the state and the agent's rewards on the way to it."""

        def is_waiting(looped: tuple[Any, jax.Array, jax.Array]) -> jax.Array:
            state, *_ = looped
            return (state.current_player != _AGENT) & ~state.terminated & ~state.truncated

        def move(
            looped: tuple[Any, jax.Array, jax.Array],
        ) -> tuple[Any, jax.Array, jax.Array]:
            state, reward, key = looped
            action_key, step_key, key = jax.random.split(key, 3)
            state = self._game.step(state, self._opponent(state, action_key), step_key)
            return state, reward + state.rewards[_AGENT], key

        state, reward, _ = jax.lax.while_loop(is_waiting, move, (state, state.rewards[_AGENT], key))
        return state, reward
