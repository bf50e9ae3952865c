"""The configuration of a run: the schema, YAML, flags and plug-ins. Imports no jax.

Begin with `schema.py`, which has every key with its default; `loading.py` reads a file and flags
into it. Only `run_spec.py` needs jax.
"""

from sebulba.config.schema import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    DistributedConfig,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
    ProfileConfig,
    RunConfig,
)

__all__ = [
    "ActorConfig",
    "CheckpointConfig",
    "Config",
    "DevicesConfig",
    "DistributedConfig",
    "EnvConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "ProfileConfig",
    "RunConfig",
]
