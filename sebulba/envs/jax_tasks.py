"""Small diagnostic tasks in pure JAX that an agent learns in seconds."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.errors import ConfigError
from sebulba.pytree import pytree_dataclass

TaskStep = tuple[object, jax.Array, jax.Array, jax.Array, jax.Array]
"""State, observation, reward, terminated, truncated."""

_WHITE = np.array([255, 255, 255], np.uint8)
_GREY = np.array([96, 96, 96], np.uint8)
_ORANGE = np.array([255, 140, 0], np.uint8)


@pytree_dataclass
class CatchState:
    """The positions of ball and paddle."""

    ball_row: jax.Array  # [] int32
    ball_column: jax.Array  # [] int32
    paddle_column: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catch:
    """A ball falls one cell per step from a random column; the paddle must catch it.

    Actions: 0 left, 1 stay, 2 right. The reward is 0 until the ball reaches the paddle's row, then
    1 for a catch and -1 for a miss, and the episode terminates after `rows - 1` steps. Proposed by
    Mnih et al. 2014 (arXiv 1406.6247, section 4.2); this is the version of bsuite (Osband et al.
    2020, arXiv 1908.03568). With `pixels`, it tests networks for images.
    """

    rows: int = 10
    columns: int = 5
    pixels: int = 0
    """Observations are frames of that many pixels in height and width; 0: the cells."""

    def __post_init__(self):
        require_option(self.rows >= 2, "rows", "at least 2", self.rows)
        require_option(self.columns >= 1, "columns", "at least 1", self.columns)
        least = max(self.rows, self.columns)
        is_fine = self.pixels == 0 or self.pixels >= least
        require_option(is_fine, "pixels", f"0 or at least {least}", self.pixels)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Flattened board: 1 at the ball and at the paddle, else 0; or a frame: 255, else 0."""
        if self.pixels:
            return jax.ShapeDtypeStruct((self.pixels, self.pixels, 1), np.uint8)
        return jax.ShapeDtypeStruct((self.rows * self.columns,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Left, stay, right."""
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: jax.Array) -> tuple[CatchState, jax.Array]:
        """Place the ball in a random column at the top and the paddle in the middle."""
        state = CatchState(
            ball_row=jnp.zeros((), jnp.int32),
            ball_column=jax.random.randint(key, (), 0, self.columns, jnp.int32),
            paddle_column=jnp.full((), self.columns // 2, jnp.int32),
        )
        return state, self._board(state)

    def step(self, state: CatchState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Move the paddle and the ball."""
        del key
        state = CatchState(
            ball_row=state.ball_row + 1,
            ball_column=state.ball_column,
            paddle_column=jnp.clip(state.paddle_column + action - 1, 0, self.columns - 1),
        )
        terminated = state.ball_row == self.rows - 1
        outcome = _plus_or_minus_one(state.paddle_column == state.ball_column)
        reward = jnp.where(terminated, outcome, jnp.zeros_like(outcome))
        return state, self._board(state), reward, terminated, jnp.zeros((), bool)

    def render(self, state: CatchState) -> jax.Array:
        """Return uint8 `[rows, columns, 3]`, one pixel per cell: ball orange, paddle white."""
        frame = jnp.zeros((self.rows, self.columns, 3), jnp.uint8)
        frame = frame.at[self.rows - 1, state.paddle_column].set(_WHITE)
        return frame.at[state.ball_row, state.ball_column].set(_ORANGE)

    def _board(self, state: CatchState) -> jax.Array:
        board = jnp.zeros((self.rows, self.columns), jnp.float32)
        board = board.at[state.ball_row, state.ball_column].set(1.0)
        board = board.at[self.rows - 1, state.paddle_column].set(1.0)
        if not self.pixels:
            return board.reshape(-1)
        each = jnp.arange(self.pixels)
        frame = board[each * self.rows // self.pixels][:, each * self.columns // self.pixels]
        return (255.0 * frame).astype(jnp.uint8)[:, :, None]


@pytree_dataclass
class RecallState:
    """The cue and the steps since it was shown."""

    cue: jax.Array  # [] int32
    elapsed: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recall:
    """The agent must recall a cue that it saw `delay` steps ago. Needs memory.

    The first observation shows the cue, the next `delay - 1` are zeros, and the next one sets the
    query flag. The action selected there receives 1 if it equals the cue, else -1, and the episode
    terminates after `delay + 1` steps. Without memory the best mean return is `2 / cues - 1`.
    """

    cues: int = 4
    delay: int = 10

    def __post_init__(self):
        require_option(self.cues >= 2, "cues", "at least 2", self.cues)
        require_option(self.delay >= 1, "delay", "at least 1", self.delay)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """One-hot cue or zeros, then the query flag."""
        return jax.ShapeDtypeStruct((self.cues + 1,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """The answer; used only at the query."""
        return gymnasium.spaces.Discrete(self.cues)

    def reset(self, key: jax.Array) -> tuple[RecallState, jax.Array]:
        """Show a random cue."""
        cue = jax.random.randint(key, (), 0, self.cues, jnp.int32)
        state = RecallState(cue=cue, elapsed=jnp.zeros((), jnp.int32))
        return state, jax.nn.one_hot(cue, self.cues + 1, dtype=jnp.float32)

    def step(self, state: RecallState, action: jax.Array, key: jax.Array) -> TaskStep:
        """Wait, query, or score the answer."""
        del key
        terminated = state.elapsed == self.delay
        answer = _plus_or_minus_one(action == state.cue)
        reward = jnp.where(terminated, answer, jnp.zeros_like(answer))
        state = RecallState(cue=state.cue, elapsed=state.elapsed + 1)
        query = (state.elapsed == self.delay).astype(jnp.float32)
        observation = jnp.zeros(self.cues + 1, jnp.float32).at[self.cues].set(query)
        return state, observation, reward, terminated, jnp.zeros((), bool)

    def render(self, state: RecallState) -> jax.Array:
        """Return uint8 `[3, cues, 3]`, one pixel per cell.

        Top: the cue while it is shown, orange. Middle: the query, white. Bottom: a progress bar of
        the delay, grey.
        """
        frame = jnp.zeros((3, self.cues, 3), jnp.uint8)
        cue = jnp.where(state.elapsed == 0, _ORANGE, 0).astype(jnp.uint8)
        query = jnp.where(state.elapsed == self.delay, _WHITE, 0).astype(jnp.uint8)
        passed = jnp.arange(self.cues) * self.delay < state.elapsed * self.cues
        bar = jnp.where(passed[:, None], _GREY[None], 0).astype(jnp.uint8)
        return frame.at[0, state.cue].set(cue).at[1].set(query).at[2].set(bar)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bandit:
    """A contextual bandit with episodes of one step: action `context % actions` receives 1, else 0.

    Every second row of its stream is a reset, so an agent that pairs rewards with the wrong action
    or trains on reset transitions cannot learn it.
    """

    contexts: int = 8
    actions: int = 4

    def __post_init__(self):
        require_option(self.contexts >= 1, "contexts", "at least 1", self.contexts)
        require_option(self.actions >= 1, "actions", "at least 1", self.actions)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """One-hot context; zeros at the end."""
        return jax.ShapeDtypeStruct((self.contexts,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """One choice per arm."""
        return gymnasium.spaces.Discrete(self.actions)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw a context, which is the state."""
        return _draw_context(key, self.contexts)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> TaskStep:
        """Score the action and terminate."""
        del key
        reward = (action == state % self.actions).astype(jnp.float32)
        observation = jnp.zeros(self.contexts, jnp.float32)
        return state, observation, reward, jnp.ones((), bool), jnp.zeros((), bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContinuousBandit:
    """A continuous contextual bandit with episodes of one step: reward `1 − (action − target)²`.

    Actions are in [0, 4]; the targets of the contexts are evenly spaced in [0.5, 3.5]. The best
    return is 1; a constant 2 receives about 0, a uniformly random action about -1.
    """

    contexts: int = 8

    def __post_init__(self):
        require_option(self.contexts >= 2, "contexts", "at least 2", self.contexts)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """One-hot context; zeros at the end."""
        return jax.ShapeDtypeStruct((self.contexts,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """Not centred on 0 and wider than [-1, 1], so that missing scaling shows."""
        return gymnasium.spaces.Box(0.0, 4.0, (1,), np.float32)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw a context, which is the state."""
        return _draw_context(key, self.contexts)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> TaskStep:
        """Score the action and terminate."""
        del key
        target = jnp.linspace(0.5, 3.5, self.contexts, dtype=jnp.float32)[state]
        reward = 1.0 - jnp.square(action[0] - target)
        observation = jnp.zeros(self.contexts, jnp.float32)
        return state, observation, reward, jnp.ones((), bool), jnp.zeros((), bool)


def _draw_context(key: jax.Array, contexts: int) -> tuple[jax.Array, jax.Array]:
    context = jax.random.randint(key, (), 0, contexts, jnp.int32)
    return context, jax.nn.one_hot(context, contexts, dtype=jnp.float32)


def _plus_or_minus_one(condition: jax.Array) -> jax.Array:
    return jnp.where(condition, jnp.float32(1.0), jnp.float32(-1.0))


def require_option(condition: bool, name: str, expected: str, got: object) -> None:
    if not condition:
        raise ConfigError(f"env.options.{name}: expected {expected}, got {got!r}")
