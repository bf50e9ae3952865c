"""What a ring does not get from its seed: the agent, and the jitted functions.

Rings whose configs differ in their seed can share them. Then nothing is traced or compiled twice,
except programs with EnvPool inside them, which have the addresses of their pools.
"""

import dataclasses
from collections.abc import Mapping

import jax

from sebulba.agent import Agent
from sebulba.agent_check import ActShapes, validate_agent, validate_learning
from sebulba.config import Config, agents
from sebulba.config.run_spec import make_run_spec, queue_slots_per_actor
from sebulba.devices.mapping import is_jit_disabled
from sebulba.devices.memory import MemoryPlan, plan_memory
from sebulba.devices.roles import Roles
from sebulba.errors import ConfigError
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.episodes import EpisodeTracker, load_reducers
from sebulba.ring.learner import LearnerPrograms
from sebulba.types import EnvironmentSpec, FrameStack, RunSpec
from sebulba_agents import AGENTS

# `init_from` gives arrays only, and the directory is that of files.
_MAY_DIFFER = ("seed", "run_dir", "resume", "init_from")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RingPrograms:
    """The agent and the jitted functions of rings that differ in their seed."""

    config: Config
    devices: Roles
    run_spec: RunSpec
    agent: Agent
    memory_plan: MemoryPlan
    learner: LearnerPrograms
    act: Mapping[jax.Device, ActFunctions]  # by the actor device
    episode_metrics: tuple[str, ...]  # their names, besides return and length

    def check(self, config: Config, devices: Roles) -> None:
        """Check that a ring can use these programs.

        Raises:
            ValueError: the ring has other devices, or a config that differs in more than the seed
                and its files.
        """
        for field in dataclasses.fields(Config):
            ours, other = getattr(self.config, field.name), getattr(config, field.name)
            if field.name not in _MAY_DIFFER and ours != other:
                raise ValueError(
                    f"programs: expected {field.name} {ours}, got {other}. Rings share programs"
                    " only if their configs differ in their seed alone"
                )
        for role in ("actor", "learner"):
            ours, other = getattr(self.devices, role), getattr(devices, role)
            if ours != other:
                raise ValueError(f"programs: expected the {role} devices {ours}, got {other}")


def actor_devices_of(config: Config, devices: Roles) -> list[jax.Device]:
    """Return the device of each actor of this host, the remote ones last.

    What a remote actor collects comes to its device, where it finds its networks.
    """
    threads = config.actor.threads_per_device
    local = [device for device in devices.actor for _ in range(threads)]
    return local + [devices.actor[0]] * config.actor.remote


def make_programs(config: Config, devices: Roles, environment: EnvironmentSpec) -> RingPrograms:
    """Make a run's agent and jitted functions from shapes; trace and compile nothing yet.

    A run calls them, and `sebulba compile` lowers them for devices that are not here.

    Args:
        config: the run's settings, of which the seed is not used.
        devices: the devices that act and learn; they need not be on this machine.
        environment: the spaces of a single environment.

    Raises:
        ConfigError: the config does not fit the devices or the agent.
        AgentError: the agent breaks the protocol.
    """
    actor_devices, learner_devices = actor_devices_of(config, devices), devices.learner_devices
    run_spec = make_run_spec(
        config,
        environment,
        len(actor_devices),
        len(devices.learner),
        num_hosts=learner_devices.num_hosts,
    )
    agent, shapes = _make_agent(config, run_spec)
    frame_stack = _frames_kept_once(config, environment)
    learner = LearnerPrograms(
        agent=agent,
        learner_devices=learner_devices,
        num_streams_per_device=run_spec.num_streams_per_learner_device,
        config=config.learner,
    )
    state = learner.state_shapes()
    memory_plan = plan_memory(
        run_spec,
        shapes,
        opt_state=state.opt_state,
        experience=state.experience,
        num_actor_devices=len(devices.actor),
        queue_slots_per_actor=queue_slots_per_actor(config, len(actor_devices)),
        policy_lag=config.policy_lag,
        frame_stack=frame_stack,
    )
    tracker = _tracker(config, environment)
    return RingPrograms(
        config=config,
        devices=devices,
        run_spec=run_spec,
        agent=agent,
        memory_plan=memory_plan,
        learner=learner,
        act={
            device: ActFunctions(
                agent, run_spec, device=device, tracker=tracker, frame_stack=frame_stack
            )
            for device in devices.actor
        },
        episode_metrics=tracker.names,
    )


def make_act_functions(config: Config, run_spec: RunSpec, device: jax.Device) -> ActFunctions:
    """Make the act functions of a device alone, for a process that only acts.

    Raises:
        AgentError: the agent breaks the protocol.
    """
    agent, _ = _make_agent(config, run_spec)
    return ActFunctions(
        agent,
        run_spec,
        device=device,
        tracker=_tracker(config, run_spec.environment),
        frame_stack=_frames_kept_once(config, run_spec.environment),
    )


def _frames_kept_once(config: Config, environment: EnvironmentSpec) -> FrameStack | None:
    """Return the stacks whose frames trajectories hold once; None: they hold observations."""
    # A final row that is repeated, of a whole episode or of a player that is out, adds no frame.
    is_repeated = config.actor.rollout == "episodes" or environment.num_players > 1
    return None if is_repeated else environment.frame_stack


def _tracker(config: Config, environment: EnvironmentSpec) -> EpisodeTracker:
    return EpisodeTracker(
        load_reducers(config.run.episode_reducers),
        max_finished=config.run.return_window,
        num_players=environment.num_players,
    )


def _make_agent(config: Config, run_spec: RunSpec) -> tuple[Agent, ActShapes]:
    """Make the config's agent, and validate it against the environment.

    Returns:
        The agent, and the shapes that it acts with.

    Raises:
        AgentError: the agent breaks the protocol.
    """
    agent = agents.make_agent(config.agent, run_spec)
    shapes = validate_agent(agent, run_spec)
    # Tracing twice takes time, and ours are tested. Without jit, a loss may look at its numbers,
    # which a traced one does not have.
    if config.agent.name not in AGENTS and not is_jit_disabled():
        validate_learning(agent, run_spec)
    return agent, shapes


def check_devices(config: Config, devices: Roles) -> None:
    """Check that the config suits the devices of each role.

    Raises:
        ConfigError: it does not.
    """
    num_learners, num_envs = len(devices.learner), config.actor.num_envs
    if num_envs % num_learners:
        fewer = next(count for count in range(num_learners, 0, -1) if num_envs % count == 0)
        raise ConfigError(
            f"actor.num_envs: expected a multiple of the {num_learners} learner devices, got"
            f" {num_envs}. Name {fewer} of them in devices.learner, or change actor.num_envs"
        )
    num_hosts = devices.learner_devices.num_hosts
    if num_hosts > 1 and config.learner.mapping != "shard_map":
        raise ConfigError(
            f"learner.mapping: expected shard_map on {num_hosts} hosts, got"
            f" {config.learner.mapping}"
        )
