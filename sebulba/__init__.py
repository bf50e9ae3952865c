"""Sebulba: actor threads, one learner thread, and the two deques between them, for JAX."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sebulba.evaluation.policy import load_policy

__all__ = ["load_policy"]


def __getattr__(name: str) -> Any:
    # Not on import: command lines import the package before they need jax, which takes a second.
    if name == "load_policy":
        from sebulba.evaluation.policy import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
