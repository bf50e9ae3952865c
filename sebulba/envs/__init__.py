"""The environment suites: one adapter file each. To add a suite, write one and list it in `SUITES`.

Begin with `base.py`, the protocol of an adapter. Imports the contract and `config`. Importing the
package imports no suite and no jax; `python -m sebulba.envs` lists the suites.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable

from sebulba.config import EnvConfig
from sebulba.config.extras import missing_package
from sebulba.config.plugins import SUITES_GROUP, load_named
from sebulba.envs.identity import Purpose, asked_for
from sebulba.envs.versions import check_gymnasium
from sebulba.envs.wrappers import load_wrappers
from sebulba.errors import ConfigError, describe_error

if typing.TYPE_CHECKING:
    from sebulba.envs.base import Environment

SUITES: dict[str, str] = {
    "ale": "sebulba.envs.ale:make",
    "craftax": "sebulba.envs.craftax:make",
    "dm_env": "sebulba.envs.dm_env:make",
    "envpool": "sebulba.envs.envpool:make",
    "gymnasium": "sebulba.envs.gymnasium:make",
    "gymnax": "sebulba.envs.gymnax:make",
    "jax": "sebulba.envs.jax_suite:make",
    "jaxmarl": "sebulba.envs.jaxmarl:make",
    "jumanji": "sebulba.envs.jumanji:make",
    "pettingzoo": "sebulba.envs.pettingzoo:make",
    "pgx": "sebulba.envs.pgx:make",
    "playground": "sebulba.envs.playground:make",
}
"""The factory of each suite, as `module:function`: `(config, *, num_envs, seed) -> Environment`.

A suite whose environments can be wrapped also takes `wrappers`, a tuple of functions from one
environment to one environment. One that wants to know takes `purpose`, and `env_index`, the number
of its first environment, see `sebulba.envs.identity`.
"""

SUITES_IN_TURNS = ("jax", "pgx")
"""Those with games in turns."""
_WITHOUT_TURNS = frozenset(SUITES) - frozenset(SUITES_IN_TURNS)

PACKAGES: dict[str, str] = {
    "ale": "ale-py",
    "craftax": "craftax",
    "dm_env": "dm-env",
    "envpool": "envpool",
    "gymnasium": "gymnasium",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
    "pettingzoo": "pettingzoo",
    "pgx": "pgx",
    "playground": "playground",
}
"""The package that provides a suite's environments; other suites are part of Sebulba."""


def make_environment(
    config: EnvConfig,
    *,
    num_envs: int,
    seed: int,
    purpose: Purpose = "inspect",
    env_index: int = 0,
) -> Environment:
    """Create a batch of environments; imports their suite.

    Args:
        config: `suite` is a name in `SUITES`, a plug-in's name (see `sebulba.config.plugins`), or
            `module:function`.
        num_envs: `B`.
        seed: in `[0, 2**31)`. Most libraries seed environment `i` with `seed + i`, so seeds of
            different batches must be far apart; see `sebulba.toolkit.prng.environment_seed`.
        purpose: what the environments are for.
        env_index: the number of the first environment among all that have this purpose.

    Raises:
        ConfigError: the suite, environment, a wrapper or an option does not exist, or a package is
            missing or too old.
        EnvironmentFault: the environment's constructor raised.
    """
    check_gymnasium()
    if config.options.get("opponent") in ("self", "past") and config.suite in _WITHOUT_TURNS:
        raise ConfigError(
            f"env.options.opponent: expected no {config.options['opponent']} in {config.suite}; the"
            f" suites with games in turns against the learner are {' and '.join(SUITES_IN_TURNS)}"
        )
    if num_envs < 1:
        raise ConfigError(f"actor.num_envs: expected at least 1, got {num_envs}")
    try:
        make = load_named(config.suite, SUITES, group=SUITES_GROUP, key="env.suite")
        identity = asked_for(make, {"purpose": purpose, "env_index": env_index})
        _check_factory(config, make, identity)
        environment = make(
            config, num_envs=num_envs, seed=seed, **identity, **_wrappers(config, make)
        )
    except Exception as error:
        from sebulba.envs.base import EnvironmentFault  # imports jax

        missing = missing_package(error)
        if missing is not None:
            raise ConfigError(f"env.suite {config.suite}, env.id {config.id}: {missing}") from error
        if isinstance(error, ConfigError | EnvironmentFault):
            raise
        raise EnvironmentFault(f"its constructor raised {describe_error(error)}") from error
    from sebulba.envs.data_checks import check_environment  # imports jax

    check_environment(environment, suite=config.suite, name=config.id)
    return environment


def _check_factory(
    config: EnvConfig, make: Callable[..., Environment], identity: dict[str, typing.Any]
) -> None:
    """Check that a factory can be called as `make_environment` does."""
    try:
        inspect.signature(make).bind(config, num_envs=1, seed=0, **identity)
    except TypeError as error:
        signature = inspect.signature(make) if callable(make) else type(make).__name__
        raise ConfigError(
            f"env.suite: expected a function (config, *, num_envs, seed), got {config.suite}"
            f"{signature}. For a Gymnasium environment of your own, set env.suite gymnasium and"
            f" env.id {config.suite}"
        ) from error
    except ValueError:  # Written in C.
        return


def _wrappers(config: EnvConfig, make: Callable[..., Environment]) -> dict[str, typing.Any]:
    """Return the argument `wrappers` of a suite's factory, if the config has any."""
    if not config.wrappers:
        return {}
    if "wrappers" not in inspect.signature(make).parameters:
        raise ConfigError(
            f"env.wrappers: {config.suite} steps its environments as a batch, which no wrapper can"
            " be put around. Remove env.wrappers and use env.options, or choose a suite with"
            " wrappers: gymnasium and dm_env (Gymnasium wrappers), pettingzoo (PettingZoo's),"
            " craftax, gymnax, jax, jaxmarl, jumanji, pgx or playground (wrappers of JAX tasks)"
        )
    return {"wrappers": load_wrappers(config.wrappers)}


_WITH_WORKERS = ("dm_env", "gymnasium", "pettingzoo")


def without_workers(config: EnvConfig) -> EnvConfig:
    """Return the config of the same environments, stepped without worker processes."""
    if config.suite not in _WITH_WORKERS or config.options.get("vectorization_mode") != "async":
        return config
    options = config.options | {"vectorization_mode": "sync", "vector_kwargs": {}}
    return dataclasses.replace(config, options=options)
