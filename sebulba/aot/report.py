"""A config's programs, compiled for a topology: do they fit, and what do they reach at best?"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from sebulba.aot.chips import Chip, Topology
from sebulba.aot.program import CompiledProgram, compile_program
from sebulba.aot.tracing import TracedRun, trace_programs
from sebulba.config import Config
from sebulba.devices.memory import OUT_OF_MEMORY, format_bytes, size_of_host
from sebulba.devices.roles import Roles
from sebulba.envs.task_defaults import with_task_defaults


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The memory of one kind of device: the run's arrays, and one program's temporaries."""

    name: str
    arrays: int  # bytes, from the memory plan
    temporaries: int  # bytes, of the program that needs most
    needs: int  # bytes
    has: int  # bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtBest:
    """What a run can reach at most, at the published peaks of its chips."""

    act_cycle_s: float | None  # None: on a CPU, whose peaks are not known
    learner_cycle_s: float
    env_steps_per_second: dict[str, float]  # of a host, by what limits it
    bottleneck: str
    actors_per_learner: float | None  # devices, at which acting takes as long as learning


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchesPer:
    """What all devices of a role launch together, as the mean over a learner cycle."""

    learner_cycle: int  # kernels, with those of its act cycles
    env_step: float  # kernels for a row of all environments of an actor
    update: float  # kernels for an optimisation step
    synchronisations: int  # of a learner cycle: the host waits for a number of the device


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The programs of a config on a topology."""

    config: str
    topology: str
    roles: str
    programs: tuple[CompiledProgram, ...]
    places: tuple[Place, ...]
    at_best: AtBest | None  # None: the peaks are not known
    launches: LaunchesPer | None = None  # None: a program does not compile
    notes: tuple[str, ...] = ()

    @property
    def fails(self) -> str | None:
        """Why a program does not compile."""
        problems = (f"{each.name}: {each.problem}" for each in self.programs if each.problem)
        return next(problems, None)

    @property
    def does_not_fit(self) -> str | None:
        """Why the run does not fit into the memory of the devices."""
        for each in self.programs:
            if each.problem is not None and OUT_OF_MEMORY in each.problem:
                return f"memory: {each.name}: {each.problem}"
        for place in self.places:
            if place.needs > place.has:
                return (
                    f"memory: the run needs {format_bytes(place.needs)} on each {place.name} of"
                    f" {self.topology}, which has {format_bytes(place.has)}. Reduce"
                    " actor.num_envs, actor.trajectory_length or the agent's replay capacity"
                )
        return None


def compile_for(
    config: Config,
    topology: Topology,
    *,
    env_steps_per_second: float | None = None,
    num_seeds: int = 1,
) -> Report:
    """Compile a config's programs for a topology.

    Args:
        config: the run's settings.
        topology: prepared.
        env_steps_per_second: the most that a host's environments make; None: not known.
        num_seeds: of several, the one program is mapped over them.

    Raises:
        ConfigError: the topology does not exist, or the config does not fit its devices.
    """
    config = with_task_defaults(config).config
    notes: list[str] = []
    hosts = topology.hosts()
    run = trace_programs(config, hosts, num_seeds=num_seeds, on_warning=notes.append)
    hosts_per_slice = len(hosts) // topology.count if topology.platform == "tpu" else None
    programs = tuple(
        compile_program(each, hosts_per_slice=hosts_per_slice) for each in run.programs
    )
    return Report(
        config=f"{config.agent.name} on {config.env.suite} {config.env.id}",
        topology=topology.name,
        roles=_describe_roles(run.roles),
        programs=programs,
        places=tuple(_places(run, programs, topology)),
        at_best=_at_best(run, programs, topology.chip, env_steps_per_second),
        launches=launches_of(run, programs),
        notes=tuple(notes),
    )


def _describe_roles(roles: Roles) -> str:
    """Return who acts and who learns on each host."""
    learners, num_hosts = roles.learner, roles.learner_devices.num_hosts
    if set(roles.actor) == set(learners):
        text = f"{len(learners)} × {learners[0].device_kind} act and learn"
    elif _are_actors_here(roles):
        text = f"the host's CPU acts, {len(learners)} × {learners[0].device_kind} learn"
    else:
        text = f"{len(roles.actor)} × {learners[0].device_kind} act, {len(learners)} learn"
    return text if num_hosts == 1 else f"on each of {num_hosts} hosts, {text}"


def _are_actors_here(roles: Roles) -> bool:
    """Return whether the CPU of the host acts, instead of the topology's devices."""
    return roles.actor[0].platform != roles.learner[0].platform


