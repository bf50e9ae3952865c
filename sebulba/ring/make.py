"""Make a ring from a config, from the top: devices, environments, agent, memory, learner, actors.

Nothing runs yet. Of the core, only this file reads the whole config.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

import jax

from sebulba.agent import Agent
from sebulba.agent_check import ActShapes, validate_agent, validate_learning
from sebulba.config import ActorConfig, Config, EnvConfig
from sebulba.config.agents import agent_factory
from sebulba.config.run_spec import make_run_spec, queue_slots_per_actor
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.devices.mapping import is_jit_disabled
from sebulba.devices.memory import check_memory, plan_memory
from sebulba.devices.roles import Roles, assign_devices
from sebulba.envs import make_environment
from sebulba.envs.base import Environment, Interruptible
from sebulba.envs.closing import Closable, closed_on_error
from sebulba.errors import ConfigError
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.actor import Actor
from sebulba.ring.clocks import WallClock
from sebulba.ring.collectors import LocalCollector, make_first
from sebulba.ring.deques import NetworksDeque, TrajectoryDeque
from sebulba.ring.episodes import load_reducers
from sebulba.ring.learner import Learner, LearnerPrograms
from sebulba.ring.ledger import Ledger
from sebulba.ring.programs import RingPrograms
from sebulba.ring.progress import Progress
from sebulba.ring.ring import Gather, Ring, alone
from sebulba.ring.run_end import RunEnd
from sebulba.ring.schedule import Schedule
from sebulba.toolkit.prng import stream
from sebulba.types import EnvironmentSpec, Networks, RunSpec
from sebulba_agents import AGENTS

# More environments may take minutes to make, so one of them first says what memory the run needs.
_MANY_ENVS = 10_000
# An environment with a timeout of its own is to raise before the watchdog ends the whole run.
_SHARE_OF_TIMEOUT = 0.9


def _print_warning(text: str) -> None:
    print(text, file=sys.stderr)


@contextlib.contextmanager
def made_ring(config: Config, **options: object) -> Iterator[Ring]:
    """Make a ring, and close its deques and environments at the end; see `make_ring`."""
    ring = make_ring(config, **options)  # type: ignore[arg-type]
    try:
        yield ring
    finally:
        ring.close()
        ring.close_environments()


def make_ring(
    config: Config,
    *,
    devices: Roles | None = None,
    programs: RingPrograms | None = None,
    end: RunEnd | None = None,
    gather: Gather = alone,
    begin_with: Callable[[Networks, LearnerDevices, Agent], Networks] | None = None,
    on_warning: Callable[[str], None] = _print_warning,
) -> Ring:
    """Make environments, agent, learner, actors and deques.

    Args:
        config: the run's settings.
        devices: who acts and who learns; None: as the config says, on this host alone.
        programs: of a ring whose config differs in its seed alone; None: new ones.
        end: why the run ends; None: a new one.
        gather: takes the infos of this host's unrolls, and returns those of all hosts.
        begin_with: takes the new networks, on the learner devices, and returns those to begin with.
        on_warning: takes one line of text, also in the actors' threads; default: stderr.

    Raises:
        ConfigError: the config does not fit the devices, the environment or the agent.
        AgentError: the agent breaks the protocol.
        EnvironmentFault: the environment cannot be made or reset.
    """
    devices = devices or assign_devices(
        config.devices, jax.local_devices(), num_envs=config.actor.num_envs
    )
    learner_devices = devices.learner_devices
    end = end or RunEnd()
    check_devices(config, devices)
    if programs is not None:
        programs.check(config, devices)
    actor_devices = actor_devices_of(config, devices)
    first_actor_id = jax.process_index() * len(actor_devices)
    if programs is None and len(actor_devices) * config.actor.num_envs > _MANY_ENVS:
        with contextlib.closing(make_environment(config.env, num_envs=1, seed=config.seed)) as one:
            programs = make_programs(config, devices, one.spec)
    make = functools.partial(make_actor_environment, config.env, config.actor)
    to_close: dict[str, Closable] = {}
    with closed_on_error(to_close, config.run.close_timeout_s):
        # The programs depend on its spaces.
        first = to_close["actor 0"] = make_first(make, config.seed, first_actor_id)
        programs = programs or make_programs(config, devices, first.spec)
        warn_once = functools.cache(on_warning)  # not once for each actor
        clocks = [WallClock() for _ in actor_devices]
        collectors = []
        for actor_id, device in enumerate(actor_devices):
            collector = make_collector(
                config,
                programs.act[device],
                global_actor_id=first_actor_id + actor_id,
                clock=clocks[actor_id],
                on_warning=warn_once,
                environment=first if actor_id == 0 else None,
            )
            to_close[f"actor {actor_id}"] = collector
            collectors.append(collector)

        agent = programs.agent
        learner = make_learner(config, programs.learner)
        if begin_with is not None:
            networks = begin_with(learner.state.networks, learner_devices, agent)
            if networks is not learner.state.networks:
                learner.start_from(networks)

        ledger = Ledger(len(actor_devices))
        may_restart = config.actor.on_env_error == "restart"
        actors = []
        for actor_id, (device, collector) in enumerate(zip(actor_devices, collectors, strict=True)):
            point = collector.begin(learner.networks_on(device))
            if point.carry.env_state is not None:
                _check_no_exact_reset(config)
            actors.append(
                Actor(
                    actor_id=actor_id,
                    collector=collector,
                    point=point,
                    agent=agent,
                    device=device,
                    learner_devices=learner_devices,
                    clock=clocks[actor_id],
                    max_restarts=config.actor.max_env_restarts if may_restart else 0,
                    recreate_every=config.checkpoint.exact_reset_cycles,
                    on_warning=on_warning,
                )
            )

        schedule = Schedule(
            num_actors=len(actors),
            trajectories_per_cycle=config.learner.trajectories_per_cycle,
            policy_lag=config.policy_lag,
        )
        slots_per_actor = queue_slots_per_actor(config, len(actors))
        return Ring(
            programs=programs,
            actors=actors,
            learner=learner,
            schedule=schedule,
            trajectories=TrajectoryDeque(
                num_actors=len(actors), slots_per_actor=slots_per_actor, ledger=ledger
            ),
            stagings={device: NetworksDeque(schedule.num_staged) for device in actor_devices},
            ledger=ledger,
            progress=Progress(
                config=config.run,
                end=end,
                clocks={"actor": [actor.clock for actor in actors], "learner": [learner.clock]},
            ),
            end=end,
            gather=gather,
        )


def make_collector(
    config: Config,
    functions: ActFunctions,
    *,
    global_actor_id: int,
    clock: WallClock,
    on_warning: Callable[[str], None],
    environment: Environment | None = None,
) -> LocalCollector:
    """Make the collector of an actor; see `LocalCollector`."""
    return LocalCollector(
        functools.partial(make_actor_environment, config.env, config.actor),
        functions,
        run_seed=config.seed,
        global_actor_id=global_actor_id,
        clock=clock,
        on_warning=on_warning,
        settings=config.actor,
        where=where_of(config.env),
        close_timeout_s=config.run.close_timeout_s,
        environment=environment,
    )


def make_actor_environment(env: EnvConfig, settings: ActorConfig, seed: int) -> Environment:
    """Make an actor's environments.

    Args:
        env: names them.
        settings: `actor`, of which the number of environments and the timeout are used.
        seed: theirs.
    """
    environment = make_environment(env, num_envs=settings.num_envs, seed=seed)
    if isinstance(environment, Interruptible) and settings.env_timeout_s is not None:
        environment.timeout_s = _SHARE_OF_TIMEOUT * settings.env_timeout_s
    return environment


def where_of(env: EnvConfig) -> str:
    """Return the environment's suite and ID, for errors and warnings."""
    return f"{env.suite} {env.id}"


