"""What was trained, from its run directory alone: the config, the agent, and its networks."""

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
    """What a checkpoint says about acting."""

    config: Config
    agent: Agent
    environment: EnvironmentSpec
    networks: Networks  # as `Agent.actor_networks` gives them, on `device`
    device: jax.Device
    learner_cycle: int  # of the checkpoint
    env_steps: int  # learned from until then
    updates: int


def read_config(run_dir: str | os.PathLike[str]) -> Config:
    """Returns the config that a run was started with.

    Raises:
        ConfigError: the directory holds no run.
    """
    path = pathlib.Path(run_dir) / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"expected a run directory, which has a {CONFIG}, got {run_dir}; make one with"
            " python -m sebulba.train CONFIG --run-dir RUN_DIR"
        )
    return load_config(str(path))


def parse_which(text: str) -> Which:
    """Returns `latest`, `best` or the number of a learner cycle.

    Raises:
        ConfigError: the text is none of these.
    """
    if text == "latest":
        return "latest"
    if text == "best":
        return "best"
    if text.isascii() and text.isdecimal():
        return int(text)
    raise ConfigError(f"checkpoint: expected latest, best or the number of one, got {text!r}")


def load_stored_policy(
    run_dir: str | os.PathLike[str], which: Which, *, device: jax.Device | None = None
) -> StoredPolicy:
    """Reads the networks of a checkpoint, and nothing else of it.

    The devices need not be those of the training: a policy has no part that depends on them.

    Args:
        run_dir: of a run, which may still be going on.
        which: a learner cycle, or the last or best one that was saved.
        device: to act on; default: the first local one.

    Raises:
        ConfigError: the directory holds no run, or its environment or agent cannot be made.
        CheckpointError: there is no such checkpoint, or it is damaged, or of other networks.
    """
    config = read_config(run_dir)
    device = device or jax.local_devices()[0]
    environment = read_environment_spec(config.env)
    # As on one learner device: everything that a run on more could be divided into divides that.
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
        raise CheckpointError(str(error).replace("--resume STEP", "--checkpoint STEP")) from error
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
    """Returns the spaces of an environment, by making one and closing it again.

    Raises:
        ConfigError: it cannot be made.
    """
    # A user's script without a main guard cannot start worker processes.
    one = make_environment(without_workers(config), num_envs=1, seed=0)
    try:
        return one.spec
    finally:
        one.close()
