"""What an environment adapter is: a batch of environments that keeps the stream contract."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

from sebulba.types import EnvironmentSpec, EnvStep, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedEnvironment:
    """An environment that can be stepped inside `jit` and `lax.scan`."""

    state: PyTree  # where the stream stands now; follows the latest reset or step
    step: Callable[[PyTree, PyTree], tuple[PyTree, EnvStep]]  # (state, action) -> (state, EnvStep)
    # Whether `state` is all there is to the environment, so that a checkpoint may hold it; where it
    # is not, it refers to something outside: an address, say.
    is_whole_state: bool = False


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
            action: NumPy, `[B, ...]`, of the action space's dtype. Continuous actions that the
                environment bounds are in [-1, 1]; the adapter scales them.

        Returns:
            NumPy leaves `[B, ...]` that are the caller's: never written to again by the environment
            (JAX on CPU aliases NumPy memory instead of copying it).

        Raises:
            ValueError: the action has a wrong shape, dtype or range.
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
