"""What an environment adapter is: a batch of environments that keeps the stream contract."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sebulba.types import EnvironmentSpec, EnvStep, PyTree


class EnvironmentFault(RuntimeError):
    """An environment failed: it raised, its process ended, or its data cannot be learned from.

    The message says which environment of the batch, where that is known.
    """

    # Of the trajectory that was under way: env steps that were acted and are lost.
    env_steps: int = 0


class EnvironmentDataError(EnvironmentFault):
    """An environment gave data that cannot be learned from; the message names the leaf."""


class EnvironmentTimeout(EnvironmentFault):
    """An environment did not answer in time; `actor.env_timeout_s`."""


class ActionError(ValueError):
    """The caller handed over an action that cannot be acted; no environment has seen it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedEnvironment:
    """An environment that can be stepped inside `jit` and `lax.scan`."""

    state: PyTree  # where the stream stands now; follows the latest reset or step
    step: Callable[[PyTree, PyTree], tuple[PyTree, EnvStep]]  # (state, action) -> (state, EnvStep)
    # Whether `state` is all there is to the environment, so that a checkpoint may hold it; where it
    # is not, it refers to something outside: an address, say.
    is_whole_state: bool = False
    # state -> (state, EnvStep): as `Restartable.restart`; called from Python, between two cycles.
    restart: Callable[[PyTree], tuple[PyTree, EnvStep]] | None = None


class Environment(Protocol):
    """`num_envs` environments stepped together, autoresetting on the next step.

    See `sebulba.types` for the stream contract, which every adapter keeps and
    `tests/envs/test_conformance.py` proves.
    """

    num_envs: int
    spec: EnvironmentSpec

    def reset(self) -> EnvStep:
        """Starts all episodes; called once, first. NumPy leaves `[B, ...]`, `is_first` all True."""
        ...

    def step(self, action: PyTree) -> EnvStep:
        """Steps all environments; an action of an environment whose last row was done is ignored.

        Args:
            action: NumPy, `[B, ...]`, of the action space's dtype. The adapter scales continuous
                actions that the environment bounds from [-1, 1], and clips what is beyond.

        Returns:
            NumPy leaves `[B, ...]` that are the caller's: never written to again by the environment
            (JAX on CPU aliases NumPy memory instead of copying it).

        Raises:
            ActionError: the action has a wrong shape or dtype, is no action of a discrete space, or
                is not finite.
            EnvironmentFault: where the adapter knows more of a failure than what was raised.
        """
        ...

    def fused(self) -> FusedEnvironment | None:
        """Returns the environment as a traceable step, or None if it cannot run inside `jit`.

        Called after `reset`; from then on the stream goes on through the traceable step alone.
        """
        ...

    def close(self) -> None:
        """Releases processes, threads and memory; may be called twice."""
        ...


@runtime_checkable
class DescribedEnvironment(Protocol):
    """An environment that can say what it was made with."""

    def settings(self) -> dict[str, Any]:
        """Returns the settings that make the task what it is, defaults included; JSON values."""
        ...


@runtime_checkable
class RenderedEnvironment(Protocol):
    """An environment that can be looked at."""

    def render(self) -> np.ndarray:
        """Returns the first environment's picture as of the latest row, uint8 `[H, W, 3]`."""
        ...


@runtime_checkable
class WholeState(Protocol):
    """An environment that can be set to where it stood, also when it is stepped from Python."""

    whole_state: PyTree  # all there is to it, so that a checkpoint may hold it


@runtime_checkable
class Restartable(Protocol):
    """An environment that can begin new episodes at any time, whatever was under way."""

    def restart(self) -> EnvStep:
        """Begins an episode in every environment, another one each time; as `reset` otherwise."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """An environment that can give up waiting for a step or a reset: `EnvironmentTimeout`."""

    timeout_s: float | None  # None: it waits for ever


def reset_row(observation: PyTree, *, num_envs: int, tells_of_games: bool = False) -> EnvStep:
    """Returns the row of a reset of all environments, NumPy's.

    Args:
        observation: `[B, ...]`.
        num_envs: `B`.
        tells_of_games: whether rows say where a game is over, beside where its stream's episode is.
    """
    return EnvStep(
        observation=observation,
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, bool),
        truncated=np.zeros(num_envs, bool),
        is_first=np.ones(num_envs, bool),
        episode_over=np.zeros(num_envs, bool) if tells_of_games else None,
    )
