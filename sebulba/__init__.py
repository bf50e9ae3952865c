"""Sebulba: JAX reinforcement learning with actor threads, a learner thread and two deques."""

from typing import TYPE_CHECKING, Any

from sebulba.devices.xla_flags import set_xla_flags

if TYPE_CHECKING:
    from sebulba.evaluation.policy import load_policy

__all__ = ["load_policy"]

set_xla_flags()  # Here, since XLA reads them once, when the first backend starts.


def __getattr__(name: str) -> Any:
    # Imported on first use: command lines import this package, and importing jax takes a second.
    if name == "load_policy":
        from sebulba.evaluation.policy import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
