"""The environment suites. A new one is one adapter file here and a line in `SUITES`.

Begin with `base.py`, the protocol of an adapter. Imports the contract and `config`. Importing the
package itself imports no suite and no jax: `python -m sebulba.envs` lists what is installed.
"""

from __future__ import annotations

import typing

from sebulba.config import EnvConfig
from sebulba.config.plugins import SUITES_GROUP, load_named
from sebulba.envs.lookup import missing_package
from sebulba.errors import ConfigError

if typing.TYPE_CHECKING:
    from sebulba.envs.base import Environment

SUITES: dict[str, str] = {
    "ale": "sebulba.envs.ale:make",
    "envpool": "sebulba.envs.envpool:make",
    "gymnasium": "sebulba.envs.gymnasium:make",
    "gymnax": "sebulba.envs.gymnax:make",
    "jax": "sebulba.envs.jax_suite:make",
}
"""`(config, *, num_envs, seed) -> Environment` as `module:function`, by the name of the suite."""

PACKAGES: dict[str, str] = {
    "ale": "ale-py",
    "envpool": "envpool",
    "gymnasium": "gymnasium",
    "gymnax": "gymnax",
}
"""The installed package that a suite's environments come from; those of others come with ours."""


def make_environment(config: EnvConfig, *, num_envs: int, seed: int) -> Environment:
    """Makes a batch of environments; imports its suite.

    Args:
        config: `suite` is a name in `SUITES`, one that an installed package brings (see
            `sebulba.config.plugins`), or `module:function` for one's own.
        num_envs: `B`.
        seed: in `[0, 2**31)`. Most libraries seed environment `i` with `seed + i`, so batches need
            seeds that are far apart; see `sebulba.toolkit.prng.environment_seed`.

    Raises:
        ConfigError: there is no such suite, environment or option, or the package of an extra that
            it needs is not installed.
    """
    if num_envs < 1:
        raise ConfigError(f"actor.num_envs: expected at least 1, got {num_envs}")
    try:
        make = load_named(config.suite, SUITES, group=SUITES_GROUP, key="env.suite")
        return make(config, num_envs=num_envs, seed=seed)
    except Exception as error:
        missing = missing_package(error)
        if missing is None:
            raise
        raise ConfigError(f"env.suite {config.suite}, env.id {config.id}: {missing}") from error
