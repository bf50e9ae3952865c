"""Builds the ring of actors and learner that a config describes; nothing runs yet."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence

import jax

from sebulba.acting.act_cycle import BufferAllocator, init_carry
from sebulba.acting.actor import Actor
from sebulba.acting.env_reset import EnvResetPolicy
from sebulba.acting.environment_factory import (
    CycleParts,
    EnvironmentFactory,
    first_row,
    make_first_environment,
)
from sebulba.acting.episode_reducers import load_reducers
from sebulba.acting.fused_cycle import FusedFunctions, SharedFunctions
from sebulba.acting.stepped_cycle import StepFunctions
from sebulba.agent import Agent
from sebulba.agent_check import validate_agent, validate_learning
from sebulba.config import Config
from sebulba.config.agents import agent_factory
from sebulba.config.run_spec import make_run_spec, queue_slots_per_actor
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.devices.mapping import is_jit_disabled
from sebulba.devices.memory_plan import MemoryPlan, check_memory, plan_memory
from sebulba.devices.split import DevicePlan, plan_devices, plan_learner_devices
from sebulba.envs.base import Environment
from sebulba.errors import ConfigError
from sebulba.hosts.agreement import Agreement
from sebulba.learning.learner import Learner
from sebulba.learning.progress import Progress
from sebulba.ring.ledger import Ledger
from sebulba.ring.queues import NetworksDeque, TrajectoryDeque
from sebulba.ring.run_end import RunEnd
from sebulba.ring.schedule import Schedule
from sebulba.ring.timing import WallClock
from sebulba.run.warm_start import WarmStart, read_warm_start
from sebulba.storage.metrics.base import Row
from sebulba.toolkit.prng import stream
from sebulba.types import RunSpec
from sebulba_agents import AGENTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
    """Actors, learner, and the deques between them."""

    config: Config
    agent: Agent
    actors: tuple[Actor, ...]
    actor_devices: tuple[jax.Device, ...]  # each actor's
    learner: Learner
    schedule: Schedule
    trajectories: TrajectoryDeque
    stagings: dict[jax.Device, NetworksDeque]
    ledger: Ledger
    memory_plan: MemoryPlan
    progress: Progress
    run_end: RunEnd
    warm_start: WarmStart | None  # where the first networks are from

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Each actor's current environments; recreated ones replace them."""
        return tuple(actor.environment for actor in self.actors)

    def close(self) -> None:
        """Close both deques, so that every thread ends."""
        self.trajectories.close()
        for staging in self.stagings.values():
            staging.close()

    def close_environments(self) -> None:
        """Release the environments; no actor may be running."""
        for actor in self.actors:
            actor.close()


def _print_warning(text: str) -> None:
    print(text, file=sys.stderr)


