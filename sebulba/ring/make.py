"""Make a ring from a config, from the top: environments, programs, learner, actors.

Nothing runs yet. Of the core, only this file and `programs` read the whole config.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

import jax

from sebulba.agent import Agent
from sebulba.config import Config, EnvConfig
from sebulba.config.run_spec import queue_slots_per_actor
from sebulba.devices.learner_devices import LearnerDevices
from sebulba.devices.memory import check_memory
from sebulba.devices.roles import Roles, assign_devices
from sebulba.envs import make_environment
from sebulba.envs.base import Environment, Interruptible
from sebulba.envs.closing import Closable, closed_on_error
from sebulba.errors import ConfigError
from sebulba.ring.act_functions import ActFunctions
from sebulba.ring.actor import Actor
from sebulba.ring.clocks import WallClock
from sebulba.ring.collectors import Collector
from sebulba.ring.learner import Learner
from sebulba.ring.local_collector import LocalCollector, make_first
from sebulba.ring.programs import RingPrograms, actor_devices_of, check_devices, make_programs
from sebulba.ring.ring import Gather, Ring, alone
from sebulba.ring.run_end import RunEnd
from sebulba.ring.schedule import Schedule
from sebulba.toolkit.prng import stream
from sebulba.types import EnvironmentSpec, Networks

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
    initial_networks: Callable[[Networks, LearnerDevices, Agent], Networks] | None = None,
    make_collector: Callable[..., Collector] | None = None,
    on_warning: Callable[[str], None] = _print_warning,
) -> Ring:
    """Make environments, programs, learner, actors and their ring.

    Args:
        config: the run's settings.
        devices: the devices that act and learn; None: those of the config, on this host alone.
        programs: the programs of a ring whose config differs in its seed alone; None: new ones.
        end: why the run ends; None: a new one.
        gather: takes the infos of this host's unrolls, and returns those of all hosts.
        initial_networks: takes the new networks, on the learner devices, and returns those that the
            run begins with; None: the new ones.
        make_collector: makes each actor's collector, as `make_local_collector` does; None: that.
        on_warning: takes one line of text, also in the actors' threads; default: stderr.

    Raises:
        ConfigError: the config does not fit the devices, the environment or the agent.
        AgentError: the agent breaks the protocol.
        EnvironmentFault: the environment cannot be made or reset.
    """
    devices = devices or assign_devices(
        config.devices, jax.local_devices(), num_envs=config.actor.num_envs
    )
    make = make_collector or make_local_collector
    check_devices(config, devices)
    if programs is not None:
        programs.check(config, devices)
    actor_devices = actor_devices_of(config, devices)
    first_actor_id = jax.process_index() * len(actor_devices)
    to_close: dict[str, Closable] = {}
    with closed_on_error(to_close, config.run.close_timeout_s):
        if programs is None and len(actor_devices) * config.actor.num_envs > _MANY_ENVS:
            one = make_environment(config.env, num_envs=1, seed=config.seed)
            with contextlib.closing(one):
                programs = _make_programs_that_fit(config, devices, one.spec)
        first = make_first(environment_maker(config, first_actor_id), config.seed, first_actor_id)
        to_close["actor 0"] = first
        programs = programs or _make_programs_that_fit(config, devices, first.spec)
        warn_once = functools.cache(on_warning)  # not once for each actor
        clocks = [WallClock() for _ in actor_devices]
        collectors = []
        for actor_id, device in enumerate(actor_devices):
            collector = make(
                config,
                programs.act[device],
                global_actor_id=first_actor_id + actor_id,
                clock=clocks[actor_id],
                on_warning=warn_once,
                environment=first if actor_id == 0 else None,
            )
            to_close[f"actor {actor_id}"] = collector
            collectors.append(collector)

        learner = Learner(
            programs.learner,
            key=stream(jax.random.key(config.seed), "learner"),
            clock=WallClock(),
        )
        if initial_networks is not None:
            new = learner.state.networks
            networks = initial_networks(new, devices.learner_devices, programs.agent)
            if networks is not new:
                learner.start_from(networks)

        networks_on = functools.cache(learner.networks_on)
        may_restart = config.actor.on_env_error == "restart"
        actors = []
        for actor_id, (device, collector) in enumerate(zip(actor_devices, collectors, strict=True)):
            point = collector.begin(networks_on(device))
            if point.carry.env_state is not None:
                _check_no_exact_reset(config)
            actors.append(
                Actor(
                    actor_id=actor_id,
                    collector=collector,
                    point=point,
                    agent=programs.agent,
                    device=device,
                    learner_devices=devices.learner_devices,
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
            slots_per_actor=queue_slots_per_actor(config, len(actors)),
        )
        return Ring(
            learner, actors, schedule, config.run, programs=programs, end=end, gather=gather
        )


def _make_programs_that_fit(
    config: Config, devices: Roles, environment: EnvironmentSpec
) -> RingPrograms:
    programs = make_programs(config, devices, environment)
    check_memory(programs.memory_plan, actor_devices=devices.actor, learner_devices=devices.learner)
    return programs


def make_local_collector(
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
        environment_maker(config, global_actor_id),
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


def environment_maker(config: Config, global_actor_id: int) -> Callable[[int], Environment]:
    """Return the function from a seed to an actor's environments."""
    num_envs, timeout_s = config.actor.num_envs, config.actor.env_timeout_s

    def make(seed: int) -> Environment:
        environment = make_environment(
            config.env,
            num_envs=num_envs,
            seed=seed,
            purpose="train",
            env_index=global_actor_id * num_envs,
        )
        if isinstance(environment, Interruptible) and timeout_s is not None:
            environment.timeout_s = _SHARE_OF_TIMEOUT * timeout_s
        return environment

    return make


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
