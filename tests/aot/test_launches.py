"""Kernels and synchronisations, counted in the text of compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from sebulba import compile as compiling
from sebulba.aot.launches import Launches, count_launches
from sebulba.aot.program import CompiledProgram
from sebulba.aot.report import LaunchesPer, launches_of
from sebulba.aot.tracing import trace_programs
from tests.run.test_modes import make_config

# As XLA writes it for an H100: a cycle in a loop of unknown length, in it a loop of 128 rows and
# one of 16 updates, each of which decides on a branch.
CYCLES = """\
HloModule jit_program, is_scheduled=true

%fused_add (param_0: s32[]) -> s32[] {
  %param_0 = s32[] parameter(0)
  %constant.1 = s32[] constant(1)
  ROOT %add.1 = s32[] add(%param_0, %constant.1)
}

%act.1 (p: (s32[], f32[16,4])) -> (s32[], f32[16,4]) {
  %p = (s32[], f32[16,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[16,4]{1,0} get-tuple-element(%p), index=1
  %copy.1 = f32[16,4]{1,0} copy(%x)
  %dot = (f32[16,4]{1,0}, s8[64]{0}) custom-call(%copy.1), custom_call_target="__cublas$gemm", \
metadata={op_name="jit(program)/while/body/while/body/env_step/dot"}
  %next = s32[] fusion(%i), kind=kLoop, calls=%fused_add, \
metadata={op_name="jit(program)/while/body/while/body/add"}
  %y = f32[16,4]{1,0} get-tuple-element(%dot), index=0
  ROOT %t = (s32[], f32[16,4]{1,0}) tuple(%next, %y)
}

%shuffled (p: s32[8]) -> s32[8] {
  %p = s32[8]{0} parameter(0)
  %bits = s32[8]{0} fusion(%p), kind=kLoop, calls=%fused_add
  ROOT %sorted = s32[8]{0} sort(%bits), dimensions={0}, to_apply=%less
}

%same (p: s32[8]) -> s32[8] {
  ROOT %p = s32[8]{0} parameter(0)
}

%update.1 (p: (s32[], s32[8])) -> (s32[], s32[8]) {
  %p = (s32[], /*index=1*/s32[8]{0:T(8)}) parameter(0)
  %is_new = pred[] fusion(%p), kind=kLoop, calls=%fused_add, metadata={op_name="a/update/ne"}
  %order = s32[8]{0} conditional(%is_new, %o, %o), true_computation=%shuffled, \
false_computation=%same, metadata={op_name="a/update/cond"}
  %grads-start = ((s32[8]{0}), s32[8]{0}) all-reduce-start(%order), to_apply=%add
  %grads-done = s32[8]{0} all-reduce-done(%grads-start)
  ROOT %t = (s32[], s32[8]{0}) tuple(%is_new, %grads-done)
}

%cycle.1 (p: (s32[])) -> (s32[]) {
  %p = (s32[]) parameter(0)
  %a = (s32[], f32[16,4]{1,0}) while(%p), condition=%c, body=%act.1, \
backend_config={"known_trip_count":{"n":"128"},"known_init_step":{"init":"0","step":"1"}}
  %u = (s32[], s32[8]{0}) while(%p), condition=%c, body=%update.1, \
backend_config={"known_trip_count":{"n":"16"}}
  %zero = s32[] fusion(%a), kind=kLoop, calls=%fused_add
  ROOT %t = (s32[]) tuple(%zero)
}

ENTRY %main (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %w = (s32[]) while(%p), condition=%more, body=%cycle.1
  ROOT %r = s32[] call(%w), to_apply=%last
}

%last (p: s32[]) -> s32[] {
  ROOT %copy.2 = s32[] copy(%p)
}
"""


def test_kernels_count_as_often_as_their_loops_turn_and_predicates_of_the_host_apart():
    in_rows, in_updates = 128 * 3, 16 * (1 + 2 + 1)
    assert count_launches(CYCLES) == Launches(
        kernels=in_rows + in_updates + 1 + 1,
        # The counter of the loop has no scope, and the copy, which has no name, that of the loop.
        in_env_steps=128 * 2,
        in_updates=in_updates,
        synchronisations=1 + 16,
    )


def test_a_compiled_program_launches_what_its_loop_repeats():
    def program(x, w):
        return jax.lax.fori_loop(0, 7, lambda _, x: jnp.sin(x @ w), x)

    text = jax.jit(program).lower(jnp.ones((4, 4)), jnp.ones((4, 4))).compile().as_text()
    launches = count_launches(text)
    assert launches.kernels >= 2 * 7 and launches.synchronisations == 0


def test_a_learner_cycle_launches_the_act_cycles_of_its_trajectories():
    config = make_config(cycle="stepped")
    run = trace_programs(config, [jax.devices()[:1]], on_warning=pytest.fail)
    counts = {"act step": (7, 6, 0), "end of act cycle": (3, 0, 0), "update": (20, 0, 18)}
    programs = [
        CompiledProgram(
            name=each.name,
            role=each.role,
            calls=each.calls,
            launches=Launches(kernels=k, in_env_steps=e, in_updates=u, synchronisations=1),
        )
        for each in run.programs
        for k, e, u in [counts[each.name]]
    ]
    length, num_trajectories = run.run_spec.trajectory_length, run.run_spec.trajectories_per_cycle
    per = launches_of(run, programs)
    assert per == LaunchesPer(
        learner_cycle=num_trajectories * (7 * length + 3) + 20,
        env_step=6.0,
        update=18.0,
        synchronisations=num_trajectories * (length + 1) + 1,
    )
    line = compiling.describe_launches(per, "cuda")
    assert "6 for each env step of an actor, 18 for each update; the host waits" in line
    assert "waits" not in compiling.describe_launches(per, "tpu")
