"""A process elsewhere that is asked for one thing after another, and may die at any moment."""

from typing import Any, Protocol


class ProcessLost(RuntimeError):
    """The process died, or cannot be reached; whoever starts it may start it again."""


class ProcessGone(RuntimeError):
    """The process died, and no other is started."""


class RemoteProcess(Protocol):
    """An object in a process elsewhere, and whoever starts that again when it has died."""

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method; `wait` has returned for the one before, or raised."""
        ...

    def wait(self, seconds: float) -> tuple[Any, ...] | None:
        """Return what the method returned; None: it has not returned after `seconds`.

        Raises:
            ProcessLost: the process died before that. Calls reach the next one.
            ProcessGone: there will be no other.
            ConfigError: the process cannot make its object.
        """
        ...

    def kill(self) -> None:
        """End the process; no other is started."""
        ...
