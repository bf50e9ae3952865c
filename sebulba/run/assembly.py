"""Builds the ring that a config describes; nothing runs yet."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence

import jax

from sebulba.acting.actor import Actor
from sebulba.acting.actor_building import make_actor, make_first_environment
from sebulba.acting.episode_reducers import load_reducers
from sebulba.acting.stepped_cycle import StepFunctions
from sebulba.agent import Agent
from sebulba.agent_check import validate_agent
from sebulba.config import Config
from sebulba.config.agents import agent_factory
from sebulba.config.run_spec import make_run_spec
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.devices.memory_plan import MemoryPlan, check_memory, plan_memory
from sebulba.devices.split import DevicePlan, plan_devices, plan_learner_devices
from sebulba.envs.base import Environment
from sebulba.errors import ConfigError
from sebulba.hosts.agreement import Agreement
from sebulba.learning.learner import Learner
from sebulba.learning.progress import Progress
from sebulba.ring.ledger import Ledger
from sebulba.ring.queues import NetworksDeque, ReplayedNetworksDeque, Staging, TrajectoryDeque
from sebulba.ring.schedule import LagSchedule, Schedule
from sebulba.ring.schedule_file import read_schedule
from sebulba.ring.timing import WallClock
from sebulba.storage.metrics.base import Row
from sebulba.toolkit.prng import stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
    """Actors, learner, and the deques between them."""

    agent: Agent
    actors: tuple[Actor, ...]
    actor_devices: tuple[jax.Device, ...]  # each actor's
    learner: Learner
    schedule: Schedule
    trajectories: TrajectoryDeque
    stagings: dict[jax.Device, Staging]
    ledger: Ledger
    memory_plan: MemoryPlan
    progress: Progress

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Each actor's, which are others after they were made anew."""
        return tuple(actor.environment for actor in self.actors)

    def close(self) -> None:
        """Closes both deques, so that every thread comes to its end."""
        self.trajectories.close()
        for staging in self.stagings.values():
            staging.close()

    def close_environments(self) -> None:
        """Releases the environments; no actor may be running."""
        for actor in self.actors:
            actor.close()


def _print_warning(text: str) -> None:
    print(text, file=sys.stderr)


def assemble(
    config: Config,
    *,
    write_row: Callable[[Row], None],
    on_warning: Callable[[str], None] = _print_warning,
    devices: Sequence[jax.Device] | None = None,
) -> Ring:
    """Builds environments, agent, learner, actors and deques.

    Args:
        config: the whole run's.
        write_row: is given each row of metrics, in the learner's thread.
        on_warning: takes one line of text, also in the actors' threads; default: stderr.
        devices: of this host; default: all local ones.

    Raises:
        ConfigError: devices, environment or agent cannot be as the config says.
        AgentError: the agent breaks the protocol.
        EnvironmentFault: the environment cannot be made or reset.
    """
    with contextlib.ExitStack() as made:
        ring = _assemble(config, made, write_row, on_warning, devices)
        made.pop_all()
        return ring


def _assemble(
    config: Config,
    made: contextlib.ExitStack,
    write_row: Callable[[Row], None],
    on_warning: Callable[[str], None],
    devices: Sequence[jax.Device] | None,
) -> Ring:
    """Assembles; `made` is given what has to be closed if that fails."""
    plan = plan_devices(config.devices, devices or jax.local_devices())
    _check_divisible(config, plan)
    learners = (
        plan_learner_devices(config.devices) if devices is None else LearnerDevices(plan.learner)
    )
    _check_mapping(config, learners)
    actor_devices = tuple(
        device for device in plan.actor for _ in range(config.actor.threads_per_device)
    )
    num_actors = len(actor_devices)
    first_actor_id = jax.process_index() * num_actors
    environments = []
    for actor_id in range(num_actors):
        environments.append(make_first_environment(config, first_actor_id + actor_id))
        made.callback(environments[-1].close)
    run_spec = make_run_spec(
        config,
        environments[0].spec,
        num_actors,
        len(plan.learner),
        num_hosts=learners.num_hosts,
    )
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
        learner_devices=learners,
        num_envs_per_device=run_spec.num_envs_per_learner_device,
        key=stream(key, "learner"),
        clock=WallClock(),
        mapping_name=config.learner.mapping,
        max_non_finite_updates=(
            1 if config.learner.on_non_finite == "stop" else config.learner.max_non_finite_updates
        ),
    )
    tracker = load_reducers(config.run.episode_reducers)
    step_functions = {
        device: StepFunctions(agent, device=device, tracker=tracker)
        for device in set(actor_devices)
    }
    actors = tuple(
        make_actor(
            config,
            actor_id=actor_id,
            agent=agent,
            run_spec=run_spec,
            environment=environment,
            device=device,
            networks=learner.networks_on(device),
            key=stream(key, "actor", first_actor_id + actor_id),
            number=first_actor_id + actor_id,
            learners=learners,
            ledger=ledger,
            step_functions=step_functions[device],
            tracker=tracker,
            on_warning=on_warning,
        )
        for actor_id, (environment, device) in enumerate(
            zip(environments, actor_devices, strict=True)
        )
    )
    schedule, stagings = _make_schedule(config, actor_devices)
    return Ring(
        agent=agent,
        actors=actors,
        actor_devices=actor_devices,
        learner=learner,
        schedule=schedule,
        trajectories=TrajectoryDeque(
            num_actors=num_actors,
            slots_per_actor=config.learner.queue_slots_per_actor,
            ledger=ledger,
        ),
        stagings=stagings,
        ledger=ledger,
        memory_plan=memory_plan,
        progress=Progress(
            config=config.run,
            num_actors=num_actors,
            ledger=ledger,
            agreement=Agreement(
                learners,
                max_episodes=config.run.return_window,
                reducers=tuple(config.run.episode_reducers),
            ),
            clocks={"actor": [actor.clock for actor in actors], "learner": [learner.clock]},
            write_row=write_row,
            num_non_finite_updates=lambda: learner.num_non_finite_updates,
        ),
    )


def _check_divisible(config: Config, plan: DevicePlan) -> None:
    if config.actor.num_envs % len(plan.learner):
        raise ConfigError(
            f"actor.num_envs: expected a multiple of the {len(plan.learner)} learner devices"
            f" (devices.learner), got {config.actor.num_envs}"
        )


def _check_mapping(config: Config, learners: LearnerDevices) -> None:
    if learners.num_hosts > 1 and config.learner.mapping != "shard_map":
        raise ConfigError(
            f"learner.mapping: expected shard_map on {learners.num_hosts} hosts, got"
            f" {config.learner.mapping}"
        )


def _make_schedule(
    config: Config, actor_devices: Sequence[jax.Device]
) -> tuple[Schedule, dict[jax.Device, Staging]]:
    """Returns the order of the run, and the stagings of each actor device that keep it."""
    num_actors, per_cycle = len(actor_devices), config.learner.trajectories_per_cycle
    path = config.run.replay_schedule
    if path is None:
        schedule = LagSchedule(
            num_actors=num_actors,
            trajectories_per_cycle=per_cycle,
            max_policy_lag=config.learner.max_policy_lag,
        )
        return schedule, {device: NetworksDeque() for device in actor_devices}
    recorded = read_schedule(path, num_actors=num_actors, trajectories_per_cycle=per_cycle)
    actors_of: dict[jax.Device, list[int]] = {}
    for actor_id, device in enumerate(actor_devices):
        actors_of.setdefault(device, []).append(actor_id)
    return recorded, {
        device: ReplayedNetworksDeque(recorded.num_takers(actor_ids))
        for device, actor_ids in actors_of.items()
    }
