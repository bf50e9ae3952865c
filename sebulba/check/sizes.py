"""Smaller sizes for the run on the probe, so that a check takes minutes.

The questions are about rows, sequences, minibatches and environments, and not about their number.
The planted faults of the tests are found with sizes like those below.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from sebulba.check.settings import settings_of, with_settings
from sebulba.config import Config
from sebulba.config.agents import make_agent
from sebulba.types import EnvironmentSpec, PyTree, RunSpec

# Learner cycles before the first update, the fewest first: long sequences need more rows.
_CYCLES_BEFORE_LEARNING = (6, 20)
# Learner cycles whose rows fit the replay, more than are recorded, so that none are replaced.
_CYCLES_IN_REPLAY = 32
_MAX_UPDATES = 32  # of a cycle, if rows come from a replay
_CYCLES_OF_UPDATES = 100  # in which their number is looked up
# One loss of a large network takes seconds for a whole batch, and a check computes hundreds.
_NUM_ENVS = 4
_TRAJECTORY_LENGTH = 16
_SETTINGS = {
    "batch_size": 16,
    "num_minibatches": 4,
    "num_epochs": 2,
    "burn_in": 8,
    "learn_length": 16,
}
_MAX_PRODUCTS = 1e9  # of parameters and elements of an observation


def is_large(networks: PyTree, environment: EnvironmentSpec) -> bool:
    """Return whether hundreds of updates of the networks take too long.

    Args:
        networks: the learner's, or their shapes.
        environment: its observations are the networks' inputs.
    """
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(networks))
    num_inputs = sum(leaf.size for leaf in jax.tree.leaves(environment.observation))
    return num_parameters * num_inputs > _MAX_PRODUCTS


def smaller(
    config: Config, run_spec: RunSpec, *, num_players: int, has_large_networks: bool
) -> Iterator[Config]:
    """Yield configs with smaller sizes that the agent accepts, the smallest first, then the config.

    A replay gets little more rows than the check records, and takes few updates in a cycle.

    Args:
        config: the run's.
        run_spec: the run's counts.
        num_players: of an environment; each counts as an environment here.
        has_large_networks: also make environments, trajectories and batches fewer or shorter.
    """
    if has_large_networks:
        small = _with_small_batches(config, run_spec.num_learner_devices * num_players)
        yield from _with_small_replays(small, run_spec)
    yield from _with_small_replays(config, run_spec)
    yield config


def differences(config: Config, other: Config) -> tuple[str, ...]:
    """Return the sizes of another config that differ from a config's, as `key value (before)`."""
    found = []
    for section in ("actor", "agent"):
        ours, theirs = (dict(settings_of(getattr(each, section))) for each in (config, other))
        found += [
            f"{section}.{name} {_number(theirs[name])} ({_number(value)})"
            for name, value in ours.items()
            if theirs[name] != value and name != "threads_per_device"
        ]
    return tuple(found)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _with_small_batches(config: Config, num_shares: int) -> Config:
    def at_most(limit: int, value: int) -> int:
        # Every learner device has an equal share, with all players of an environment.
        return min(value, -(-limit // num_shares) * num_shares)

    settings = dict(settings_of(config.agent))
    actor = dataclasses.replace(
        config.actor,
        num_envs=at_most(_NUM_ENVS, config.actor.num_envs),
        trajectory_length=min(_TRAJECTORY_LENGTH, config.actor.trajectory_length),
    )
    fewer = {
        name: at_most(limit, settings[name]) if name == "batch_size" else min(limit, settings[name])
        for name, limit in _SETTINGS.items()
        if isinstance(settings.get(name), int)
    }
    return dataclasses.replace(config, actor=actor, agent=with_settings(config.agent, **fewer))


def _with_small_replays(config: Config, run_spec: RunSpec) -> Iterator[Config]:
    run_spec = dataclasses.replace(
        run_spec,
        num_envs=config.actor.num_envs,
        trajectory_length=config.actor.trajectory_length,
    )
    cycle = run_spec.num_streams * run_spec.trajectory_length * run_spec.trajectories_per_cycle
    settings = dict(settings_of(config.agent))
    for num_cycles in _CYCLES_BEFORE_LEARNING:
        rows = {
            "min_replay_rows": num_cycles * cycle,
            "replay_capacity": max(_CYCLES_IN_REPLAY * cycle, settings.get("batch_size", 1)),
        }
        fewer = {
            name: min(limit, settings[name])
            for name, limit in rows.items()
            if isinstance(settings.get(name), int)
        }
        try:
            agent = _with_few_updates(with_settings(config.agent, **fewer), run_spec)
        except Exception:
            continue  # It accepts its own sizes, and need not have an error for others.
        yield dataclasses.replace(config, agent=agent)
        if not fewer:
            return


def _with_few_updates(settings: Any, run_spec: RunSpec) -> Any:
    """Return an agent's settings with a replay ratio of at most a few updates in a cycle."""
    agent = make_agent(settings, run_spec)
    ratio = dict(settings_of(settings)).get("replay_ratio")
    if not isinstance(ratio, float):
        return settings
    most = max(agent.num_updates_per_cycle(cycle) for cycle in range(_CYCLES_OF_UPDATES))
    return with_settings(settings, replay_ratio=ratio * min(1.0, _MAX_UPDATES / max(most, 1)))
