"""What a run is told: the schema, and how it is read from YAML and flags. Imports no jax."""

from sebulba.config.schema import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    DistributedConfig,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
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
    "RunConfig",
]
