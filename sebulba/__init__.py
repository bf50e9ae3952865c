"""Sebulba: JAX reinforcement learning with actor threads, a learner thread and two deques."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sebulba.evaluation.policy import load_policy

__all__ = ["load_policy"]


def __getattr__(name: str) -> Any:
    # Imported on first use: command lines import this package, and importing jax takes a second.
    if name == "load_policy":
        from sebulba.evaluation.policy import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
