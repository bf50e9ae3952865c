"""The protocols of an environment adapter: a batch of environments under the stream contract."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sebulba.types import Array, EnvironmentSpec, EnvStep, PyTree


class EnvironmentFault(RuntimeError):
    """An environment raised, its process died, or its data is invalid.

    The message names the environment's index in the batch if it is known.
    """

    # Env steps of the unfinished trajectory, which are lost.
    env_steps: int = 0


class EnvironmentDataError(EnvironmentFault):
    """An environment returned invalid data; the message names the leaf."""


class EnvironmentTimeout(EnvironmentFault):
    """An environment exceeded `actor.env_timeout_s`."""


class ActionError(ValueError):
    """The caller passed an invalid action; no environment has been stepped."""


TraceableStep = Callable[[PyTree, PyTree], tuple[PyTree, EnvStep]]
"""`(state, action) -> (state, EnvStep)`, for all environments, inside `jit`."""

Opponent = Callable[[PyTree, EnvStep, Array], tuple[PyTree, PyTree]]
"""`(opponent_state, row, waiting) -> (action, opponent_state)`: moves for the other player.

The row `[B]` is what this player sees, and `waiting` `[B]` says in which games it is to move. The
others ignore its action, and their part of its state must stay as it is.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StepInTurns:
    """A `TraceableStep` of games against an opponent, which moves at random unless it is given."""

    # (state, action, opponent, opponent_state) -> (state, EnvStep, opponent_state)
    against: Callable[[PyTree, PyTree, Opponent, PyTree], tuple[PyTree, EnvStep, PyTree]]
    at_random: TraceableStep

    def __call__(self, state: PyTree, action: PyTree) -> tuple[PyTree, EnvStep]:
        """Step against random moves."""
        return self.at_random(state, action)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedEnvironment:
    """An environment that can be stepped inside `jit` and `lax.scan`."""

    state: PyTree  # after the latest reset or step
    step: TraceableStep
    # True: `state` is the complete state, so a checkpoint can hold it. False: it refers to memory
    # outside JAX, such as the address of a C++ object.
    is_whole_state: bool = False
    # state -> (state, EnvStep), see `Restartable.restart`; called from Python between act cycles.
    restart: Callable[[PyTree], tuple[PyTree, EnvStep]] | None = None


class Environment(Protocol):
    """`num_envs` environments stepped together, with autoreset on the next step.

    `sebulba.types` defines the stream contract; `tests/envs/test_conformance.py` tests it. `B` is
    `num_envs`, times `spec.num_players` if several players act in an environment.
    """

    num_envs: int
    spec: EnvironmentSpec

    def reset(self) -> EnvStep:
        """Start all episodes; the first call, made once.

        Returns:
            NumPy leaves `[B, ...]`, `is_first` all True.
        """
        ...

    def step(self, action: PyTree) -> EnvStep:
        """Step all environments; the action after a row that ended an episode is ignored.

        Args:
            action: NumPy, `[B, ...]`, of the shape and dtype of `spec.action_space`. The adapter
                converts it to what the environment takes, see `sebulba.envs.actions`.

        Returns:
            NumPy leaves `[B, ...]` that the environment never writes to again: JAX on CPU aliases
            NumPy memory instead of copying it.

        Raises:
            ActionError: the action has a wrong shape or dtype, is outside a discrete space, or is
                not finite.
            EnvironmentFault: the adapter can add to the original error, such as the environment.
        """
        ...

    def fused(self) -> FusedEnvironment | None:
        """Return the environment as a traceable step, or None if it cannot run inside `jit`.

        Call it after `reset`; from then on, step only through the returned function.
        """
        ...

    def close(self) -> None:
        """Release processes, threads and memory; may be called twice."""
        ...


@runtime_checkable
class DescribedEnvironment(Protocol):
    """An environment that reports its settings."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that define the task, defaults included, as JSON values."""
        ...


@runtime_checkable
class RenderedEnvironment(Protocol):
    """An environment that can be rendered."""

    def render(self) -> np.ndarray:
        """Return the first environment's frame at the latest row, uint8 `[H, W, 3]`."""
        ...


@runtime_checkable
class RenderedMoves(Protocol):
    """An environment that can be rendered after each move of a step."""

    def frames(self) -> list[np.ndarray]:
        """Return the first environment's frames since the row before the latest, see `render`."""
        ...


@runtime_checkable
class WholeState(Protocol):
    """An environment whose complete state can be read and set, also when stepped from Python."""

    whole_state: PyTree  # complete, so a checkpoint can hold it


@runtime_checkable
class Restartable(Protocol):
    """An environment that can abandon its episodes and start new ones at any time."""

    def restart(self) -> EnvStep:
        """Start a new, different episode in every environment; returns a row like `reset`."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """An environment whose steps and resets can time out with an `EnvironmentTimeout`."""

    timeout_s: float | None  # None: no limit


def reset_row(
    observation: PyTree,
    *,
    num_envs: int,
    reports_game_over: bool = False,
    action_mask: np.ndarray | None = None,
) -> EnvStep:
    """Return the NumPy row of a reset of all environments.

    Args:
        observation: `[B, ...]`.
        num_envs: `B`.
        reports_game_over: whether the stream has `episode_over`: it ends episodes at a lost life.
        action_mask: `[B, A]`; None if the environment has none.
    """
    return EnvStep(
        observation=observation,
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, bool),
        truncated=np.zeros(num_envs, bool),
        is_first=np.ones(num_envs, bool),
        episode_over=np.zeros(num_envs, bool) if reports_game_over else None,
        action_mask=action_mask,
    )
