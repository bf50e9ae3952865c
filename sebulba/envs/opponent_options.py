"""The options of a game in turns that say who moves for the opponent."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, TypeGuard

from sebulba.config import EnvConfig
from sebulba.errors import ConfigError, did_you_mean
from sebulba.types import Opponents

OPTIONS = ("opponent", "pool_size", "pool_every", "past_share")
"""The options of a game in turns, besides its own."""

_KINDS = ("random", "self", "past")
_DEFAULT_POOL = {"pool_size": 8, "pool_every": 100, "past_share": 0.2}


def is_run(opponent: Any) -> TypeGuard[str]:
    """Return whether `env.options.opponent` is `RUN_DIR[@CHECKPOINT]`, not a name or a function.

    A path has a slash, or it is that of a directory and has no colon.
    """
    if not isinstance(opponent, str) or opponent in _KINDS:
        return False
    is_path = "/" in opponent or os.sep in opponent
    is_directory = os.path.isdir(opponent) or os.path.isdir(opponent.partition("@")[0])
    return is_path or (":" not in opponent and is_directory)


def take_opponents(options: dict[str, Any]) -> Opponents | str | None:
    """Take the options of the opponent out of `options`.

    Returns:
        The versions of the learner that move for it; `RUN_DIR[@CHECKPOINT]`, whose policy does; or
        None: it moves at random.

    Raises:
        ConfigError: there is no such opponent, or a size is no positive int or without a pool.
    """
    kind = options.pop("opponent", "random")
    if kind not in _KINDS and not is_run(kind):
        hint = did_you_mean(kind, _KINDS) if isinstance(kind, str) else ""
        raise ConfigError(
            f"env.options.opponent: expected {', '.join(_KINDS)} or the directory of a run, got"
            f" {kind!r}{hint}"
        )
    pool: dict[str, Any] = {}
    for name, default in _DEFAULT_POOL.items():
        pool[name] = options.pop(name, None)
        if pool[name] is not None and kind != "past":
            raise ConfigError(
                f"env.options.{name}: expected null with opponent: {kind}, since only past has a"
                f" pool, got {pool[name]!r}"
            )
        pool[name] = default if pool[name] is None else pool[name]
        if name == "past_share":
            if not isinstance(pool[name], (int, float)) or not 0 < pool[name] <= 1:
                got = repr(pool[name])
                raise ConfigError(
                    f"env.options.past_share: expected more than 0 and at most 1, got {got}"
                )
        elif not isinstance(pool[name], int) or pool[name] < 1:
            raise ConfigError(f"env.options.{name}: expected at least 1, got {pool[name]!r}")
    if kind == "random":
        return None
    if kind not in _KINDS:
        return kind
    return Opponents(**pool) if kind == "past" else Opponents()


def without_unused_pool(env: EnvConfig, of_run: Mapping[str, Any]) -> EnvConfig:
    """Return the config of a game against another opponent without the run's settings of its pool.

    Args:
        env: with the other opponent.
        of_run: `env.options` of the run.
    """
    if of_run.get("opponent") != "past" or env.options.get("opponent") == "past":
        return env
    unused = [name for name in _DEFAULT_POOL if env.options.get(name) == of_run.get(name)]
    kept = {name: value for name, value in env.options.items() if name not in unused}
    return dataclasses.replace(env, options=kept)
