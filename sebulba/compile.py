"""Compile a config for devices that are not here: `sebulba compile CONFIG --for v5e:2x2`.

Nothing runs on the devices: the programs are traced with shapes, compiled by the plugin of the
platform, and read. Imports no jax before that.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sebulba.config import Config, flags
from sebulba.errors import ConfigError
from sebulba.process import EXIT_CONFIG, EXIT_DONE, EXIT_FAILED, program, run_command

if TYPE_CHECKING:
    import jax

    from sebulba.devices.chips import Chip, Topology
    from sebulba.types import PyTree

_PROG = program("compile")
_DESCRIPTION = """\
Compiles the programs of a config for accelerators that this machine does not have, and prints
whether they compile, their memory, their messages between devices, and the least time that they
take at the published peaks of the chips. Nothing is trained.

--for TOPOLOGY               v5e:2x2, v5e:4x8, v6e:2x2, h100:4, h200:8, b200:8, cpu:8 and others of
                             these chips. TPUs need 'sebulba[aot-tpu]', GPUs 'sebulba[aot-cuda]'
--env-steps-per-second RATE  what the environments of a host can do at most, for the least times
--json                       print the same as JSON

Exits with 0 if the programs compile and fit into memory, with 2 if they do not fit or the command
line is wrong, and with 3 if a program does not compile."""
_PLAIN_WIDTH_COLUMNS = 160  # of output to a file or a pipe


def main() -> None:
    """Parse the command line, compile, and exit with 0, 2 or 3."""
    parser = argparse.ArgumentParser(prog=f"{_PROG} CONFIG", add_help=False, allow_abbrev=False)
    parser.add_argument("--for", dest="topology")
    parser.add_argument("--env-steps-per-second", type=float)
    parser.add_argument("--json", action="store_true")
    options, argv = parser.parse_known_args()
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    sys.exit(
        compile_config(
            config,
            options.topology,
            env_steps_per_second=options.env_steps_per_second,
            as_json=options.json,
        )
    )


def compile_config(
    config: Config,
    topology_name: str | None,
    *,
    env_steps_per_second: float | None = None,
    as_json: bool = False,
) -> int:
    """Compile a config's programs for a topology, print the report, and return the exit code.

    Args:
        config: the run's settings.
        topology_name: such as `v5e:2x2`.
        env_steps_per_second: of all environments of a host at most; None: not known.
        as_json: whether to print JSON instead of a table.
    """
    from sebulba.devices.chips import Topology

    try:
        if topology_name is None:
            raise ConfigError("--for: expected the devices to compile for, such as v5e:2x2")
        topology = Topology.parse(topology_name)
        topology.prepare()
        # Importing jax takes a second, so command line errors and --help come first.
        from sebulba.agent_check import AgentError
        from sebulba.envs.base import EnvironmentFault

        try:
            report = compile_for(config, topology, env_steps_per_second=env_steps_per_second)
        except (AgentError, EnvironmentFault) as error:
            print(f"sebulba: {type(error).__name__}: {error}", file=sys.stderr)
            return EXIT_FAILED
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        _print_table(report)
    for problem, code in ((report.does_not_fit, EXIT_CONFIG), (report.fails, EXIT_FAILED)):
        if problem is not None:
            print(f"sebulba: {problem}", file=sys.stderr)
            return code
    return EXIT_DONE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A traced program of a run, which can be compiled for its devices."""

    name: str
    role: str  # actor or learner: the devices that run it
    traced: "jax.stages.Traced"
    arguments: "PyTree"  # shapes with shardings
    calls: int  # of an act cycle or of a learner cycle
    platform: str  # of its devices
    num_devices: int
    # Of arguments and results, on a device: what is updated in place, and read or written in parts.
    bytes_in_place: int = 0
    # What one call hands to the next: its shapes before and after. Others would compile again.
    carried: tuple["PyTree", "PyTree"] = ((), ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """Collectives of one kind, in one call of a program."""

    kind: str
    count: int
    bytes: int  # of the results on a device, all together
    is_in_loop: bool  # sent in every turn


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """What a compiled program says of itself; sizes are bytes on each of its devices."""

    name: str
    role: str
    calls: int
    problem: str | None = None  # why it does not compile
    compile_s: float = 0.0
    arguments: int = 0
    results: int = 0
    reused: int = 0  # of the results, in the memory of donated arguments
    temporaries: int = 0
    code: int = 0
    total: int = 0
    collectives: tuple[Message, ...] = ()
    unasked: tuple[str, ...] = ()  # copies, transfers and recompilations that nobody asked for
    flops: dict[str, float] = dataclasses.field(default_factory=dict)  # of products, by dtype
    least_bytes: int = 0  # arguments read once and results written once
    xla_flops: float | None = None  # XLA's count: every loop as one turn
    xla_bytes_accessed: float | None = None
    xla_optimal_s: float | None = None


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
class Report:
    """The programs of a config on a topology."""

    config: str
    topology: str
    roles: str
    programs: tuple[CompiledProgram, ...]
    places: tuple[Place, ...]
    at_best: AtBest | None  # None: the peaks are not known
    notes: tuple[str, ...] = ()

    @property
    def fails(self) -> str | None:
        """Why a program does not compile."""
        problems = (f"{each.name}: {each.problem}" for each in self.programs if each.problem)
        return next(problems, None)

    @property
    def does_not_fit(self) -> str | None:
        """Why the run does not fit into the memory of the devices."""
        from sebulba.devices.memory import format_bytes

        for each in self.programs:
            if each.problem is not None and _OUT_OF_MEMORY in each.problem:
                return f"memory: {each.name}: {each.problem}"
        for place in self.places:
            if place.needs > place.has:
                return (
                    f"memory: the run needs {format_bytes(place.needs)} on each {place.name} of"
                    f" {self.topology}, which has {format_bytes(place.has)}. Reduce"
                    " actor.num_envs, actor.trajectory_length or the agent's replay capacity"
                )
        return None


_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


def compile_for(
    config: Config, topology: "Topology", *, env_steps_per_second: float | None = None
) -> Report:
    """Compile a config's programs for a topology.

    Args:
        config: the run's settings.
        topology: prepared.
        env_steps_per_second: of all environments of a host at most; None: not known.

    Raises:
        ConfigError: the topology does not exist, or the config does not fit its devices.
    """
    notes: list[str] = []
    run = trace_programs(config, topology, on_warning=notes.append)
    programs = tuple(compile_program(each) for each in run.programs)
    return Report(
        config=f"{config.agent.name} on {config.env.suite} {config.env.id}",
        topology=topology.name,
        roles=run.roles,
        programs=programs,
        places=tuple(_places(run, programs, topology)),
        at_best=_at_best(run, programs, topology.chip, env_steps_per_second),
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedRun:
    """The programs of a run, and the numbers about it that memory and least times need."""

    programs: tuple[Program, ...]
    arrays: dict[str, int]  # bytes on a device by its role, from the memory plan
    roles: str
    num_actor_devices: int
    num_learner_devices: int  # of a host
    are_actors_here: bool  # on this machine's CPU instead of the topology's devices
    env_steps_per_trajectory: int
    trajectories_per_cycle: int


def trace_programs(
    config: Config, topology: "Topology", *, on_warning: Callable[[str], None]
) -> TracedRun:
    """Trace the programs that a run would compile, with shapes instead of arrays.

    The environments are made here; everything else is on the topology's devices.

    Args:
        config: the run's settings.
        topology: prepared.
        on_warning: takes one line of text.

    Raises:
        ConfigError: the topology does not exist, or the config does not fit its devices.
    """
    import jax
    import numpy as np

    from sebulba.agent_check import num_updates_of
    from sebulba.config.run_spec import make_run_spec, queue_slots_per_actor
    from sebulba.devices.memory import plan_memory
    from sebulba.devices.roles import assign_devices_of_hosts
    from sebulba.devices.xla_workarounds import is_slow_in_a_loop
    from sebulba.envs import make_environment
    from sebulba.ring import anakin
    from sebulba.ring.act_cycle import init_carry
    from sebulba.ring.environments import choose_fused, where_of
    from sebulba.ring.episodes import load_reducers
    from sebulba.ring.fused_cycle import FusedFunctions
    from sebulba.ring.learner import update_program
    from sebulba.ring.make import check_devices, make_agent
    from sebulba.ring.records import Unroll
    from sebulba.ring.stepped_cycle import StepFunctions
    from sebulba.ring.update import Update, state_initializer

    hosts = topology.hosts()
    roles = assign_devices_of_hosts(config.devices, hosts, host=0)
    check_devices(config, roles)
    if config.learner.mapping != "shard_map":
        raise ConfigError(
            f"learner.mapping: expected shard_map to compile, got {config.learner.mapping}"
        )
    learner_devices, device = roles.learner_devices, roles.actor[0]
    actor_devices = [
        device for device in roles.actor for _ in range(config.actor.threads_per_device)
    ]
    programs: list[Program] = []
    act = functools.partial(_trace, role="actor", devices=[device])
    learn = functools.partial(_trace, role="learner", devices=list(learner_devices.mesh.devices))
    length, per_cycle = config.actor.trajectory_length, config.learner.trajectories_per_cycle

    def on_actor(tree: "PyTree") -> "PyTree":
        return _placed(tree, jax.sharding.SingleDeviceSharding(device))

    with contextlib.closing(
        make_environment(config.env, num_envs=config.actor.num_envs, seed=config.seed)
    ) as environment:
        run_spec = make_run_spec(
            config,
            environment.spec,
            len(actor_devices),
            len(roles.learner),
            num_hosts=learner_devices.num_hosts,
        )
        agent = make_agent(config, run_spec)
        env_step = environment.reset()
        fused = choose_fused(
            environment,
            config.actor,
            where=where_of(config.env),
            env_step=env_step,
            device=device,
            on_warning=on_warning,
        )

        # The learner's state, and the carry of an act cycle.
        key = jax.eval_shape(lambda: jax.random.key(0))
        init_state = state_initializer(agent, learner_devices, run_spec.num_envs_per_learner_device)
        state = jax.eval_shape(init_state, learner_devices.replicate(key))
        networks = on_actor(jax.eval_shape(agent.actor_networks, state.networks))
        tracker = load_reducers(config.run.episode_reducers)
        is_whole_state = fused is not None and fused.is_whole_state
        carry = on_actor(
            jax.eval_shape(
                lambda networks, key, env_step, env_state: init_carry(
                    agent,
                    networks,
                    env_step,
                    key=key,
                    global_actor_id=0,
                    device=device,
                    tracker=tracker,
                    env_state=env_state,
                ),
                networks,
                on_actor(key),
                env_step,
                fused.state if fused is not None and is_whole_state else None,
            )
        )

        # Acting.
        make_functions = {
            "agent": agent,
            "trajectory_length": length,
            "device": device,
            "tracker": tracker,
        }
        begin = dataclasses.replace(carry, env_state=None)
        if fused is None:
            stepped = StepFunctions(**make_functions)
            actor_state, buffer = on_actor(
                jax.eval_shape(stepped.begin, networks, carry.actor_state, carry.env_step)
            )
            step = act(
                "act step",
                stepped.step,
                (networks, actor_state, buffer, carry.env_step),
                calls=length,
                in_place=buffer,
                carried=lambda results: ((actor_state, buffer), results[1:]),
            )
            finish = act(
                "end of act cycle",
                stepped.finish,
                (buffer, carry.statistics, carry.env_step),
                in_place=buffer,
                carried=lambda results: (carry.statistics, results[0]),
            )
            programs += [step, finish]
            trajectory = finish.traced.out_info[1]
        else:
            functions = FusedFunctions(step_environment=fused.step, **make_functions)
            env_state = on_actor(jax.eval_shape(lambda state: state, fused.state))
            if config.actor.rollout == "episodes":
                episodes = act("act cycle", functions.act_episodes, (networks, begin, env_state))
                buffer = on_actor(episodes.traced.out_info[2])
                finish = act(
                    "end of act cycle",
                    functions.finish,
                    (buffer, carry.actor_state, carry.statistics, carry.env_step),
                    in_place=buffer,
                    carried=lambda results: (begin, results[0]),
                )
                programs += [episodes, finish]
                trajectory = finish.traced.out_info[1]
            else:
                cycle = act(
                    "act cycle",
                    functions.cycle,
                    (networks, begin, env_state),
                    carried=lambda results: ((env_state, begin), results[:2]),
                )
                programs.append(cycle)
                trajectory = cycle.traced.out_info[2]

    # Learning.
    placed = agent.shard_actor_state(carry.actor_state, learner_devices)
    unroll = Unroll(
        initial_state=placed,
        final_state=placed,
        trajectory=learner_devices.split(on_actor(trajectory), axis=1),
        actor_id=learner_devices.replicate(jax.ShapeDtypeStruct((), np.int32)),
    )
    words = jax.ShapeDtypeStruct((2,), np.uint32)
    device_update = Update(
        agent=agent,
        max_non_finite_updates=config.learner.non_finite_limit,
        gradients=config.learner.gradients,
    )
    env_steps_per_trajectory = run_spec.num_envs * length
    env_steps_per_cycle = env_steps_per_trajectory * per_cycle * run_spec.num_hosts
    # A replay agent takes no updates at first.
    last_cycle = run_spec.total_env_steps // env_steps_per_cycle
    num_updates = num_updates_of(agent, last_cycle)
    reason = anakin.reason_against_one_program(
        policy_lag=config.learner.policy_lag,
        has_whole_episodes=config.actor.rollout == "episodes",
        may_restart=config.actor.on_env_error == "restart",
        mapping=config.learner.mapping,
        num_hosts=learner_devices.num_hosts,
        has_jax_environments=is_whole_state,
        trajectories_per_cycle=per_cycle,
        actor_devices=actor_devices,
        learner_devices=roles.learner,
    )
    if config.run.mode == "anakin" and reason is not None:
        raise ConfigError(f"{reason}. Or set run.mode auto")
    is_one_program = config.run.mode in ("anakin", "auto") and reason is None
    if is_one_program:
        carries = (carry,) * len(actor_devices)
        shardings = anakin.carry_shardings(carries, learner_devices, num_envs=run_spec.num_envs)
        start = (state, jax.tree.map(_placed, carries, shardings), words)
        one_program, _ = anakin.program_of_cycles(
            anakin.cycle_function(
                agent=agent,
                act_cycles=[functions.act_within] * len(actor_devices),
                placed_states=[placed] * len(actor_devices),
                num_rounds=per_cycle // len(actor_devices),
                device_update=device_update,
                learner_devices=learner_devices,
                num_updates=num_updates,
            ),
            start,
            max_cycles=-(-run_spec.total_env_steps // env_steps_per_cycle),
            learner_devices=learner_devices,
            shardings=shardings,
        )
        whole_cycle = learn(
            "one program, a learner cycle",
            one_program,
            (*start, jax.ShapeDtypeStruct((), np.int32)),
            in_place=state.experience,
            carried=lambda results: (start[:2], results[:2]),
        )
        is_slow = is_slow_in_a_loop(whole_cycle.traced.jaxpr, device.platform)
        is_one_program = config.run.mode == "anakin" or not is_slow
        if is_one_program:
            programs = [whole_cycle]
    if not is_one_program:

        def update(num_updates: int, *, calls: int = 1) -> Program:
            return learn(
                "update" if num_updates == 1 else f"{num_updates} updates",
                update_program(device_update, learner_devices, num_updates=num_updates),
                (state, (unroll,) * per_cycle, words),
                calls=calls,
                in_place=state.experience,
                carried=lambda results: (state, results[0]),
            )

        updates, is_by_update = update(num_updates), config.learner.cycle == "update_by_update"
        if config.learner.cycle == "auto":
            is_by_update = is_slow_in_a_loop(updates.traced.jaxpr, updates.platform)
        if num_updates > 1 and is_by_update:
            updates = update(1, calls=num_updates)
        programs.append(updates)

    plan = plan_memory(
        agent,
        run_spec,
        num_actor_devices=len(roles.actor),
        queue_slots_per_actor=queue_slots_per_actor(config.learner, len(actor_devices)),
        policy_lag=config.learner.policy_lag,
    )
    arrays = {"actor": sum(plan.actor_device.values())}
    arrays["learner"] = sum(plan.learner_device.values())
    if set(roles.actor) & set(roles.learner):
        arrays = dict.fromkeys(arrays, sum(arrays.values()))
    platform = learner_devices.devices[0].platform
    return TracedRun(
        programs=tuple(programs),
        arrays=arrays,
        roles=_describe_roles(roles, num_hosts=len(hosts)),
        num_actor_devices=len(roles.actor),
        num_learner_devices=len(roles.learner),
        are_actors_here=device.platform != platform,
        env_steps_per_trajectory=env_steps_per_trajectory,
        trajectories_per_cycle=per_cycle,
    )


def _trace(
    name: str,
    function: Any,
    arguments: tuple["PyTree", ...],
    *,
    role: str,
    devices: Sequence["jax.Device"],
    calls: int = 1,
    in_place: "PyTree" = (),
    carried: Callable[["PyTree"], tuple["PyTree", "PyTree"]] = lambda results: ((), ()),
) -> Program:
    """Trace a jitted function with shapes.

    Args:
        name: of the program.
        function: has a method `trace`.
        arguments: shapes with shardings.
        role: of its devices.
        devices: run it.
        calls: of an act cycle or of a learner cycle.
        in_place: the arguments that a call updates in place, of which it may touch a small part.
        carried: takes the results; returns what a call takes, and gives to the next in its place.
    """
    traced = function.trace(*arguments)
    return Program(
        name=name,
        role=role,
        traced=traced,
        arguments=arguments,
        calls=calls,
        platform=devices[0].platform,
        num_devices=len(devices),
        bytes_in_place=2 * _bytes_on_device(in_place),
        carried=carried(traced.out_info),
    )


def _placed(tree: "PyTree", sharding: Any) -> "PyTree":
    """Return the shapes of a tree with a sharding, and with their weak types."""
    import jax

    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=sharding, weak_type=getattr(x, "weak_type", False)
        ),
        tree,
    )


def _bytes_on_device(tree: "PyTree") -> int:
    """Return the bytes of shapes with shardings on one of their devices, without padding."""
    import jax

    def size(leaf: Any) -> int:
        shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))


