"""Whether the seeds of a command are trained as one program. Imports no jax."""

from sebulba.config import Config
from sebulba.devices.xla_flags import has_accelerator
from sebulba.errors import ConfigError


def are_mapped(config: Config) -> bool:
    """Return whether the seeds of a config are trained as one program, as `run.seeds` says.

    Raises:
        ConfigError: `run.seeds` is mapped, and that is impossible.
    """
    expectations = (
        ("run.mode", "anakin", config.run.mode),
        ("distributed.mode", "off", config.distributed.effective_mode),
        ("run.profile", None, config.run.profile),
        ("run.wandb_project", None, config.run.wandb_project),
    )
    for key, expected, got in expectations:
        if got != expected and config.run.seeds == "mapped":
            raise ConfigError(
                f"{key}: expected {'null' if expected is None else expected} with run.seeds mapped,"
                f" got {got}. Or set run.seeds in_turn"
            )
    is_possible = all(got == expected for _, expected, got in expectations)
    is_wanted = has_accelerator() and config.devices.actor != "cpu"
    return config.run.seeds == "mapped" or (
        config.run.seeds == "auto" and is_possible and is_wanted
    )
