"""Sebulba: JAX reinforcement learning with actor threads, a learner thread and two deques."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sebulba.config.loading import load_config
    from sebulba.evaluation.policy import load_policy

__version__ = "0.2.0"
__all__ = ["__version__", "load_config", "load_policy"]

_HOMES = {
    "load_config": "sebulba.config.loading",
    "load_policy": "sebulba.evaluation.policy",
}
"""The module of each function above."""


def __getattr__(name: str) -> Any:
    # Imported on first use: command lines import this package, and importing jax takes a second.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
