"""What a run is told: the schema, and how it is read from YAML and flags. Imports no jax.

Begin with `schema.py`: every key with its default. `loading.py` reads a file and flags into it.
Imports the contract and the table of `sebulba_agents`; `run_spec.py` alone needs jax.
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
