"""Compile a config for devices that are not here: `sebulba compile CONFIG --for v5e:2x2`.

Nothing runs on the devices: the programs are traced with shapes, compiled by the plugin of the
platform, and read. Imports no jax before that.
"""

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sebulba.config import Config, flags
from sebulba.errors import ConfigError, escaped, refuse
from sebulba.process import EXIT_CONFIG, EXIT_DONE, EXIT_FAILED, program, run_command
from sebulba.processes.children import PARENT_VARIABLE, end_with_parent
from sebulba.processes.command_line import take_seeds

if TYPE_CHECKING:
    from sebulba.aot.program import CompiledProgram, Message
    from sebulba.aot.report import AtBest, LaunchesPer, Report

_PROG = program("compile")
_DESCRIPTION = """\
Compiles the programs of a config for accelerators that this machine does not have, and prints
whether they compile, their memory, their messages between devices, the kernels that they launch,
and the least time that they take at the published peaks of the chips. Nothing is trained.

--for TOPOLOGY               v5e:2x2, v5e:4x8, v6e:2x2, h100:4, h200:8, b200:8, cpu:8 and others of
                             these chips; v5e:2x2:2 has two slices, and h100:8:2 two hosts.
                             TPUs need 'sebulba[aot-tpu]', GPUs 'sebulba[aot-cuda]'
--seeds 0..7                 these seeds as one program (run.seeds: mapped), with run.mode anakin
--env-steps-per-second RATE  what the environments of a host can do at most, for the least times
--json                       print the same as JSON

Exits with 0 if the programs compile and fit into memory, with 2 if they do not fit or the command
line is wrong, and with 3 if a program does not compile."""
# What a program starts on a device, by its platform.
_KERNELS = {"cuda": "kernels", "tpu": "fusions", "cpu": "operations"}
_PLAIN_WIDTH_COLUMNS = 160  # of output to a file or a pipe


def main() -> None:
    """Parse the command line, compile, and exit with 0, 2 or 3."""
    parser = argparse.ArgumentParser(prog=f"{_PROG} CONFIG", add_help=False, allow_abbrev=False)
    parser.add_argument("--for", dest="topology")
    parser.add_argument("--env-steps-per-second", type=float)
    parser.add_argument("--json", action="store_true")
    options, argv = parser.parse_known_args()
    try:
        seeds, argv = take_seeds(argv)
    except ConfigError as error:
        sys.exit(refuse(error))
    config = flags.parse(argv, _PROG, _DESCRIPTION)
    if not end_with_parent() and not str(options.topology).startswith("cpu:"):
        sys.exit(_run_in_a_child(sys.argv[1:]))
    sys.exit(
        compile_config(
            config,
            options.topology,
            env_steps_per_second=options.env_steps_per_second,
            as_json=options.json,
            num_seeds=1 if seeds is None else len(seeds),
        )
    )


