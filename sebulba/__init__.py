"""Sebulba: JAX reinforcement learning with actor threads, a learner thread and two deques."""

from sebulba.process import end_on_stop_signals, is_command

if is_command():  # Before all other imports, in which a signal would raise KeyboardInterrupt.
    end_on_stop_signals("interrupted before the start")

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sebulba.devices.xla_flags import set_xla_flags

if TYPE_CHECKING:
    from sebulba.config.loading import load_config
    from sebulba.config.schema import Config
    from sebulba.errors import ConfigError
    from sebulba.evaluate import EvaluationResult, evaluate
    from sebulba.evaluation.policy import load_policy
    from sebulba.run.result import Result, TrainingError, TrainingInterrupted
    from sebulba.storage.checkpoints.restore import CheckpointError
    from sebulba.train import train

__version__ = "0.2.0"
__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "EvaluationResult",
    "Result",
    "TrainingError",
    "TrainingInterrupted",
    "__version__",
    "evaluate",
    "load_config",
    "load_policy",
    "train",
]

_HOMES = {
    "CheckpointError": "sebulba.storage.checkpoints.restore",
    "Config": "sebulba.config.schema",
    "ConfigError": "sebulba.errors",
    "EvaluationResult": "sebulba.evaluate",
    "Result": "sebulba.run.result",
    "TrainingError": "sebulba.run.result",
    "TrainingInterrupted": "sebulba.run.result",
    "evaluate": "sebulba.evaluate",
    "load_config": "sebulba.config.loading",
    "load_policy": "sebulba.evaluation.policy",
    "train": "sebulba.train",
}
"""The module of each name above."""

set_xla_flags()  # Here, since XLA reads them once, when the first backend starts.


class _Package(ModuleType):
    """This package, in which `train` and `evaluate` are the functions and not their modules."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python gives a package each submodule that is imported, under the module's name.
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    # Imported on first use: command lines import this package, and importing jax takes a second.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
