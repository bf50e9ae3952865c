"""Environments written in JAX: the built-in tasks, and tasks of your own."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sebulba.config import EnvConfig
from sebulba.envs.jax_environment import (
    IN_TURNS,
    TASK_MEMBERS,
    JaxEnvironment,
    JaxTask,
    take_step_limit,
)
from sebulba.envs.jax_wrappers import wrap
from sebulba.envs.opponent_options import take_opponents
from sebulba.envs.turns import GameInTurns, make_game
from sebulba.envs.wrappers import Wrapper
from sebulba.errors import ConfigError, calling, did_you_mean
from sebulba.references import load

TASKS: dict[str, str] = {
    "Catch-v0": "sebulba.envs.jax_tasks:Catch",
    "Recall-v0": "sebulba.envs.jax_tasks:Recall",
    "Room-v0": "sebulba.envs.jax_rooms:Room",
    "Corridor-v0": "sebulba.envs.jax_players:Corridor",
    "Tides-v0": "sebulba.envs.jax_players:Tides",
    "KuhnPoker-v0": "sebulba.envs.jax_games:KuhnPoker",
    "LeducPoker-v0": "sebulba.envs.jax_leduc:LeducPoker",
    "Bandit-v0": "sebulba.envs.jax_tasks:Bandit",
    "ContinuousBandit-v0": "sebulba.envs.jax_tasks:ContinuousBandit",
}
"""The `JaxTask` dataclass of each built-in environment id, as `module:Name`."""


def make(
    config: EnvConfig, *, num_envs: int, seed: int, wrappers: Sequence[Wrapper] = ()
) -> JaxEnvironment | GameInTurns:
    """Create the task `env.id`, an id in `TASKS` or `module:Name`, with `env.options`.

    The option `max_episode_steps` truncates episodes, and those of `take_opponents` say who moves
    for the opponent of a game in turns; the others go to the task. A wrapper is a function from one
    task to another.

    Raises:
        ConfigError: the task or an option does not exist, or a value is invalid.
    """
    options = dict(config.options)
    max_episode_steps = take_step_limit(options)
    opponents = take_opponents(options) if _is_in_turns(config.id) else None
    task = wrap(_make_task(config.id, options), wrappers)
    return make_game(
        task,
        num_envs=num_envs,
        seed=seed,
        max_episode_steps=max_episode_steps,
        opponents=opponents,
    )


def ids() -> list[str]:
    """Return the ids of the built-in tasks."""
    return list(TASKS)


def _is_in_turns(name: str) -> bool:
    if name not in TASKS and ":" not in name:
        return False
    return hasattr(load(TASKS.get(name, name), key="env.id"), IN_TURNS)


def _make_task(name: str, options: dict[str, Any]) -> JaxTask:
    if name not in TASKS and ":" not in name:
        raise ConfigError(
            f"env.id: unknown JAX task {name!r}{did_you_mean(name, TASKS)}. For a task of your own,"
            " write module:Name"
        )
    factory: Callable[..., JaxTask] = load(TASKS.get(name, name), key="env.id")
    if dataclasses.is_dataclass(factory):
        valid = [field.name for field in dataclasses.fields(factory) if field.init]
        for option in options:
            if option not in valid:
                raise ConfigError(
                    f"env.options.{option}: {name!r} has no such option"
                    f"{did_you_mean(option, [*valid, 'max_episode_steps'])}"
                )
    with calling(f"env.id: {name}", given=f"env.options {options}"):
        task = factory(**options)
    if missing := [each for each in TASK_MEMBERS if not hasattr(task, each)]:
        raise ConfigError(
            f"env.id: {name} has no {' and no '.join(missing)}, which every JAX task has. For a"
            " Gymnasium environment, set env.suite gymnasium"
        )
    return task