def _describe_roles(roles: Any, *, num_hosts: int) -> str:
    acting = f"{len(roles.actor)} of {roles.actor[0].device_kind} act"
    if roles.actor[0].platform != roles.learner[0].platform:
        acting = "this machine's CPU acts"
    if set(roles.actor) == set(roles.learner):
        roles_of_host = f"{len(roles.learner)} × {roles.learner[0].device_kind} act and learn"
    else:
        roles_of_host = f"{acting}, {len(roles.learner)} of {roles.learner[0].device_kind} learn"
    return roles_of_host if num_hosts == 1 else f"on each of {num_hosts} hosts, {roles_of_host}"


def compile_program(traced_program: Program) -> CompiledProgram:
    """Compile a program, and read what the compiler says of it."""
    import jax

    traced = traced_program.traced
    about: Any = {each: getattr(traced_program, each) for each in ("name", "role", "calls")}
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            compiled = traced.lower().compile()
        except Exception as error:  # the plugin's own
            return CompiledProgram(**about, problem=str(error).strip().splitlines()[0])
    compile_s = time.perf_counter() - started
    text, memory = compiled.as_text() or "", compiled.memory_analysis()
    cost: Any = compiled.cost_analysis() or {}
    collectives = read_collectives(text)
    results = jax.tree.map(_placed, traced.out_info, compiled.output_shardings)
    least_bytes = _bytes_on_device((traced_program.arguments, results))
    optimal_s = cost.get("optimal_seconds", -1.0)
    return CompiledProgram(
        **about,
        compile_s=compile_s,
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes,
        reused=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        total=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes,
        collectives=collectives,
        unasked=(
            *_unasked(text, collectives),
            *(
                str(each.message).split("\n")[0]
                for each in caught
                if "donated" in str(each.message)
            ),
            *_changes(*traced_program.carried),
        ),
        flops=product_flops(
            traced.jaxpr, traced_program.platform, num_devices=traced_program.num_devices
        ),
        least_bytes=max(0, least_bytes - traced_program.bytes_in_place),
        xla_flops=cost.get("flops"),
        xla_bytes_accessed=cost.get("bytes accessed"),
        xla_optimal_s=optimal_s if optimal_s > 0 else None,  # negative: XLA does not know
    )


