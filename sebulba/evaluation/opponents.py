"""The policy of a run as the opponent in games of two players in turns."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from sebulba.config import Config
from sebulba.envs import SUITES_IN_TURNS
from sebulba.envs.base import Opponent
from sebulba.envs.opponent_options import is_run
from sebulba.errors import ConfigError
from sebulba.evaluation.policy import act_function
from sebulba.evaluation.sampling import init_actor_state
from sebulba.evaluation.stored import (
    StoredPolicy,
    exact_source,
    load_stored_policy,
    parse_source,
)
from sebulba.storage.checkpoints.restore import CheckpointError
from sebulba.storage.fingerprint import crc32_of_file
from sebulba.storage.names import CHECKPOINTS, CONFIG, MANIFEST
from sebulba.toolkit.self_play import keep_where
from sebulba.types import ActorState, Array, EnvironmentSpec, EnvStep, Networks, PyTree

_KEY = "env.options.opponent"

Move = Callable[[Networks, ActorState, EnvStep, Array], tuple[PyTree, ActorState]]
"""An `Opponent`, given its networks: `(networks, actor_state, row, waiting)`."""


def move_of(run: StoredPolicy, *, greedy: bool) -> Move:
    """Return the function that moves for an opponent as a run's policy acts."""
    act = act_function(run, greedy=greedy)

    def move(
        networks: Networks, before: ActorState, row: EnvStep, waiting: Array
    ) -> tuple[PyTree, ActorState]:
        action, after = act(networks, before, row)
        return action, keep_where(run.agent, waiting, after, before)

    return move


def state_before_games(
    run: StoredPolicy, key: jax.Array, *, num_envs: int, greedy: bool
) -> ActorState:
    """Return the actor state of an opponent before its first move; consumes the key."""
    return init_actor_state(
        run.agent,
        run.networks,
        key,
        num_envs=num_envs,
        num_training_envs=run.num_training_envs,
        env_steps=run.env_steps,
        greedy=greedy,
    )


def opponent_of_run(
    source: str, spec: EnvironmentSpec, num_envs: int, key: jax.Array
) -> tuple[str, Opponent, ActorState]:
    """Return a run's policy as `GameInTurns.play_against` takes it; it samples its moves.

    Args:
        source: `RUN_DIR[@CHECKPOINT]`.
        spec: of the game.
        num_envs: games.
        key: consumed.

    Raises:
        ConfigError: there is no such run or checkpoint, the run's game has other observations or
            actions, or its environment or agent cannot be created.
    """
    exact = exact_source(source, key=_KEY)
    run, opponent = _loaded(exact, crc32_of_file(_manifest_of(exact)))
    theirs = (run.environment.observation_leaves, run.environment.action_space)
    if theirs != (spec.observation_leaves, spec.action_space):
        env = run.config.env
        raise ConfigError(
            f"{_KEY}: expected a run with the observations and actions of this game, got {source},"
            f" of {env.suite} {env.id}"
        )
    return exact, opponent, state_before_games(run, key, num_envs=num_envs, greedy=False)


@functools.lru_cache(maxsize=2)
def _loaded(source: str, crc32: str | None) -> tuple[StoredPolicy, Opponent]:
    """Return a run's policy, and how it moves; the actors of a process share them.

    Args:
        source: the result of `exact_source`.
        crc32: of the checkpoint's manifest, since another run may be at the same place later.
    """
    del crc32
    try:
        run = load_stored_policy(*parse_source(source))
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"{_KEY}: {source}: {error}") from error
    # Constants of the step: in the state of the games they would be copied with it. As NumPy arrays
    # they are of no device, so actors on all devices can have them.
    networks = jax.tree.map(np.asarray, run.networks)
    return run, functools.partial(move_of(run, greedy=False), networks)


def with_exact_opponent(config: Config) -> Config:
    """Return the config with the checkpoint of a run that is the opponent; see `exact_source`.

    Raises:
        ConfigError: the run has no such checkpoint.
    """
    if not _has_run(config):
        return config
    options = dict(config.env.options)
    options["opponent"] = exact_source(options["opponent"], key=_KEY)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, options=options))


def opponent_files(config: Config) -> dict[str, str]:
    """Return the manifest of the opponent's checkpoint by its source; {}: it is no run.

    Its checksum is one of the networks, so a run that records it says whom it has played against.
    """
    if not _has_run(config):
        return {}
    source = exact_source(config.env.options["opponent"], key=_KEY)
    return {source: _manifest_of(source)}


def _has_run(config: Config) -> bool:
    # A task that is no game in turns may have an option of this name.
    opponent = config.env.options.get("opponent")
    if config.env.suite not in SUITES_IN_TURNS or not is_run(opponent):
        return False
    return (parse_source(opponent)[0] / CONFIG).is_file()


def _manifest_of(source: str) -> str:
    run_dir, step = parse_source(source)
    return str(pathlib.Path(run_dir, CHECKPOINTS, str(step), MANIFEST))
