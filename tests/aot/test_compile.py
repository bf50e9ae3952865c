"""The command `sebulba compile`: programs for devices that are not here."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from sebulba import compile as compiling
from sebulba.aot import chips
from sebulba.aot import report as reporting
from sebulba.aot.chips import CHIPS, Topology
from sebulba.aot.program import (
    Message,
    _unasked,
    compile_program,
    product_flops,
    read_collectives,
    trace_program,
)
from sebulba.aot.tracing import trace_programs
from sebulba.config import Config
from sebulba.errors import ConfigError
from tests.rings import act, close, make_ring, trace_update
from tests.run.test_modes import make_config

LOOP = """\
HloModule jit_f, input_output_alias={ {0}: (0, {}, may-alias) }
%body.1 (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %psum.2 = (f32[8,4]{1,0:T(8,128)}, bf16[2]{0}) all-reduce(%a, %b), to_apply=%add
}
%cond.1 (p: (s32[], f32[8,4])) -> pred[] {
}
ENTRY %main (p: f32[8,4]) -> f32[8,4] {
  %w = (s32[], f32[8,4]{1,0}) while(%t), condition=%cond.1, body=%body.1
  %g = (f32[2], f32[8]) all-gather-start(%x), dimensions={0}
}
"""


def test_collectives_have_their_bytes_and_whether_a_loop_repeats_them():
    assert read_collectives(LOOP) == (
        Message(kind="all-gather", count=1, bytes=32, is_in_loop=False),
        Message(kind="all-reduce", count=1, bytes=8 * 4 * 4 + 2 * 2, is_in_loop=True),
    )


@pytest.mark.parametrize(
    ("groups", "between"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", "devices"),
        ("{{0,2},{1,3},{4,6},{5,7}}", "hosts"),
        ("{{0,1,2,3,4,5,6,7}}", "slices"),
        ("{}", "slices"),
        ("[4,2]<=[8]", "devices"),
        ("[2,4]<=[8]", "hosts"),
        ("[4,2]<=[2,4]T(1,0)", "slices"),
    ],
)
def test_a_message_is_as_far_as_its_groups(groups, between):
    # Two slices of two hosts of two devices.
    hlo = f"  %a = f32[2] all-reduce(%x), replica_groups={groups}, to_apply=%add"
    (message,) = read_collectives(hlo, hosts=[0, 0, 1, 1, 2, 2, 3, 3], hosts_per_slice=2)
    assert message.between == between


def test_a_reduction_between_slices_is_a_message_and_no_call_of_the_host():
    hlo = """\
  %g = f32[4,2] all-gather(%r), replica_groups={{0,1}}, dimensions={0}
  %send = (f32[4,2]{1,0:T(8)}, u32[], token[]) send(%f), is_host_transfer=true, x="xla_megascale"
  %done = token[] send-done(%send), is_host_transfer=true, x="xla_megascale"
