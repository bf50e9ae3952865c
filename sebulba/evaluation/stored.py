"""Loading a trained policy from its run directory: config, agent and networks."""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from sebulba.agent import Agent
from sebulba.config import Config, EnvConfig
from sebulba.config.agents import make_agent
from sebulba.config.file import read_config_file
from sebulba.config.loading import load_config
from sebulba.config.naming import expanded
from sebulba.config.objects import named_agent, with_environment
from sebulba.config.run_spec import make_run_spec, num_actors_of_host
from sebulba.devices.roles import check_platforms, num_actor_devices
from sebulba.envs import make_environment, without_workers
from sebulba.envs.opponent_options import is_run, without_unused_pool
from sebulba.errors import ConfigError, did_you_mean
from sebulba.process import program
from sebulba.references import refuse_references
from sebulba.storage.checkpoints.restore import (
    CheckpointError,
    Which,
    find_step,
    restore,
    steps_in,
)
from sebulba.storage.names import CHECKPOINTS, CONFIG, RUN, SOURCES
from sebulba.storage.run_files import describe_runs_in
from sebulba.toolkit.past_play import player_of
from sebulba.types import EnvironmentSpec, Networks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StoredPolicy:
    """The policy of a checkpoint."""

    config: Config
    agent: Agent
    environment: EnvironmentSpec
    networks: Networks  # the result of `Agent.actor_networks`, on `device`
    device: jax.Device
    learner_cycle: int  # of the checkpoint
    env_steps: int  # learned from up to that cycle
    updates: int

    @property
    def num_training_envs(self) -> int:
        """Environments of all actors of a host, times their players: those of `agent`'s spec."""
        actor = self.config.actor
        num_actors = num_actors_of_host(actor, num_actor_devices(self.config.devices))
        return num_actors * actor.num_envs * self.environment.num_players


_PLACES = ("run_dir", "init_from", "resume", "distributed.coordinator")
"""Keys of paths and addresses, which may have a colon and are never imported."""


def read_config(
    run_dir: str | os.PathLike[str],
    *,
    agent: Any,
    environment: Any,
    imports: bool = True,
    env: Mapping[str, Any] | Sequence[str] | None = None,
) -> Config:
    """Return the config that a run was started with.

    Args:
        run_dir: the run's directory.
        agent: the object, if the run was given one that cannot be imported, or None.
        environment: the same for the environment.
        imports: False: import nothing that the config names.
        env: replacements for settings of `env`: entries of `env.options` by name, or flags such as
            `--env.options.NAME=VALUE`; None: nothing.

    Raises:
        ConfigError: not a run directory, a setting is wrong, or the config names a module and
            `imports` is False.
    """
    path = pathlib.Path(run_dir) / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"expected a run directory with a {CONFIG}, got {run_dir}"
            + (
                describe_runs_in(pathlib.Path(run_dir))
                or f"; create one with {program('train')} CONFIG --run-dir RUN_DIR"
            )
        )
    if not imports:
        given = (*_PLACES, *(["agent.name"] if agent is not None else []))
        given += ("env.suite", "env.id") if environment is not None else ()
        # Before `load_config`, which imports the agent to know its settings.
        _refuse_imports(path, given)
    if env is None or isinstance(env, Mapping):
        overrides = {f"env.options.{name}": value for name, value in (env or {}).items()}
        if agent is not None:
            overrides["agent.name"] = named_agent(agent)
        config = load_config(path, overrides)
    else:  # of a command, which is given no objects
        config = load_config(path, env)
    if env:
        of_run = read_config(run_dir, agent=agent, environment=environment).env.options
        config = dataclasses.replace(config, env=without_unused_pool(config.env, of_run))
    opponent = config.env.options.get("opponent")
    if not imports and is_run(opponent):  # Its policy is loaded when a game begins.
        of_opponent = parse_source(opponent)[0] / CONFIG
        if of_opponent.is_file():
            _refuse_imports(of_opponent, _PLACES)
    return config if environment is None else with_environment(config, environment)