def assemble(
    config: Config,
    *,
    write_row: Callable[[Row], None],
    on_warning: Callable[[str], None] = _print_warning,
    run_end: RunEnd | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Ring:
    """Build environments, agent, learner, actors and deques.

    Args:
        config: of the run.
        write_row: takes each row of metrics, in the learner's thread.
        on_warning: takes one line of text, also in the actors' threads; default: stderr.
        run_end: why the run ends; default: a new one.
        devices: of this host; default: all local ones.

    Raises:
        ConfigError: the config does not fit the devices, the environment or the agent.
        AgentError: the agent breaks the protocol.
        EnvironmentFault: the environment cannot be made or reset.
    """
    plan = _plan_devices(config, devices)
    with contextlib.ExitStack() as made:
        subject = _make_agent(config, plan, made)
        ring = _join(config, plan, subject, write_row, on_warning, run_end or RunEnd())
        made.pop_all()
        return ring


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Devices:
    """Who acts and who learns."""

    plan: DevicePlan
    learner_devices: LearnerDevices
    of_actors: tuple[jax.Device, ...]  # each actor's

    @property
    def first_actor_id(self) -> int:
        """Number of this host's first actor among those of all hosts."""
        return jax.process_index() * len(self.of_actors)


def _plan_devices(config: Config, devices: Sequence[jax.Device] | None) -> _Devices:
    plan = plan_devices(config.devices, devices or jax.local_devices())
    if config.actor.num_envs % len(plan.learner):
        raise ConfigError(
            f"actor.num_envs: expected a multiple of the {len(plan.learner)} learner devices"
            f" (devices.learner), got {config.actor.num_envs}"
        )
    learners = LearnerDevices(plan.learner)
    if devices is None:
        learners = plan_learner_devices(config.devices)
    if learners.num_hosts > 1 and config.learner.mapping != "shard_map":
        raise ConfigError(
            f"learner.mapping: expected shard_map on {learners.num_hosts} hosts, got"
            f" {config.learner.mapping}"
        )
    return _Devices(
        plan=plan,
        learner_devices=learners,
        of_actors=tuple(
            device for device in plan.actor for _ in range(config.actor.threads_per_device)
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is run: an agent, and each actor's first environments."""

    agent: Agent
    run_spec: RunSpec
    environments: tuple[Environment, ...]
    memory_plan: MemoryPlan


def _make_agent(config: Config, devices: _Devices, made: contextlib.ExitStack) -> _Subject:
    """Make environments and agent; `made` closes the environments if a later step fails."""
    environments = []
    for actor_id in range(len(devices.of_actors)):
        environments.append(make_first_environment(config, devices.first_actor_id + actor_id))
        made.callback(environments[-1].close)
    plan = devices.plan
    run_spec = make_run_spec(
        config,
        environments[0].spec,
        len(environments),
        len(plan.learner),
        num_hosts=devices.learner_devices.num_hosts,
    )
    agent = agent_factory(config.agent.name)(config.agent, run_spec)
    validate_agent(agent, run_spec)
    # Tracing twice takes time, and ours are tested. Without jit, a loss may look at its numbers,
    # which a traced one does not have.
    if config.agent.name not in AGENTS and not is_jit_disabled():
        validate_learning(agent, run_spec)
    memory_plan = plan_memory(
        agent,
        run_spec,
        num_actor_devices=len(plan.actor),
        queue_slots_per_actor=queue_slots_per_actor(config.learner, len(environments)),
        policy_lag=config.learner.policy_lag,
    )
    check_memory(memory_plan, actor_devices=plan.actor, learner_devices=plan.learner)
    return _Subject(
        agent=agent,
        run_spec=run_spec,
        environments=tuple(environments),
        memory_plan=memory_plan,
    )


def _join(
    config: Config,
    devices: _Devices,
    subject: _Subject,
    write_row: Callable[[Row], None],
    on_warning: Callable[[str], None],
    run_end: RunEnd,
) -> Ring:
    """Put learner, actors and deques together."""
    learner, warm_start = _make_learner(config, devices, subject)
    ledger = Ledger(len(devices.of_actors))
    actors = _make_actors(config, devices, subject, learner, ledger, on_warning)
    schedule = Schedule(
        num_actors=len(actors),
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
        policy_lag=config.learner.policy_lag,
    )
    agreement = Agreement(
        devices.learner_devices,
        run_end=run_end,
        max_episodes=config.run.return_window,
        reducers=tuple(config.run.episode_reducers),
    )
    return Ring(
        config=config,
        agent=subject.agent,
        actors=actors,
        actor_devices=devices.of_actors,
        learner=learner,
        schedule=schedule,
        trajectories=TrajectoryDeque(
            num_actors=len(actors),
            slots_per_actor=queue_slots_per_actor(config.learner, len(actors)),
            ledger=ledger,
        ),
        stagings={device: NetworksDeque(schedule.num_staged) for device in devices.of_actors},
        ledger=ledger,
        memory_plan=subject.memory_plan,
        progress=Progress(
            config=config.run,
            ledger=ledger,
            agreement=agreement,
            clocks={"actor": [actor.clock for actor in actors], "learner": [learner.clock]},
            all_reduce=learner.all_reduce,
            write_row=write_row,
            num_non_finite_updates=lambda: learner.num_non_finite_updates,
        ),
        run_end=run_end,
        warm_start=warm_start,
    )


def _make_learner(
    config: Config, devices: _Devices, subject: _Subject
) -> tuple[Learner, WarmStart | None]:
    """Make the learner, with the networks of `init_from` if the run starts with them."""
    learner = Learner(
        agent=subject.agent,
        learner_devices=devices.learner_devices,
        num_envs_per_device=subject.run_spec.num_envs_per_learner_device,
        key=stream(jax.random.key(config.seed), "learner"),
        clock=WallClock(),
        config=config.learner,
    )
    # A run that is resumed gets the networks of its own checkpoint.
    if config.init_from is None or config.resume is not None:
        return learner, None
    warm_start = read_warm_start(config, learner.state.networks)
    learner.start_from(
        warm_start.applied_to(learner.state.networks, devices.learner_devices, subject.agent)
    )
    return learner, warm_start


def _make_actors(
    config: Config,
    devices: _Devices,
    subject: _Subject,
    learner: Learner,
    ledger: Ledger,
    on_warning: Callable[[str], None],
) -> tuple[Actor, ...]:
    agent = subject.agent
    tracker = load_reducers(config.run.episode_reducers)
    warn_once = functools.cache(on_warning)  # not once for each actor
    length = config.actor.trajectory_length
    # The actors of a device share their compiled steps and act cycles.
    step_functions = {
        device: StepFunctions(agent, device=device, tracker=tracker)
        for device in set(devices.of_actors)
    }
    fused = functools.partial(FusedFunctions, agent, trajectory_length=length, tracker=tracker)
    fused_functions = {
        device: SharedFunctions(functools.partial(fused, device=device))
        for device in set(devices.of_actors)
    }

    def make_actor(actor_id: int, environment: Environment, device: jax.Device) -> Actor:
        global_actor_id = devices.first_actor_id + actor_id
        networks = learner.networks_on(device)
        env_step = first_row(environment, subject.run_spec, global_actor_id)
        carry = init_carry(
            agent,
            networks,
            env_step,
            key=stream(jax.random.key(config.seed), "actor", global_actor_id),
            global_actor_id=global_actor_id,
            device=device,
            tracker=tracker,
        )
        parts = CycleParts(
            run_spec=subject.run_spec,
            device=device,
            step_functions=step_functions[device],
            fused_functions=fused_functions[device],
            allocate=BufferAllocator(
                agent, networks, carry, trajectory_length=length, device=device
            ),
            clock=WallClock(),
            on_warning=warn_once,
        )
        factory = EnvironmentFactory(config, parts)
        live = factory.start(environment, env_step)
        may_restart = config.actor.on_env_error == "restart"
        return Actor(
            actor_id=actor_id,
            agent=agent,
            live=live,
            reset_policy=EnvResetPolicy(
                recreate=factory.recreate,
                run_seed=config.seed,
                global_actor_id=global_actor_id,
                every=config.checkpoint.exact_reset_cycles,
                max_restarts=config.actor.max_env_restarts if may_restart else 0,
                on_warning=on_warning,
            ),
            carry=dataclasses.replace(carry, env_state=live.env_state),
            learner_devices=devices.learner_devices,
            ledger=ledger,
            clock=parts.clock,
        )

    made = zip(subject.environments, devices.of_actors, strict=True)
    return tuple(make_actor(actor_id, *each) for actor_id, each in enumerate(made))
