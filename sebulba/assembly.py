"""Builds the ring that a config describes; nothing runs yet."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax

from sebulba.act_cycle import (
    ActCycle,
    BufferAllocator,
    FusedCycle,
    StepFunctions,
    SteppedCycle,
    init_carry,
)
from sebulba.actor import Actor
from sebulba.agent import Agent
from sebulba.config import Config
from sebulba.config.agents import agent_factory
from sebulba.devices import DevicePlan, LearnerDevices, plan_devices
from sebulba.envs import make_environment
from sebulba.envs.base import Environment
from sebulba.errors import ConfigError
from sebulba.learner import Learner
from sebulba.ledger import Ledger
from sebulba.memory_plan import MemoryPlan, check_memory, plan_memory
from sebulba.metrics.base import Row
from sebulba.prng import environment_seed, stream
from sebulba.progress import Progress
from sebulba.queues import NetworksDeque, TrajectoryDeque
from sebulba.schedule import Schedule
from sebulba.timing import WallClock
from sebulba.types import Networks, RunSpec
from sebulba.validation import validate_agent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
    """Actors, learner, and the deques between them."""

    environments: tuple[Environment, ...]  # one for each actor
    actors: tuple[Actor, ...]
    actor_devices: tuple[jax.Device, ...]  # each actor's
    learner: Learner
    schedule: Schedule
    trajectories: TrajectoryDeque
    stagings: dict[jax.Device, NetworksDeque]
    ledger: Ledger
    memory_plan: MemoryPlan
    progress: Progress

    def close(self) -> None:
        """Closes both deques, so that every thread comes to its end."""
        self.trajectories.close()
        for staging in self.stagings.values():
            staging.close()

    def close_environments(self) -> None:
        """Releases the environments; no actor may be running."""
        for environment in self.environments:
            environment.close()


def assemble(
    config: Config,
    *,
    write_row: Callable[[Row], None],
    devices: Sequence[jax.Device] | None = None,
) -> Ring:
    """Builds environments, agent, learner, actors and deques.

    Args:
        config: the whole run's.
        write_row: is given each row of metrics, in the learner's thread.
        devices: of this host; default: all local ones.

    Raises:
        ConfigError: devices, environment or agent cannot be as the config says.
        AgentError: the agent breaks the protocol.
    """
    plan = plan_devices(config.devices, devices or jax.local_devices())
    _check_divisible(config, plan)
    actor_devices = tuple(
        device for device in plan.actor for _ in range(config.actor.threads_per_device)
    )
    num_actors = len(actor_devices)
    learners = LearnerDevices(plan.learner)
    environments = tuple(_make_environment(config, actor_id) for actor_id in range(num_actors))
    run_spec = _run_spec(config, environments[0], num_actors, len(learners))
    agent = agent_factory(config.agent.name)(config.agent, run_spec)
    validate_agent(agent, run_spec)
    memory_plan = plan_memory(
        agent,
        run_spec,
        num_actor_devices=len(plan.actor),
        queue_slots_per_actor=config.learner.queue_slots_per_actor,
    )
    check_memory(memory_plan, actor_devices=plan.actor, learner_devices=plan.learner)

    key = jax.random.key(config.seed)
    ledger = Ledger(num_actors)
    learner = Learner(
        agent=agent,
        learners=learners,
        num_envs_per_device=run_spec.num_envs_per_learner_device,
        key=stream(key, "learner"),
        clock=WallClock(),
        mapping_name=config.learner.mapping,
    )
    step_functions = StepFunctions(agent)
    actors = tuple(
        _make_actor(
            config,
            actor_id=actor_id,
            agent=agent,
            environment=environment,
            device=device,
            networks=learner.networks_on(device),
            key=stream(key, "actor", actor_id),
            learners=learners,
            ledger=ledger,
            step_functions=step_functions,
        )
        for actor_id, (environment, device) in enumerate(
            zip(environments, actor_devices, strict=True)
        )
    )
    return Ring(
        environments=environments,
        actors=actors,
        actor_devices=actor_devices,
        learner=learner,
        schedule=Schedule(
            num_actors=num_actors,
            trajectories_per_cycle=config.learner.trajectories_per_cycle,
            max_policy_lag=config.learner.max_policy_lag,
        ),
        trajectories=TrajectoryDeque(
            num_actors=num_actors,
            slots_per_actor=config.learner.queue_slots_per_actor,
            ledger=ledger,
        ),
        stagings={device: NetworksDeque() for device in plan.actor},
        ledger=ledger,
        memory_plan=memory_plan,
        progress=Progress(
            config=config.run,
            num_actors=num_actors,
            ledger=ledger,
            clocks={"actor": [actor.clock for actor in actors], "learner": [learner.clock]},
            write_row=write_row,
        ),
    )


def _check_divisible(config: Config, plan: DevicePlan) -> None:
    if config.actor.num_envs % len(plan.learner):
        raise ConfigError(
            f"actor.num_envs: expected a multiple of the {len(plan.learner)} learner devices"
            f" (devices.learner), got {config.actor.num_envs}"
        )


def _make_environment(config: Config, actor_id: int) -> Environment:
    return make_environment(
        config.env,
        num_envs=config.actor.num_envs,
        seed=environment_seed(config.seed, "actor", actor_id),
    )


def _run_spec(
    config: Config, environment: Environment, num_actors: int, num_learner_devices: int
) -> RunSpec:
    steps_per_cycle = (
        config.actor.num_envs
        * config.actor.trajectory_length
        * config.learner.trajectories_per_cycle
    )
    return RunSpec(
        environment=environment.spec,
        num_envs=config.actor.num_envs,
        num_actors=num_actors,
        num_learner_devices=num_learner_devices,
        trajectory_length=config.actor.trajectory_length,
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
        num_cycles=math.ceil(config.run.total_env_steps / steps_per_cycle),
    )


def _make_actor(
    config: Config,
    *,
    actor_id: int,
    agent: Agent,
    environment: Environment,
    device: jax.Device,
    networks: Networks,
    key: jax.Array,
    learners: LearnerDevices,
    ledger: Ledger,
    step_functions: StepFunctions,
) -> Actor:
    env_step = environment.reset()
    carry = init_carry(agent, networks, env_step, key=key, actor_id=actor_id, device=device)
    length = config.actor.trajectory_length
    allocate = BufferAllocator(agent, networks, carry, trajectory_length=length, device=device)
    clock = WallClock()
    fused = None if config.actor.cycle == "stepped" else environment.fused()
    if fused is None and config.actor.cycle == "fused":
        raise ConfigError(
            f"actor.cycle: {config.env.suite} {config.env.id} cannot be stepped inside jit;"
            " expected auto or stepped, got fused"
        )
    if fused is not None and fused.is_whole_state:
        carry = dataclasses.replace(carry, env_state=jax.device_put(fused.state, device))
    act_cycle: ActCycle
    if fused is None:
        act_cycle = SteppedCycle(
            step_functions,
            environment,
            allocate=allocate,
            trajectory_length=length,
            device=device,
            clock=clock,
        )
    else:
        act_cycle = FusedCycle(
            agent,
            fused,
            allocate=allocate,
            trajectory_length=length,
            device=device,
            clock=clock,
        )
    return Actor(
        actor_id=actor_id,
        agent=agent,
        act_cycle=act_cycle,
        carry=carry,
        learners=learners,
        ledger=ledger,
        clock=clock,
    )
