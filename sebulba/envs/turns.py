"""Games in turns: the opponent moves inside the environment's step, until it is the player's turn.

So a stream has rows only where its player acts, and what the opponent's moves pay is part of the
player's next reward. The games of a batch wait for each other: a step takes as many moves of
opponents as the game that needs the most.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.envs import spaces
from sebulba.envs.base import FusedEnvironment, Opponent, StepInTurns, TraceableStep
from sebulba.envs.final_rows import where_row
from sebulba.envs.jax_environment import IN_TURNS, JaxEnvironment, JaxTask
from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass
from sebulba.references import load
from sebulba.types import EnvStep, Opponents, PyTree

# By name, since it reads checkpoints: rooms above this one do that.
_OPPONENT_OF_RUN = "sebulba.evaluation.opponents:opponent_of_run"


@pytree_dataclass
class TurnState:
    """The complete state of `N` games in turns."""

    plies: PyTree  # of the environments in which each move is a step
    has_moved: jax.Array  # [N] bool, the opponent has, in this game
    reward: jax.Array  # [N] float32, of the opponent since its last move
    # Of an opponent that is neither random nor the learner, as it has left it; None: of these.
    opponent: PyTree = None


def _turn_functions(
    plies: JaxEnvironment,
    is_opponents_turn: Callable[[PyTree], jax.Array],
    max_episode_steps: int | None,
) -> "_TurnFunctions":
    """Return the functions of games; those of equal tasks share them, see `jax_environment`."""
    step, num_actions = plies.traceable_step, int(plies.spec.action_space.n)
    try:
        return _shared_functions(step, is_opponents_turn, num_actions, max_episode_steps)
    except TypeError:  # The task cannot be hashed.
        return _TurnFunctions(step, is_opponents_turn, num_actions, max_episode_steps)


class _TurnFunctions:
    """The functions of a batch of games; `begin` and `step` take and return the opponent's state.

    Those with `_at_random` are jitted, against an opponent whose moves are random legal ones.
    """

    def __init__(
        self,
        step_ply: TraceableStep,
        is_opponents_turn: Callable[[PyTree], jax.Array],
        num_actions: int,
        max_episode_steps: int | None,
    ):
        def is_waiting(state: TurnState, row: EnvStep) -> jax.Array:
            return jax.vmap(is_opponents_turn)(state.plies.task_state) & ~row.done

        def until_turn(
            state: TurnState, row: EnvStep, opponent: Opponent, opponent_state: PyTree
        ) -> tuple[TurnState, EnvStep, PyTree]:
            """Let the opponents move until each game waits for its player, or is over."""

            def move(looped: PyTree) -> PyTree:
                state, row, opponent_state = looped
                waiting = is_waiting(state, row)
                never = jnp.zeros_like(waiting)
                seen = dataclasses.replace(
                    row,
                    reward=state.reward,
                    terminated=never,
                    truncated=never,
                    is_first=~state.has_moved,
                )
                action, opponent_state = opponent(opponent_state, seen, waiting)
                plies, new = step_ply(state.plies, action)
                # Only the player's moves count as steps of its episode.
                plies = dataclasses.replace(plies, elapsed=state.plies.elapsed)
                after = dataclasses.replace(
                    state, plies=plies, has_moved=~never, reward=-new.reward
                )
                # Rewards add up over the opponent's moves; the first row of a game has none.
                reward = jnp.where(row.is_first, 0.0, row.reward + new.reward)
                new = dataclasses.replace(new, reward=reward, is_first=row.is_first)
                return *where_row(waiting, (after, new), (state, row)), opponent_state

            return jax.lax.while_loop(
                lambda looped: jnp.any(is_waiting(*looped[:2])), move, (state, row, opponent_state)
            )

        def begin(
            plies: PyTree, row: EnvStep, opponent: Opponent, opponent_state: PyTree
        ) -> tuple[TurnState, EnvStep, PyTree]:
            state = TurnState(
                plies=plies,
                has_moved=jnp.zeros_like(row.is_first),
                reward=jnp.zeros_like(row.reward),
            )
            return until_turn(state, row, opponent, opponent_state)

        def step(
            state: TurnState, action: PyTree, opponent: Opponent, opponent_state: PyTree
        ) -> tuple[TurnState, EnvStep, PyTree]:
            plies, row = step_ply(state.plies, action)
            state = dataclasses.replace(
                state,
                plies=plies,
                has_moved=state.has_moved & ~row.is_first,
                reward=jnp.where(row.is_first, 0.0, state.reward - row.reward),
            )
            state, row, opponent_state = until_turn(state, row, opponent, opponent_state)
            if max_episode_steps is not None:
                # After the reply: a truncation bootstraps from what the player itself sees.
                is_over = (state.plies.elapsed >= max_episode_steps) & ~row.terminated
                row = dataclasses.replace(row, truncated=row.truncated | is_over)
                plies = dataclasses.replace(state.plies, done=row.done)
                state = dataclasses.replace(state, plies=plies)
            return state, row, opponent_state

        def play_at_random(keys: jax.Array, row: EnvStep, waiting: jax.Array) -> PyTree:
            del waiting
            keys, action_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
            logits = jnp.zeros((len(keys), num_actions), jnp.float32)
            if row.action_mask is not None:
                logits = jnp.where(row.action_mask, logits, -jnp.inf)
            return jax.vmap(jax.random.categorical)(action_keys, logits).astype(jnp.int32), keys

        def random_keys(plies: PyTree) -> jax.Array:
            # Not 0 or 1, which are the keys that a split of the game's key gives.
            return jax.vmap(lambda key: jax.random.fold_in(key, 2))(plies.key)

        def begin_at_random(plies: PyTree, row: EnvStep) -> tuple[TurnState, EnvStep]:
            return begin(plies, row, play_at_random, random_keys(plies))[:2]

        def step_at_random(state: TurnState, action: PyTree) -> tuple[TurnState, EnvStep]:
            return step(state, action, play_at_random, random_keys(state.plies))[:2]

        self.begin = begin
        self.step = step
        self.in_turns = StepInTurns(against=step, at_random=step_at_random)
        self.step_at_random = step_at_random
        self.begin_at_random_jitted = jax.jit(begin_at_random)
        self.step_at_random_jitted = jax.jit(step_at_random)


_shared_functions = functools.lru_cache(maxsize=8)(_TurnFunctions)


class _FixedFunctions:
    """The functions of games against an opponent whose state is in that of the games."""

    def __init__(self, functions: _TurnFunctions, opponent: Opponent):
        def begin(plies: PyTree, row: EnvStep, opponent_state: PyTree) -> tuple[TurnState, EnvStep]:
            state, row, after = functions.begin(plies, row, opponent, opponent_state)
            return dataclasses.replace(state, opponent=after), row

        def step(state: TurnState, action: PyTree) -> tuple[TurnState, EnvStep]:
            before = dataclasses.replace(state, opponent=None)
            new, row, after = functions.step(before, action, opponent, state.opponent)
            return dataclasses.replace(new, opponent=after), row

        self.step = step
        self.begin_jitted = jax.jit(begin)
        self.step_jitted = jax.jit(step)


# Shared, so that a run's actors trace and compile them once.
_fixed_functions = functools.lru_cache(maxsize=2)(_FixedFunctions)


class GameInTurns:
    """`N` games of two players in turns, as an `Environment` of one of them.

    Rewards are the player's, and the opponent's are their negatives. If the opponent is who acts in
    the ring, that is so in `fused` alone: when stepped from Python, and before the first row, it
    moves at random, since no networks are at hand. The policy of a run, or whom `play_against` has
    named, makes all moves of the opponent.
    """

    def __init__(
        self,
        plies: JaxEnvironment,
        is_opponents_turn: Callable[[PyTree], jax.Array],
        opponents: Opponents | str | None,
        max_episode_steps: int | None,
    ):
        """Make the functions of the game.

        Args:
            plies: the games as environments of whoever is to move, in which each move is a step;
                without a limit of steps.
            is_opponents_turn: from the state of one game to bool `[]`.
            opponents: the result of `opponent_options.take_opponents`. A run is read at the reset.
            max_episode_steps: the player's moves after which games are truncated; None: no limit.

        Raises:
            ConfigError: actions are not one choice.
        """
        if not isinstance(plies.spec.action_space, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"env.id: expected a game in turns to have Discrete actions, got"
                f" {plies.spec.action_space}"
            )
        of_learner = opponents if isinstance(opponents, Opponents) else None
        self.num_envs = plies.num_envs
        self.spec = dataclasses.replace(plies.spec, opponents=of_learner)
        self._plies = plies
        self._max_episode_steps = max_episode_steps
        self._functions = _turn_functions(plies, is_opponents_turn, max_episode_steps)
        self._run = opponents if isinstance(opponents, str) else None
        self._opponent_name = self._run or "random"
        self._fixed: _FixedFunctions | None = None
        self._first_state: PyTree = None
        self.whole_state: TurnState | None = None
        self._before_step: tuple[PyTree, np.ndarray] | None = None

    def play_against(self, name: str, opponent: Opponent, opponent_state: PyTree) -> None:
        """Have another opponent move; call it before the reset.

        Args:
            name: for `settings`.
            opponent: moves.
            opponent_state: before its first row.
        """
        self._opponent_name, self._first_state = name, opponent_state
        self._fixed = _fixed_functions(self._functions, opponent)

    def reset(self) -> EnvStep:
        """Start all games, up to the player's first turn; see `Environment.reset`.

        Raises:
            ConfigError: the opponent is a run that cannot be loaded, or has other spaces.
        """
        row = self._plies.reset()
        plies: Any = self._plies.whole_state
        if self._run is not None and self._fixed is None:
            # Not 0 or 1, which are the keys that a split gives, and not 2, see `random_keys`.
            key = jax.random.fold_in(plies.key[0], 3)
            self.play_against(*load(_OPPONENT_OF_RUN)(self._run, self.spec, self.num_envs, key))
        if self._fixed is None:
            self.whole_state, row = self._functions.begin_at_random_jitted(plies, row)
        else:
            self.whole_state, row = self._fixed.begin_jitted(plies, row, self._first_state)
        return jax.tree.map(np.array, row)

    def step(self, action: np.ndarray) -> EnvStep:
        """Make the player's moves, and those of the opponents up to its next turn."""
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        fixed = self._fixed
        step = self._functions.step_at_random_jitted if fixed is None else fixed.step_jitted
        assert self.whole_state is not None
        self._before_step = self.whole_state.plies, action
        self.whole_state, row = step(self.whole_state, action)
        return jax.tree.map(np.array, row)

    def fused(self) -> FusedEnvironment:
        """Return the traceable step, which cannot check an action's range.

        A trajectory of complete episodes would begin each with a random move: no `restart`.
        """
        if self.whole_state is None:
            raise RuntimeError("expected reset() before fused()")
        step: TraceableStep = self._functions.step_at_random
        if self._fixed is not None:
            step = self._fixed.step
        elif self.spec.opponents is not None:
            step = self._functions.in_turns
        return FusedEnvironment(state=self.whole_state, step=step, is_whole_state=True)

    def settings(self) -> dict[str, Any]:
        """Return the game's options and who moves for the opponent in `step`."""
        of_game = {"max_episode_steps": self._max_episode_steps, "opponent": self._opponent_name}
        return {**self._plies.settings(), **of_game}

    def render(self) -> np.ndarray:
        """Return the first game's frame; see `JaxEnvironment`."""
        if self.whole_state is not None:
            self._plies.whole_state = self.whole_state.plies
        return self._plies.render()

    def frames(self) -> list[np.ndarray]:
        """Return the first game's frames after the player's move and after the opponent's replies.

        One frame if there was no reply, or no step yet.
        """
        last = self.render()
        if self._before_step is None:
            return [last]
        # The step has not kept the game between the moves of both.
        self._plies.whole_state, action = self._before_step
        self._plies.step(action)
        between = self._plies.render()
        return [last] if np.array_equal(between, last) else [between, last]

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def make_game(
    task: JaxTask,
    *,
    num_envs: int,
    seed: int,
    max_episode_steps: int | None,
    opponents: Opponents | str | None,
) -> JaxEnvironment | GameInTurns:
    """Return the environments of a task: of one player, if the task is a game in turns.

    Args:
        task: with its wrappers.
        num_envs: of the environment.
        seed: of all games.
        max_episode_steps: after which episodes are truncated; None: no limit.
        opponents: the result of `opponent_options.take_opponents`.
    """
    is_opponents_turn = getattr(task, IN_TURNS, None)
    if is_opponents_turn is None:
        return JaxEnvironment(
            task, num_envs=num_envs, seed=seed, max_episode_steps=max_episode_steps
        )
    plies = JaxEnvironment(task, num_envs=num_envs, seed=seed)
    return GameInTurns(plies, is_opponents_turn, opponents, max_episode_steps)
