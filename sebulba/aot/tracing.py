"""The programs of a run, traced with shapes instead of arrays, for devices that need not be here.

Only the environments are made. The programs are those that a ring calls: `make_programs`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.agent_check import num_updates_of
from sebulba.aot.program import Program, placed_shapes, trace_program
from sebulba.config import Config
from sebulba.devices.learner_devices import REPLICATED
from sebulba.devices.roles import Roles, assign_devices_of_hosts
from sebulba.devices.xla_workarounds import is_slow_in_a_loop
from sebulba.envs import make_environment
from sebulba.envs.base import FusedEnvironment
from sebulba.errors import ConfigError
from sebulba.ring import anakin, one_program
from sebulba.ring.act_cycle import init_carry
from sebulba.ring.act_functions import choose_fused
from sebulba.ring.fused_cycle import FusedFunctions
from sebulba.ring.learner import LearnerPrograms
from sebulba.ring.make import where_of
from sebulba.ring.programs import actor_devices_of, check_devices, make_programs
from sebulba.ring.records import ActCarry, Unroll
from sebulba.ring.stepped_cycle import StepFunctions
from sebulba.ring.update import LearnerState
from sebulba.types import EnvStepCount, Networks, PyTree, RunSpec, Trajectory

_ENV_STEPS = EnvStepCount(words=jax.ShapeDtypeStruct((2,), np.uint32))  # learned from


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedRun:
    """The programs of a run, and the numbers of a host that memory and speed depend on."""

    programs: tuple[Program, ...]
    arrays: dict[str, int]  # bytes on a device by its role, from the memory plan
    roles: Roles
    run_spec: RunSpec
    num_updates: int  # of a learner cycle
    num_seeds: int = 1  # of the program


def trace_programs(
    config: Config,
    hosts: Sequence[Sequence[jax.Device]],
    *,
    num_seeds: int = 1,
    on_warning: Callable[[str], None],
) -> TracedRun:
    """Trace the programs that a run compiles, after the first learner cycles.

    Args:
        config: the run's settings.
        hosts: the devices of each host.
        num_seeds: of several, the one program is mapped over them.
        on_warning: takes one line of text.

    Raises:
        ConfigError: the config does not fit the devices, the environment or the agent, or seeds
            cannot be one program.
    """
    if num_seeds > 1 and config.run.mode != "anakin":
        raise ConfigError(f"run.mode: expected anakin for several seeds, got {config.run.mode}")
    roles = assign_devices_of_hosts(config.devices, hosts, host=0, num_envs=config.actor.num_envs)
    check_devices(config, roles)
    if config.learner.mapping != "shard_map":
        raise ConfigError(
            f"learner.mapping: expected shard_map to compile, got {config.learner.mapping}"
        )
    learner_devices, device = roles.learner_devices, roles.actor[0]
    num_actors = len(actor_devices_of(config, roles))
    with contextlib.closing(
        make_environment(config.env, num_envs=config.actor.num_envs, seed=config.seed)
    ) as environment:
        made = make_programs(config, roles, environment.spec)
        agent, run_spec, functions = made.agent, made.run_spec, made.act[device]
        env_step = environment.reset()
        fused = choose_fused(
            environment,
            config.actor,
            where=where_of(config.env),
            env_step=env_step,
            device=device,
            on_warning=on_warning,
        )
        state = made.learner.state_shapes()
        networks = _on(device, jax.eval_shape(agent.actor_networks, state.networks))
        carry = jax.eval_shape(
            lambda networks, key, env_step, env_state: init_carry(
                agent,
                networks,
                env_step,
                key=key,
                global_actor_id=0,
                device=device,
                tracker=functions.tracker,
                env_state=env_state,
            ),
            networks,
            _on(device, jax.eval_shape(lambda: jax.random.key(0))),
            env_step,
            fused.state if fused is not None and fused.is_whole_state else None,
        )
        carry = _on(device, carry)
        fused_functions = None if fused is None else functions.fused.of(fused)
        if fused is None or fused_functions is None:
            programs, trajectory = trace_stepped(
                functions.stepped, networks, carry, length=run_spec.trajectory_length
            )
        else:
            programs, trajectory = trace_fused(
                fused_functions,
                networks,
                carry,
                _on(device, jax.eval_shape(lambda state: state, fused.state)),
                whole_episodes=config.actor.rollout == "episodes",
            )

        per_cycle = run_spec.num_streams * run_spec.trajectory_length * run_spec.num_hosts
        num_cycles = -(-run_spec.total_env_steps // (per_cycle * run_spec.trajectories_per_cycle))
        learner = _Learner(
            programs=made.learner,
            run_spec=run_spec,
            state=state,
            placed_state=agent.shard_actor_state(carry.actor_state, learner_devices),
            # A replay agent takes no updates at first.
            num_updates=num_updates_of(agent, num_cycles),
        )
        one_program: Program | None = None
        if _may_be_one_program(config, roles, fused, num_actors=num_actors):
            assert fused_functions is not None
            one_program = learner.trace_one_program(
                fused_functions,
                carry,
                num_actors=num_actors,
                policy_lag=config.policy_lag or 0,
                max_cycles=num_cycles,
                num_seeds=num_seeds,
            )
            if config.run.mode == "auto" and is_slow_in_a_loop(
                one_program.traced.jaxpr, one_program.platform
            ):
                one_program = None
        if one_program is not None:
            programs = [one_program]
        else:
            programs.append(learner.trace_update(_on(device, trajectory), config.learner.cycle))

    plan = made.memory_plan
    arrays = {
        "actor": sum(plan.actor_device.values()),
        "learner": sum(plan.learner_device.values()),
    }
    if set(roles.actor) & set(roles.learner):
        arrays = dict.fromkeys(arrays, sum(arrays.values()))
    arrays = {role: num_seeds * size for role, size in arrays.items()}
    return TracedRun(
        programs=tuple(programs),
        arrays=arrays,
        roles=roles,
        run_spec=run_spec,
        num_updates=learner.num_updates,
        num_seeds=num_seeds,
    )


def _may_be_one_program(
    config: Config, roles: Roles, fused: FusedEnvironment | None, *, num_actors: int
) -> bool:
    """Return whether `run.mode` allows acting and learning in one program.

    Raises:
        ConfigError: it asks for one, which cannot be.
    """
    reason = anakin.reason_against_one_program(
        policy_lag=config.policy_lag,
        has_whole_episodes=config.actor.rollout == "episodes",
        may_restart=config.actor.on_env_error == "restart",
        mapping=config.learner.mapping,
        num_hosts=roles.learner_devices.num_hosts,
        has_jax_environments=fused is not None and fused.is_whole_state,
        trajectories_per_cycle=config.learner.trajectories_per_cycle,
        actor_devices=[roles.actor[i % len(roles.actor)] for i in range(num_actors)],
        learner_devices=roles.learner,
    )
    if config.run.mode == "anakin" and reason is not None:
        raise ConfigError(f"{reason}. Or set run.mode auto")
    return config.run.mode in ("anakin", "auto") and reason is None


def trace_stepped(
    functions: StepFunctions, networks: Networks, carry: ActCarry, *, length: int
) -> tuple[list[Program], Trajectory]:
    """Return the programs of a stepped act cycle, and the shapes of its trajectory."""
    trace = functools.partial(trace_program, role="actor", devices=[functions.device])
    begun = jax.eval_shape(functions.begin, networks, carry.actor_state, carry.env_step)
    actor_state, buffer = _on(functions.device, begun)
    step = trace(
        "act step",
        functions.step,
        (networks, actor_state, carry.env_step, buffer),
        calls=length,
        in_place=buffer,
        carried=lambda results: ((actor_state, buffer), results[1:]),
    )
    finish = trace(
        "end of act cycle",
        functions.finish,
        (buffer, carry.statistics, carry.env_step),
        in_place=buffer,
        carried=lambda results: (carry.statistics, results[0]),
    )
    return [step, finish], finish.traced.out_info[1]


def trace_fused(
    functions: FusedFunctions,
    networks: Networks,
    carry: ActCarry,
    env_state: PyTree,
    *,
    whole_episodes: bool,
) -> tuple[list[Program], Trajectory]:
    """Return the programs of a fused act cycle, and the shapes of its trajectory."""
    trace = functools.partial(trace_program, role="actor", devices=[functions.device])
    # The environment's state is an argument of its own.
    carry = dataclasses.replace(carry, env_state=None)
    if not whole_episodes:
        cycle = trace(
            "act cycle",
            functions.cycle,
            (networks, carry, env_state),
            carried=lambda results: ((env_state, carry), (results[0], results[1].carry)),
        )
        return [cycle], cycle.traced.out_info[1].trajectory
    episodes = trace("act cycle", functions.act_episodes, (networks, carry, env_state))
    buffer = _on(functions.device, episodes.traced.out_info[2])
    finish = trace(
        "end of act cycle",
        functions.finish,
        (buffer, carry.actor_state, carry.statistics, carry.env_step),
        in_place=buffer,
        carried=lambda results: (carry, results.carry),
    )
    return [episodes, finish], finish.traced.out_info.trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Learner:
    """Traces the programs of the learner devices."""

    programs: LearnerPrograms
    run_spec: RunSpec
    state: LearnerState  # shapes, as all that follow
    placed_state: PyTree  # an actor state on the learner devices
    num_updates: int  # of a learner cycle

    def trace_update(self, trajectory: Trajectory, cycle: str) -> Program:
        """Return the program of a learner cycle's updates, or of one if `cycle` says so."""
        devices = self.programs.learner_devices
        unroll = Unroll(
            initial_state=self.placed_state,
            final_state=self.placed_state,
            trajectory=devices.split(trajectory, axis=1),
            actor_id=devices.replicate(jax.ShapeDtypeStruct((), np.int32)),
        )

        def trace(num_updates: int, *, calls: int = 1) -> Program:
            return self._trace(
                "update" if num_updates == 1 else f"{num_updates} updates",
                self.programs.update(num_updates, has_unrolls=True),
                (self.state, (unroll,) * self.run_spec.trajectories_per_cycle, _ENV_STEPS),
                calls=calls,
                carried=lambda results: (self.state, results[0]),
                in_place=self.state.experience,
            )

        program, is_by_update = trace(self.num_updates), cycle == "update_by_update"
        if cycle == "auto":
            is_by_update = is_slow_in_a_loop(program.traced.jaxpr, program.platform)
        if self.num_updates > 1 and is_by_update:
            return trace(1, calls=self.num_updates)
        return program

    def trace_one_program(
        self,
        functions: FusedFunctions,
        carry: ActCarry,
        *,
        num_actors: int,
        policy_lag: int,
        max_cycles: int,
        num_seeds: int,
    ) -> Program:
        """Return the program of acting and learning, for one learner cycle of all seeds."""
        agent, devices = self.programs.agent, self.programs.learner_devices
        carries = (carry,) * num_actors
        shardings = one_program.carry_shardings(carries, devices, run_spec=self.run_spec)
        networks = jax.eval_shape(agent.actor_networks, self.state.networks)
        older = (placed_shapes(networks, devices.sharding(REPLICATED)),) * policy_lag
        begin: Any = (
            self.state,
            older,
            jax.tree.map(placed_shapes, carries, shardings),
            _ENV_STEPS,
        )
        if num_seeds > 1:
            begin = jax.tree.map(functools.partial(_with_seeds, num_seeds=num_seeds), begin)
        program = one_program.program_of_cycles(
            begin,
            self.programs.device_update,
            devices,
            act_cycles=[functions.act_within] * num_actors,
            placed_states=[self.placed_state] * num_actors,
            num_rounds=self.run_spec.trajectories_per_cycle // num_actors,
            num_updates=self.num_updates,
            max_cycles=max_cycles,
            shardings=shardings,
            is_mapped=num_seeds > 1,
        )
        of_seeds = f" of {num_seeds} seeds" * (num_seeds > 1)
        return self._trace(
            f"one program, a learner cycle{of_seeds}",
            program.call,
            (*begin, jax.ShapeDtypeStruct((), np.int32)),
            carried=lambda results: (begin[:3], results[:3]),
            in_place=begin[0].experience,
        )

    def _trace(
        self, name: str, function: Any, arguments: Any, *, in_place: PyTree, **options: Any
    ) -> Program:
        return trace_program(
            name,
            function,
            arguments,
            role="learner",
            devices=list(self.programs.learner_devices.mesh.devices),
            in_place=in_place,
            **options,
        )


def _with_seeds(leaf: Any, *, num_seeds: int) -> jax.ShapeDtypeStruct:
    """Return the shape of `num_seeds` arrays, as a program that is mapped over seeds takes them."""
    sharding = leaf.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = one_program.with_seeds(sharding)
    return jax.ShapeDtypeStruct(
        (num_seeds, *leaf.shape), leaf.dtype, sharding=sharding, weak_type=leaf.weak_type
    )


def _on(device: jax.Device, tree: PyTree) -> PyTree:
    """Return shapes on a device."""
    return placed_shapes(tree, jax.sharding.SingleDeviceSharding(device))