_COLLECTIVE = re.compile(
    r" = (?P<type>.*?) (?P<kind>all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    r"|collective-broadcast|ragged-all-to-all)(?P<start>-start)?\("
)
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=\{?([%\w., -]+)")


def read_collectives(hlo: str) -> tuple[Message, ...]:
    """Return the collectives of a compiled program, from its text.

    Args:
        hlo: as `jax.stages.Compiled.as_text` returns it.
    """
    called: dict[str, set[str]] = collections.defaultdict(set)
    bodies: set[str] = set()
    found: list[tuple[str, str, int]] = []
    computation = ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
        for names in _CALLED.findall(line):
            called[computation] |= {name.strip(" %") for name in names.split(",")}
        bodies |= set(re.findall(r"body=%?([\w.-]+)", line))
        if match := _COLLECTIVE.search(line):
            sizes = [_num_bytes(*array) for array in _ARRAY.findall(match["type"])]
            # The result of a start has the operands before the results.
            if match["start"] and match["kind"] != "all-reduce":
                sizes = sizes[len(sizes) // 2 :]
            found.append((computation, match["kind"], sum(sizes)))
    in_loops, new = set(bodies), set(bodies)
    while new:
        new = {name for each in new for name in called[each]} - in_loops
        in_loops |= new
    counts: dict[tuple[str, bool], list[int]] = collections.defaultdict(list)
    for computation, kind, size in found:
        counts[kind, computation in in_loops].append(size)
    return tuple(
        Message(kind=kind, count=len(sizes), bytes=sum(sizes), is_in_loop=is_in_loop)
        for (kind, is_in_loop), sizes in sorted(counts.items())
    )


def _num_bytes(dtype: str, shape: str) -> int:
    digits = re.search(r"\d+", dtype)
    bits = 8 if dtype == "pred" else int(digits[0]) if digits else 0
    return math.prod(int(size) for size in shape.split(",") if size) * bits // 8


def _unasked(hlo: str, collectives: Sequence[Message]) -> Iterator[str]:
    """Yield what slows a program and no line of its source asks for."""
    from sebulba.devices.memory import format_bytes

    for message in collectives:
        if message.kind not in ("all-reduce", "reduce-scatter"):
            yield f"{message.count} {message.kind} of {format_bytes(message.bytes)}"
    callbacks = re.findall(r'custom_call_target="([^"]*callback[^"]*)"', hlo)
    transfers = re.findall(r" (infeed|outfeed)\(", hlo)
    transfers += re.findall(r"(is_host_transfer)=true", hlo)
    for kind, count in collections.Counter(callbacks + transfers).items():
        yield f"{count} calls of the host ({kind})"
    if (donors := re.search(r"buffer_donor=\{ (.*?\}\)) \}", hlo)) is not None:
        yield f"{donors[1].count('(')} donated arrays that no result reuses"
    if re.search(r"\bf64\[", hlo):
        yield "float64"


def _changes(before: "PyTree", after: "PyTree") -> Iterator[str]:
    """Yield the leaves that one call returns in another type than it takes: the next compiles."""
    import jax

    def describe(leaf: Any) -> str:
        return f"{'weak ' * bool(leaf.weak_type)}{leaf.dtype}{list(leaf.shape)}"

    leaves = jax.tree_util.tree_leaves_with_path(before)
    for (path, old), new in zip(leaves, jax.tree.leaves(after), strict=True):
        if describe(old) != describe(new):
            yield f"{jax.tree_util.keystr(path)}: {describe(old)} becomes {describe(new)}"


def product_flops(jaxpr: Any, platform: str, *, num_devices: int = 1) -> dict[str, float]:
    """Return the FLOPs of a program's matrix products and convolutions on a device, by dtype.

    XLA counts a loop as one turn, and some plugins count nothing. Sums, comparisons and the like
    are not counted, and a loop of unknown length is one turn, so that the count is the least.

    Args:
        jaxpr: of the program.
        platform: of the devices.
        num_devices: what is not mapped over them is split evenly.
    """
    from sebulba.devices.xla_workarounds import equations

    flops: dict[str, float] = collections.defaultdict(float)
    for equation, times in equations(jaxpr, platform):
        name = equation.primitive.name
        if name not in ("dot_general", "conv_general_dilated"):
            continue
        left, right = (variable.aval for variable in equation.invars[:2])
        size = math.prod(equation.outvars[0].aval.shape)
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            size *= math.prod(left.shape[axis] for axis in contracted)
        else:
            output_axis = equation.params["dimension_numbers"].rhs_spec[0]
            size *= math.prod(right.shape) // right.shape[output_axis]
            # The gradient of a strided convolution multiplies zeros, which XLA leaves out.
            size //= math.prod(equation.params["lhs_dilation"])
        flops[str(left.dtype)] += 2 * size * times / num_devices
    return dict(flops)


def _places(
    run: TracedRun, programs: Sequence[CompiledProgram], topology: "Topology"
) -> Iterator[Place]:
    """Yield the memory of each kind of device of the topology."""
    from sebulba.devices.memory import size_of_host

    memory = topology.chip.memory if topology.chip else size_of_host() // int(topology.shape)
    for role, arrays in run.arrays.items():
        own = [each for each in programs if each.role == role]
        if not own or (role == "actor" and run.are_actors_here):
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


def least_seconds(compiled: CompiledProgram, chip: "Chip") -> float:
    """Return the least time of a call at the published peaks of a chip."""
    peaks = {"bfloat16": chip.bfloat16, "float16": chip.bfloat16}
    compute = sum(count / peaks.get(dtype, chip.float32) for dtype, count in compiled.flops.items())
    return max(compute, compiled.least_bytes / chip.bandwidth)


def _at_best(
    run: TracedRun,
    programs: Sequence[CompiledProgram],
    chip: "Chip | None",
    env_steps_per_second: float | None,
) -> AtBest | None:
    if chip is None or any(each.problem for each in programs):
        return None
    seconds: dict[str, float] = collections.defaultdict(float)
    for each in programs:
        seconds[each.role] += each.calls * least_seconds(each, chip)
    per_cycle = run.env_steps_per_trajectory * run.trajectories_per_cycle
    rates = {"learning": per_cycle / seconds["learner"]}
    act_cycle_s, ratio = None, None
    if "actor" in seconds and not run.are_actors_here:
        act_cycle_s = seconds["actor"]
        rates["acting"] = run.num_actor_devices * run.env_steps_per_trajectory / act_cycle_s
        # Devices that act for as long as a learner cycle takes, for each that learns.
        acting = run.trajectories_per_cycle * act_cycle_s
        ratio = acting / (seconds["learner"] * run.num_learner_devices)
    if env_steps_per_second is not None:
        rates["environments"] = env_steps_per_second
    return AtBest(
        act_cycle_s=act_cycle_s,
        learner_cycle_s=seconds["learner"],
        env_steps_per_second=rates,
        bottleneck=min(rates, key=rates.__getitem__),
        actors_per_learner=ratio,
    )


def _print_table(report: Report) -> None:
    """Print a column for each program, and lines about memory and the least times."""
    import rich.box
    import rich.console
    import rich.table

    from sebulba.devices.chips import CHIPS
    from sebulba.devices.memory import format_bytes

    chip = CHIPS.get(report.topology.partition(":")[0])
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH_COLUMNS
    console = rich.console.Console(width=width, highlight=False, markup=False)
    table = rich.table.Table(
        title=f"{report.config}, for {report.topology}: {report.roles}",
        box=rich.box.SIMPLE,
        title_justify="left",
    )
    table.add_column("on each device")
    for each in report.programs:
        calls = f", {each.calls} calls a cycle" if each.calls > 1 else ""
        table.add_column(f"{each.name}{calls}", overflow="fold")

    def add(name: str, describe: Callable[[CompiledProgram], str]) -> None:
        cells = ["" if each.problem else describe(each) for each in report.programs]
        if any(cells):
            table.add_row(name, *cells)

    compiles = [each.problem or f"yes, in {each.compile_s:.1f} s" for each in report.programs]
    table.add_row("compiles", *compiles)
    add("arguments", lambda each: format_bytes(each.arguments))
    add("results", lambda each: format_bytes(each.results))
    add("in donated memory", lambda each: format_bytes(each.reused))
    add("temporaries", lambda each: format_bytes(each.temporaries))
    add("code", lambda each: format_bytes(each.code))
    add("all together", lambda each: format_bytes(each.total))
    add("collectives", lambda each: "\n".join(map(_describe_message, each.collectives)) or "none")
    add("not asked for", lambda each: "\n".join(each.unasked) or "nothing")
    add("products", lambda each: _describe_flops(each.flops))
    add(
        "XLA's bytes accessed, a loop as one turn",
        lambda each: (
            "" if each.xla_bytes_accessed is None else format_bytes(int(each.xla_bytes_accessed))
        ),
    )
    if chip is not None:
        add("at best", lambda each: _describe_seconds(least_seconds(each, chip)))
    console.print(table)
    for place in report.places:
        console.print(
            f"memory of each {place.name}: {format_bytes(place.needs)} of"
            f" {format_bytes(place.has)}; arrays {format_bytes(place.arrays)}, temporaries"
            f" {format_bytes(place.temporaries)}"
        )
    if report.at_best is not None:
        console.print(_describe_at_best(report.at_best))
    for note in report.notes:
        console.print(note)


def _describe_message(message: Message) -> str:
    from sebulba.devices.memory import format_bytes

    where = " in a loop" if message.is_in_loop else ""
    return f"{message.count} {message.kind}{where}, {format_bytes(message.bytes)}"


def _describe_flops(flops: Mapping[str, float]) -> str:
    if not flops:
        return "none"
    return ", ".join(f"{count / 1e9:.3g} GFLOP of {dtype}" for dtype, count in flops.items())


def _describe_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} µs"


def _describe_at_best(at_best: AtBest) -> str:
    acting = ""
    if at_best.act_cycle_s is not None:
        acting = f"an act cycle takes {_describe_seconds(at_best.act_cycle_s)} and "
    rates = ", ".join(f"{what} {rate:,.0f}" for what, rate in at_best.env_steps_per_second.items())
    text = (
        f"at best, {acting}a learner cycle {_describe_seconds(at_best.learner_cycle_s)};"
        f" env steps/s of a host: {rates}; {at_best.bottleneck} would be the bottleneck"
    )
    if at_best.actors_per_learner is not None:
        text += f"; {at_best.actors_per_learner:.2g} actor devices per learner device balance"
    return text


if __name__ == "__main__":
    run_command(main)