def _check_no_exact_reset(config: Config) -> None:
    every = config.checkpoint.exact_reset_cycles
    if every is not None:
        raise ConfigError(
            f"checkpoint.exact_reset_cycles: expected null, got {every}; checkpoints hold the"
            f" environments of {where_of(config.env)} themselves, so that resuming is exact"
            " without it"
        )


def actor_devices_of(config: Config, devices: Roles) -> list[jax.Device]:
    """Return the device of each actor of this host."""
    return [device for device in devices.actor for _ in range(config.actor.threads_per_device)]


def make_programs(config: Config, devices: Roles, environment: EnvironmentSpec) -> RingPrograms:
    """Make the agent and the jitted functions, and check that the run fits into memory.

    Args:
        config: the run's settings, of which the seed is not used.
        devices: who acts and who learns.
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
    agent, shapes = make_agent(config, run_spec)
    learner = make_learner_programs(config, agent, run_spec, learner_devices)
    state = learner.state_shapes()
    memory_plan = plan_memory(
        run_spec,
        shapes,
        opt_state=state.opt_state,
        experience=state.experience,
        num_actor_devices=len(devices.actor),
        queue_slots_per_actor=queue_slots_per_actor(config, len(actor_devices)),
        policy_lag=config.policy_lag,
    )
    check_memory(memory_plan, actor_devices=devices.actor, learner_devices=devices.learner)
    tracker = load_reducers(config.run.episode_reducers)
    return RingPrograms(
        config=config,
        devices=devices,
        run_spec=run_spec,
        agent=agent,
        memory_plan=memory_plan,
        learner=learner,
        act={
            device: ActFunctions(agent, run_spec, device=device, tracker=tracker)
            for device in devices.actor
        },
    )


def make_agent(config: Config, run_spec: RunSpec) -> tuple[Agent, ActShapes]:
    """Make the config's agent, and validate it against the environment.

    Returns:
        The agent, and the shapes that it acts with.

    Raises:
        AgentError: the agent breaks the protocol.
    """
    agent = agent_factory(config.agent.name)(config.agent, run_spec)
    shapes = validate_agent(agent, run_spec)
    # Tracing twice takes time, and ours are tested. Without jit, a loss may look at its numbers,
    # which a traced one does not have.
    if config.agent.name not in AGENTS and not is_jit_disabled():
        validate_learning(agent, run_spec)
    return agent, shapes


def make_learner_programs(
    config: Config, agent: Agent, run_spec: RunSpec, learner_devices: LearnerDevices
) -> LearnerPrograms:
    """Make the learner's jitted functions."""
    return LearnerPrograms(
        agent=agent,
        learner_devices=learner_devices,
        num_envs_per_device=run_spec.num_envs_per_learner_device,
        config=config.learner,
    )


def make_learner(config: Config, programs: LearnerPrograms) -> Learner:
    """Make the learner with new networks."""
    key = stream(jax.random.key(config.seed), "learner")
    return Learner(programs, key=key, clock=WallClock())


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