def _places(
    run: TracedRun, programs: Sequence[CompiledProgram], topology: Topology
) -> Iterator[Place]:
    """Yield the memory of each kind of device of the topology."""
    memory = topology.chip.memory if topology.chip else size_of_host() // int(topology.shape)
    for role, arrays in run.arrays.items():
        own = [each for each in programs if each.role == role]
        if not own or (role == "actor" and _are_actors_here(run.roles)):
            continue
        temporaries = max(each.temporaries for each in own)
        yield Place(
            name=f"{role} device",
            arrays=arrays,
            temporaries=temporaries,
            # Arguments of JAX environments and undonated results are not in the plan.
            needs=max(arrays + temporaries, *(each.total for each in own)),
            has=memory,
        )


def launches_of(run: TracedRun, programs: Sequence[CompiledProgram]) -> LaunchesPer | None:
    """Return what a learner cycle launches, with the act cycles of its trajectories.

    The programs of a device that acts are called once for each trajectory. What actors on the
    host's CPU launch counts too.
    """
    num_trajectories = run.run_spec.trajectories_per_cycle
    kernels = in_env_steps = in_updates = synchronisations = 0
    for each in programs:
        if each.launches is None:
            return None
        times = each.calls * (num_trajectories if each.role == "actor" else 1)
        kernels += times * each.launches.kernels
        in_env_steps += times * each.launches.in_env_steps
        in_updates += times * each.launches.in_updates
        synchronisations += times * each.launches.synchronisations
    return LaunchesPer(
        learner_cycle=kernels,
        env_step=in_env_steps / (num_trajectories * run.run_spec.trajectory_length),
        update=in_updates / max(run.num_updates, 1),
        synchronisations=synchronisations,
    )


def least_seconds(compiled: CompiledProgram, chip: Chip) -> float:
    """Return the least time of a call at the published peaks of a chip."""
    peaks = {"bfloat16": chip.bfloat16, "float16": chip.bfloat16}
    compute = sum(count / peaks.get(dtype, chip.float32) for dtype, count in compiled.flops.items())
    return max(compute, compiled.least_bytes / chip.bandwidth)


def _at_best(
    run: TracedRun,
    programs: Sequence[CompiledProgram],
    chip: Chip | None,
    env_steps_per_second: float | None,
) -> AtBest | None:
    if chip is None or any(each.problem for each in programs):
        return None
    seconds: dict[str, float] = collections.defaultdict(float)
    for each in programs:
        seconds[each.role] += each.calls * least_seconds(each, chip)
    per_trajectory = run.num_seeds * run.run_spec.num_streams * run.run_spec.trajectory_length
    per_cycle = run.run_spec.trajectories_per_cycle
    rates = {"learning": per_cycle * per_trajectory / seconds["learner"]}
    act_cycle_s, ratio = None, None
    if "actor" in seconds and not _are_actors_here(run.roles):
        act_cycle_s = seconds["actor"]
        rates["acting"] = len(run.roles.actor) * per_trajectory / act_cycle_s
        # Devices that act for as long as a learner cycle takes, for each that learns.
        ratio = per_cycle * act_cycle_s / (seconds["learner"] * len(run.roles.learner))
    if env_steps_per_second is not None:
        rates["environments"] = env_steps_per_second
    return AtBest(
        act_cycle_s=act_cycle_s,
        learner_cycle_s=seconds["learner"],
        env_steps_per_second=rates,
        bottleneck=min(rates, key=rates.__getitem__),
        actors_per_learner=ratio,
    )
