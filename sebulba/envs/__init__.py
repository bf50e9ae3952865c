"""The environment suites. A new one is one adapter file here and a line in `SUITES`."""

from collections.abc import Callable

from sebulba.config import EnvConfig
from sebulba.envs.base import Environment
from sebulba.envs.lookup import did_you_mean, load
from sebulba.errors import ConfigError

SUITES: dict[str, str] = {
    "envpool": "sebulba.envs.envpool:make",
    "gymnasium": "sebulba.envs.gymnasium:make",
    "jax": "sebulba.envs.jax_suite:make",
}
"""`(config, *, num_envs, seed) -> Environment` as `module:function`, by the name of the suite."""


def make_environment(config: EnvConfig, *, num_envs: int, seed: int) -> Environment:
    """Makes a batch of environments; imports its suite.

    Args:
        config: `suite` is a name in `SUITES`, or `module:function` for one's own.
        num_envs: `B`.
        seed: in `[0, 2**31)`. Most libraries seed environment `i` with `seed + i`, so batches need
            seeds that are far apart; see `sebulba.prng.environment_seed`.

    Raises:
        ConfigError: there is no such suite, environment or option.
    """
    if num_envs < 1:
        raise ConfigError(f"actor.num_envs: expected at least 1, got {num_envs}")
    return _suite(config.suite)(config, num_envs=num_envs, seed=seed)


def _suite(name: str) -> Callable[..., Environment]:
    if name in SUITES:
        return load(SUITES[name], key="env.suite")
    if ":" in name:
        return load(name, key="env.suite")
    raise ConfigError(
        f"env.suite: expected one of {', '.join(SUITES)}, or module:function, got {name!r}"
        f"{did_you_mean(name, SUITES)}"
    )
