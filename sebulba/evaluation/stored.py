"""Loading a trained policy from its run directory: config, agent and networks."""

import contextlib
import dataclasses
import os
import pathlib

import jax

from sebulba.agent import Agent
from sebulba.config import Config, EnvConfig
from sebulba.config.agents import agent_factory
from sebulba.config.loading import load_config
from sebulba.config.run_spec import make_run_spec
from sebulba.envs import make_environment, without_workers
from sebulba.errors import ConfigError
from sebulba.storage.checkpoints.restore import CheckpointError, Which, restore
from sebulba.storage.run_dir import CHECKPOINTS, CONFIG
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


def read_config(run_dir: str | os.PathLike[str]) -> Config:
    """Return the config that a run was started with.

    Raises:
        ConfigError: not a run directory.
    """
    path = pathlib.Path(run_dir) / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"expected a run directory with a {CONFIG}, got {run_dir}; create one with"
            " python -m sebulba.train CONFIG --run-dir RUN_DIR"
        )
    return load_config(str(path))


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


def load_stored_policy(
    run_dir: str | os.PathLike[str], which: Which, *, device: jax.Device | None = None
) -> StoredPolicy:
    """Load the networks of a checkpoint, without the rest of it.

    The devices of training are not needed, since no part of a policy depends on them.

    Args:
        run_dir: the directory of a finished or running run.
        which: a learner cycle, or the latest or best checkpoint.
        device: the device to act on; None: the first local one.

    Raises:
        ConfigError: not a run directory, or its environment or agent cannot be created.
        CheckpointError: the checkpoint does not exist, is damaged, or has other networks.
    """
    config = read_config(run_dir)
    device = device or jax.local_devices()[0]
    environment = read_environment_spec(config.env)
    # One learner device is always valid: batch sizes that divide over more devices divide over one.
    actor_devices = config.devices.actor or (0,)
    run_spec = make_run_spec(
        config,
        environment,
        num_actors=len(actor_devices) * config.actor.threads_per_device,
        num_learner_devices=1,
    )
    agent: Agent = agent_factory(config.agent.name)(config.agent, run_spec)
    placed = jax.sharding.SingleDeviceSharding(device)
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed),
        jax.eval_shape(agent.init_networks, jax.eval_shape(lambda: jax.random.key(0))),
    )
    directory = pathlib.Path(run_dir) / CHECKPOINTS
    try:
        stored, meta = restore(directory, which, {"learner": {"networks": like}}, partial=True)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace("--resume ", "--checkpoint ")) from error
    networks = jax.jit(agent.actor_networks, out_shardings=placed)(stored["learner"]["networks"])
    return StoredPolicy(
        config=config,
        agent=agent,
        environment=environment,
        networks=networks,
        device=device,
        learner_cycle=meta["learner"]["num_cycles"],
        env_steps=meta["progress"]["env_steps"],
        updates=meta["learner"]["num_updates"],
    )


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