def _run_in_a_child(argv: Sequence[str]) -> int:
    """Run this command in a process of its own, which a plugin of JAX may abort.

    What a plugin writes to stderr before the error of the command is left out: libtpu's warnings
    about accelerators that are not here.
    """
    done = subprocess.run(
        [sys.executable, "-m", "sebulba.compile", *argv],
        env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    code = done.returncode
    if code < 0:
        fatal = re.search(r"^F\d+ .*?\] (.*)", done.stderr, re.MULTILINE)
        reason = fatal[1] if fatal else signal.strsignal(-code)
        print(escaped(f"sebulba: --for: the compiler ended its process: {reason}"), file=sys.stderr)
        return EXIT_CONFIG
    is_known = code in (EXIT_DONE, EXIT_CONFIG, EXIT_FAILED)
    shown = re.search(r"^sebulba: .*", done.stderr, re.MULTILINE | re.DOTALL)
    sys.stderr.write((shown[0] if shown else "") if is_known else done.stderr)
    return code


def compile_config(
    config: Config,
    topology_name: str | None,
    *,
    env_steps_per_second: float | None = None,
    as_json: bool = False,
    num_seeds: int = 1,
) -> int:
    """Compile a config's programs for a topology, print the report, and return the exit code.

    Args:
        config: the run's settings.
        topology_name: such as `v5e:2x2`.
        env_steps_per_second: of all environments of a host at most; None: not known.
        as_json: whether to print JSON instead of a table.
        num_seeds: of several, the one program is mapped over them.
    """
    from sebulba.aot.chips import Topology

    try:
        if topology_name is None:
            raise ConfigError("--for: expected the devices to compile for, such as v5e:2x2")
        if env_steps_per_second is not None and not env_steps_per_second > 0:
            raise ConfigError(
                f"--env-steps-per-second: expected more than 0, got {env_steps_per_second}"
            )
        topology = Topology.parse(topology_name)
        topology.prepare()
        # Importing jax takes a second, so command line errors and --help come first.
        import jax

        from sebulba.agent_check import AgentError
        from sebulba.aot.report import compile_for
        from sebulba.envs.base import EnvironmentFault

        try:
            report = compile_for(
                config,
                topology,
                env_steps_per_second=env_steps_per_second,
                num_seeds=num_seeds,
            )
        except (AgentError, EnvironmentFault) as error:
            print(escaped(f"sebulba: {type(error).__name__}: {error}"), file=sys.stderr)
            return EXIT_FAILED
        except jax.errors.JaxRuntimeError as error:
            raise ConfigError(f"--for {topology.name}: {str(error).splitlines()[0]}") from error
    except ConfigError as error:
        return refuse(error)
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        print_table(report)
    for problem, code in ((report.does_not_fit, EXIT_CONFIG), (report.fails, EXIT_FAILED)):
        if problem is not None:
            print(escaped(f"sebulba: {problem}"), file=sys.stderr)
            return code
    return EXIT_DONE


def print_table(report: "Report") -> None:
    """Print a column for each program, and lines about memory and the least times."""
    import rich.box
    import rich.console
    import rich.table

    from sebulba.aot.chips import CHIPS
    from sebulba.aot.report import least_seconds
    from sebulba.devices.memory import format_bytes

    chip = CHIPS.get(report.topology.partition(":")[0])
    platform = "cpu" if chip is None else chip.platform
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

    def add(name: str, describe: "Callable[[CompiledProgram], str]") -> None:
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
    add(_KERNELS[platform], lambda each: f"{each.launches.kernels:,}" if each.launches else "")
    if platform == "cuda":
        add(
            "synchronisations with the host",
            lambda each: f"{each.launches.synchronisations:,}" if each.launches else "",
        )
    add("not asked for", lambda each: "\n".join(each.unasked) or "nothing")
    add("products", lambda each: _describe_flops(each.flops))
    add(
        "XLA's bytes accessed, a loop as one turn",
        lambda each: (
            "" if each.xla_bytes_accessed is None else format_bytes(int(each.xla_bytes_accessed))
        ),
    )
    at_best = report.at_best
    if chip is not None and at_best is not None:
        add(
            "at best",
            lambda each: (
                ""
                if each.role == "actor" and at_best.act_cycle_s is None
                else _describe_seconds(least_seconds(each, chip))
            ),
        )
    console.print(table)
    for place in report.places:
        console.print(
            f"memory of each {place.name}: {format_bytes(place.needs)} of"
            f" {format_bytes(place.has)}; arrays {format_bytes(place.arrays)}, temporaries"
            f" {format_bytes(place.temporaries)}"
        )
    if report.launches is not None:
        console.print(describe_launches(report.launches, platform))
    if at_best is not None:
        console.print(_describe_at_best(at_best))
    for note in report.notes:
        console.print(note)


def describe_launches(launches: "LaunchesPer", platform: str) -> str:
    """Return what a learner cycle launches, as a line."""
    text = (
        f"{_KERNELS[platform]}: {launches.learner_cycle:,} a learner cycle,"
        f" {launches.env_step:.3g} for each env step of an actor, {launches.update:.3g} for each"
        " update"
    )
    if platform == "cuda":
        text += f"; the host waits {launches.synchronisations:,} times a learner cycle"
    return text


def _describe_message(message: "Message") -> str:
    from sebulba.devices.memory import format_bytes

    where = " in a loop" if message.is_in_loop else ""
    where += f" between {message.between}" if message.between != "devices" else ""
    return f"{message.count} {message.kind}{where}, {format_bytes(message.bytes)}"


def _describe_flops(flops: Mapping[str, float]) -> str:
    if not flops:
        return "none"
    return ", ".join(f"{count / 1e9:.3g} GFLOP of {dtype}" for dtype, count in flops.items())


def _describe_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _describe_at_best(at_best: "AtBest") -> str:
    acting = ""
    if at_best.act_cycle_s is not None:
        acting = f"an act cycle takes {_describe_seconds(at_best.act_cycle_s)} and "
    rates = ", ".join(f"{what} {rate:.3g}" for what, rate in at_best.env_steps_per_second.items())
    text = (
        f"at best, {acting}a learner cycle {_describe_seconds(at_best.learner_cycle_s)};"
        f" env steps/s of a host: {rates}; {at_best.bottleneck} would be the bottleneck"
    )
    if at_best.actors_per_learner is not None:
        text += f"; {at_best.actors_per_learner:.2g} actor devices per learner device balance"
    return text


if __name__ == "__main__":
    run_command(main)