"""
    gather, send = read_collectives(hlo, hosts=[0, 0, 1, 1], hosts_per_slice=1)
    assert send == Message(kind="send", count=1, bytes=32, is_in_loop=False, between="slices")
    assert list(_unasked(hlo, (gather, send))) == []
    assert list(_unasked(hlo.replace("xla_megascale", ""), (gather,))) == [
        "1 all-gather of 32 B",
        "2 calls of the host (is_host_transfer)",
    ]


def test_several_hosts_and_slices_follow_the_shape():
    def of(name):
        topology = Topology.parse(name)
        return topology.shape, topology.count

    assert [of("v5e:2x2"), of("v5e:4x8:2"), of("h100:8:12"), of("cpu:8")] == [
        ("2x2", 1),
        ("4x8", 2),
        ("8", 12),
        ("8", 1),
    ]


def test_products_in_a_loop_count_once_for_each_turn():
    def program(x, w):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, length=5)[0]

    jaxpr = jax.make_jaxpr(program)(jnp.zeros((2, 3)), jnp.zeros((3, 3)))
    assert product_flops(jaxpr, "cpu") == {"float32": 5 * 2 * 2 * 3 * 3}


def test_zeros_of_a_strided_gradient_are_no_products():
    def convolve(kernel, x):
        return jax.lax.conv(x, kernel, window_strides=(2, 2), padding="VALID").sum()

    x, kernel = jnp.zeros((1, 3, 8, 8)), jnp.zeros((5, 3, 2, 2))
    forward = 2 * (5 * 4 * 4) * (3 * 2 * 2)
    assert product_flops(jax.make_jaxpr(convolve)(kernel, x), "cpu") == {"float32": forward}
    gradient = jax.make_jaxpr(jax.grad(convolve, argnums=(0, 1)))(kernel, x)
    assert product_flops(gradient, "cpu")["float32"] == pytest.approx(3 * forward, rel=0.3)


@pytest.fixture(scope="module")
def stepped():
    """Returns a config of which one device acts step by step, and two of each host learn."""
    return make_config(actor_devices=(0,), learner_devices=(0, 1), cycle="stepped")


@pytest.fixture(scope="module")
def report(stepped):
    """Returns the report of a config on CPU devices, as if they were TPUs."""
    topology = Topology(name="v5e:2x1", platform="cpu", shape="2", chip=CHIPS["v5e"])
    return reporting.compile_for(stepped, topology, env_steps_per_second=7.0)


def test_every_program_of_a_run_compiles_and_asks_for_nothing_more(report):
    assert [each.name for each in report.programs] == ["act step", "end of act cycle", "update"]
    assert [each.calls for each in report.programs] == [5, 1, 1]
    assert (report.fails, report.does_not_fit) == (None, None)
    for each in report.programs:
        assert each.unasked == ()
        sizes = each.arguments + each.results - each.reused + each.temporaries + each.code
        assert each.total == sizes > 0
    *acting, update = report.programs
    assert [each.collectives for each in acting] == [(), ()]
    assert {message.kind for message in update.collectives} == {"all-reduce"}


def test_least_times_follow_from_the_published_peaks(report):
    step, end, update = report.programs
    chip, at_best = CHIPS["v5e"], report.at_best
    assert reporting.least_seconds(update, chip) == max(
        update.flops["float32"] / chip.float32, update.least_bytes / chip.bandwidth
    )
    act_cycle_s = 5 * reporting.least_seconds(step, chip) + reporting.least_seconds(end, chip)
    assert at_best.act_cycle_s == pytest.approx(act_cycle_s)
    learning = 4 * 5 / reporting.least_seconds(update, chip)
    assert at_best.env_steps_per_second["learning"] == pytest.approx(learning)
    assert at_best.actors_per_learner == pytest.approx(act_cycle_s / at_best.learner_cycle_s / 2)
    assert at_best.bottleneck == "environments"


def test_programs_are_traced_with_the_shapes_of_a_run(stepped):
    ring = make_ring(stepped)
    expected = trace_update(ring, act(ring))
    close(ring)
    run = trace_programs(stepped, [jax.devices()[:2]], on_warning=pytest.fail)
    assert [str(each) for each in run.programs[-1].traced.jaxpr.in_avals] == [
        str(each) for each in expected.jaxpr.in_avals
    ]


def test_several_hosts_share_one_update(stepped):
    devices = jax.devices()
    run = trace_programs(stepped, [devices[:2], devices[2:4]], on_warning=pytest.fail)
    *_, update = run.programs
    assert (run.run_spec.num_hosts, len(update.hosts)) == (2, 4)
    _, (unroll,), _ = update.arguments
    assert unroll.trajectory.action.shape == (5, 2 * 4)
    assert unroll.trajectory.action.sharding.shard_shape((5, 2 * 4)) == (5, 2)


def test_one_program_acts_and_learns():
    config = make_config(lag=0, threads=1)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, mode="anakin"))
    report = reporting.compile_for(config, Topology.parse("cpu:1"))
    (each,) = report.programs
    assert each.name == "one program, a learner cycle"
    assert (each.problem, each.unasked, report.at_best) == (None, (), None)


def test_seeds_as_one_program_need_the_memory_of_each():
    config = make_config(lag=0, threads=1)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, mode="anakin"))
    one, several = (
        reporting.compile_for(config, Topology.parse("cpu:1"), num_seeds=number)
        for number in (2, 8)
    )
    assert several.programs[0].name == "one program, a learner cycle of 8 seeds"
    assert several.programs[0].unasked == ()
    assert several.places[0].arrays == 4 * one.places[0].arrays
    with pytest.raises(ConfigError, match=r"run.mode: expected anakin for several seeds, got thr"):
        reporting.compile_for(make_config(lag=0), Topology.parse("cpu:1"), num_seeds=2)


def test_what_does_not_fit_ends_with_2_and_its_bytes(report, monkeypatch, capsys):
    place = dataclasses.replace(report.places[1], needs=3 << 30, has=2 << 30)
    full = dataclasses.replace(report, places=(place,))
    monkeypatch.setattr(reporting, "compile_for", lambda *args, **options: full)
    monkeypatch.setattr(Topology, "prepare", lambda self: None)
    assert compiling.compile_config(Config(), "v5e:2x2", as_json=True) == 2
    out, err = capsys.readouterr()
    assert err.startswith("sebulba: memory: the run needs 3.0 GiB on each learner device of v5e")
    assert "which has 2.0 GiB" in err and err.count("\n") == 1
    assert [each["name"] for each in json.loads(out)["programs"]][-1] == "update"


@pytest.mark.parametrize(
    "name", [None, "v5e", "v5e:8", "a100:8", "h100:9", "cpu:0", "cpu:", "cpu:2:2", "v5e:2x2:"]
)
def test_a_topology_that_is_none_ends_with_2_and_one_line(name, capsys):
    assert compiling.compile_config(Config(), name) == 2
    err = capsys.readouterr().err
    assert err.startswith("sebulba: --for") and err.count("\n") == 1


@pytest.mark.parametrize(("name", "extra"), [("v5e:2x2", "aot-tpu"), ("h100:4", "aot-cuda")])
def test_a_missing_plugin_is_named_with_its_extra(name, extra, monkeypatch, capsys):
    monkeypatch.setattr(chips, "_is_installed", lambda module: False)
    for variable in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"):
        monkeypatch.setenv(variable, os.environ.get(variable, "1"))
    assert compiling.compile_config(Config(), name) == 2
    assert f"pip install 'sebulba[{extra}]'" in capsys.readouterr().err
    assert f"\n{extra} = " in (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text()


@pytest.fixture
def command(monkeypatch, capsys):
    """Returns what the command prints and its exit code, for a child that says and ends so."""

    run_child = subprocess.run

    def run(script):
        python = [sys.executable, "-c", script]
        monkeypatch.setattr(subprocess, "run", lambda argv, **options: run_child(python, **options))
        monkeypatch.setattr(sys, "argv", ["compile", "impala_bandit", "--for", "v5e:2x2"])
        with pytest.raises(SystemExit) as ended:
            compiling.main()
        return ended.value.code, capsys.readouterr().err

    return run


def test_a_plugin_that_aborts_ends_with_2_and_one_line(command):
    log = "F1125 08:47:13.121604   18482 target.cc:1736] Check failed: 64 vs. 16"
    code, err = command(f"import os; os.write(2, b'E0 noise\\n{log}\\n'); os.abort()")
    assert (code, err) == (
        2,
        "sebulba: --for: the compiler ended its process: Check failed: 64 vs. 16\n",
    )
    code, err = command("import os; os.abort()")
    assert (code, err) == (2, "sebulba: --for: the compiler ended its process: Aborted\n")


def test_only_the_error_of_the_command_is_shown_or_else_everything(command):
    script = "import sys; sys.stderr.write('E0 noise\\nsebulba: no\\nmore\\n'); sys.exit({})"
    assert command(script.format(3)) == (3, "sebulba: no\nmore\n")
    assert command(script.format(1)) == (1, "E0 noise\nsebulba: no\nmore\n")


def test_an_error_of_a_compiler_is_one_line_of_bounded_length():
    def lower():
        raise jax.errors.JaxRuntimeError("E1001: no memory:\nfor %copy\n" + "more " * 200)

    devices = jax.devices()
    program = trace_program("update", jax.jit(jnp.sin), (1.0,), role="learner", devices=devices)
    program = dataclasses.replace(program, traced=types.SimpleNamespace(lower=lower))
    problem = compile_program(program).problem
    assert problem.startswith("E1001: no memory: for %copy more") and len(problem) <= 400


def test_an_error_of_a_plugin_ends_with_2_and_one_line(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise jax.errors.JaxRuntimeError("INTERNAL: no kernel\nmore")

    monkeypatch.setattr(reporting, "compile_for", fail)
    monkeypatch.setattr(Topology, "prepare", lambda self: None)
    assert compiling.compile_config(Config(), "v5e:2x2") == 2
    assert capsys.readouterr().err == "sebulba: --for v5e:2x2: INTERNAL: no kernel\n"


def test_the_table_says_at_best_and_never_more(report, capsys):
    compiling.print_table(report)
    out = capsys.readouterr().out
    assert "update" in out and "at best" in out and "will" not in out