def _refuse_imports(path: pathlib.Path, given: Sequence[str]) -> None:
    """Raise a ConfigError if a config names a module, except for the keys in `given`."""
    for key, setting in read_config_file(str(path)).items():
        if key not in given:
            refuse_references(setting.value, where=setting.where)


@contextlib.contextmanager
def _naming_the_sources(run_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Add to the error of a module that is missing where it was in training."""
    try:
        yield
    except ConfigError as error:
        for module, file in _sources(run_dir).items():
            missing = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
            if missing is not None and f"{module}.".startswith(f"{missing}."):
                folder = file.parents[module.count(".")]
                advice = f": run again with PYTHONPATH={folder}"
            elif module == "__main__" and "__main__:" in str(error):
                advice = ""
            else:
                continue
            raise ConfigError(f"{error}. In training, it was in {file}{advice}") from error
        raise


def _sources(run_dir: str | os.PathLike[str]) -> dict[str, pathlib.Path]:
    """Return the files of the modules that the config of a run names."""
    try:
        files = json.loads((pathlib.Path(run_dir) / RUN).read_text(encoding="utf-8"))[SOURCES]
        return {name.partition(":")[0]: pathlib.Path(file) for name, file in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # The run is of an earlier version, or its file is damaged.


def parse_which(text: str) -> Which:
    """Parse `latest`, `best` or the number of a learner cycle.

    Raises:
        ConfigError: the text is something else.
    """
    if text == "latest":
        return "latest"
    if text == "best":
        return "best"
    if text.isascii() and text.isdecimal():
        return int(text)
    raise ConfigError(f"checkpoint: expected latest, best or a learner cycle, got {text!r}")


def parse_source(
    source: str | os.PathLike[str], *, default: Which = "latest"
) -> tuple[pathlib.Path, Which]:
    """Return the run directory and the checkpoint of `RUN_DIR[@CHECKPOINT]`.

    Raises:
        ConfigError: it is no path.
    """
    if not isinstance(source, str | os.PathLike):
        advice = "; give its policy" if hasattr(source, "policy") else ""
        raise ConfigError(
            f"expected a run directory or RUN_DIR@CHECKPOINT, got {type(source).__name__}{advice}"
        )
    text = os.fspath(source)
    name, at, checkpoint = text.rpartition("@")
    is_checkpoint = checkpoint in ("latest", "best") or checkpoint.isdecimal()
    # The name of a directory may have an @.
    if not (at and is_checkpoint) or _full_path(text).is_dir():
        name, checkpoint = text, str(default)
    return _full_path(name), parse_which(checkpoint)


def _full_path(name: str) -> pathlib.Path:
    return expanded(name).absolute()


def checkpoints_of(run_dir: str) -> list[str]:
    """Return each checkpoint of a run as `RUN_DIR@CYCLE`, the first one first.

    Raises:
        ConfigError: there are less than two.
    """
    steps = steps_in(pathlib.Path(run_dir) / CHECKPOINTS)
    if len(steps) < 2:
        raise ConfigError(
            f"checkpoint all: expected a run with two or more checkpoints, got {len(steps)} in"
            f" {run_dir}; checkpoint.interval_s and checkpoint.keep say which a run keeps"
        )
    return [f"{run_dir}@{step}" for step in steps]


def exact_source(source: str, *, key: str) -> str:
    """Return `RUN_DIR[@CHECKPOINT]` with the directory in full and the number of the checkpoint.

    So `config.yaml` names the same networks after the other run has trained on.

    Args:
        source: of a run.
        key: the config key that has this value; begins the errors.

    Raises:
        ConfigError: there is no such run or checkpoint.
    """
    run_dir, which = parse_source(source)
    if not (run_dir / CONFIG).is_file():
        raise ConfigError(
            f"{key}: expected a run directory with a {CONFIG}, got {run_dir}"
            f"{_describe_checkpoint(run_dir)}"
        )
    try:
        step = find_step(run_dir / CHECKPOINTS, which)
    except CheckpointError as error:
        raise ConfigError(f"{key}: {error}") from error
    return f"{run_dir}@{step}"


def _describe_checkpoint(path: pathlib.Path) -> str:
    """Return the sentence to append to an error about a directory with an unknown checkpoint."""
    name, at, checkpoint = path.name.rpartition("@")
    if not at or not (path.parent / name / CONFIG).is_file():
        return ""
    known = ["best", "latest", *map(str, steps_in(path.parent / name / CHECKPOINTS))]
    return (
        f". After the @ of {name}, expected best, latest or the number of a checkpoint, got"
        f" {checkpoint!r}{did_you_mean(checkpoint, known)}"
    )


def load_stored_policy(
    run_dir: str | os.PathLike[str],
    which: Which,
    *,
    device: jax.Device | None = None,
    agent: Any = None,
    environment: Any = None,
    imports: bool = True,
    env: Mapping[str, Any] | Sequence[str] | None = None,
) -> StoredPolicy:
    """Load the networks of a checkpoint, without the rest of it.

    The devices of training are not needed, since no part of a policy depends on them.

    Args:
        run_dir: the directory of a finished or running run.
        which: a learner cycle, or the latest or best checkpoint.
        device: the device to act on; None: the first local one.
        agent: the object, if the run was given one that cannot be imported.
        environment: the same for the environment.
        imports: False: import nothing that the run's config names, and refuse a config that names
            something.
        env: replacements for settings of the run's environment, see `read_config`.

    Raises:
        ConfigError: not a run directory, or its environment or agent cannot be created.
        CheckpointError: the checkpoint does not exist, is damaged, or has other networks.
    """
    if device is None:
        check_platforms()
        device = jax.local_devices()[0]
    with _naming_the_sources(run_dir):
        config = read_config(
            run_dir, agent=agent, environment=environment, imports=imports, env=env
        )
        spec = read_environment_spec(config.env)
        opponents = spec.opponents
        if env:  # Which networks there are depends on the opponents of training.
            trained = read_config(
                run_dir, agent=agent, environment=environment, imports=imports
            ).env
            if "opponent" in trained.options:
                opponents = read_environment_spec(trained).opponents
    # One learner device is always valid: batch sizes that divide over more devices divide over one.
    run_spec = make_run_spec(
        config,
        dataclasses.replace(spec, opponents=opponents),
        num_actors=num_actors_of_host(config.actor, num_actor_devices(config.devices)),
        num_learner_devices=1,
    )
    made: Agent = make_agent(config.agent, run_spec)
    placed = jax.sharding.SingleDeviceSharding(device)
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed),
        jax.eval_shape(made.init_networks, jax.eval_shape(lambda: jax.random.key(0))),
    )
    directory = pathlib.Path(run_dir) / CHECKPOINTS
    stored, meta = restore(directory, which, {"learner": {"networks": like}}, partial=True)
    networks = jax.jit(made.actor_networks, out_shardings=placed)(stored["learner"]["networks"])
    acting, networks = player_of(made, networks)
    return StoredPolicy(
        config=config,
        agent=acting,
        environment=spec,
        networks=networks,
        device=device,
        learner_cycle=meta["learner"]["num_cycles"],
        env_steps=meta["progress"]["env_steps"],
        updates=meta["learner"]["num_updates"],
    )


def with_env_options(stored: StoredPolicy, options: Mapping[str, Any]) -> StoredPolicy:
    """Return the policy, to be played in environments with other arguments.

    Args:
        stored: the policy.
        options: the arguments that replace the run's, by name.
    """
    of_run = stored.config.env
    env = dataclasses.replace(of_run, options={**of_run.options, **options})
    env = without_unused_pool(env, of_run.options)
    return dataclasses.replace(stored, config=dataclasses.replace(stored.config, env=env))


def read_environment_spec(config: EnvConfig) -> EnvironmentSpec:
    """Return the spaces of an environment by creating and closing one.

    Raises:
        ConfigError: the environment cannot be created.
    """
    # A user's script without a main guard cannot start worker processes.
    with contextlib.closing(
        make_environment(without_workers(config), num_envs=1, seed=0)
    ) as environment:
        return environment.spec
