"""Rerun a part of a run to look at it: `python -m sebulba.rerun RUN_DIR [--to-cycle N ...]`.

The run directory is not changed. Imports no jax before it reruns.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sebulba.errors import ConfigError, describe_error, escaped
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NON_FINITE,
    program,
    run_command,
)
from sebulba.processes.command_line import ENV_FLAG, check_writable, take_env_flags

if TYPE_CHECKING:
    from sebulba.agent import Agent
    from sebulba.config import Config
    from sebulba.devices.learner_devices import LearnerDevices
    from sebulba.ring.records import Delivery
    from sebulba.ring.ring import Ring
    from sebulba.ring.update import LearnerState
    from sebulba.types import PyTree

_PIPE_WIDTH = 120
_DESCRIPTION = """\
Without --to-cycle: reruns the non-finite update that ended a run with exit code 6, from the
checkpoint before it, and lists the inputs, metrics and gradients with NaN or infinite elements.

With --to-cycle N: repeats a run that has a learner.policy_lag up to learner cycle N, in one thread,
from the nearest checkpoint or from the start, and shows the batch that the cycle takes.

--env.options.NAME VALUE replaces an argument of the run's environment."""


def main() -> None:
    """Parse the command line, rerun, and exit with 0, or 6 if the update is not finite."""
    parser = argparse.ArgumentParser(
        prog=program("rerun"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=pathlib.Path, metavar="RUN_DIR", help="run to repeat")
    parser.add_argument("--to-cycle", type=_cycle, metavar="N", help="learner cycle, from 0")
    parser.add_argument(
        "--dump", type=pathlib.Path, metavar="FILE", help="with --to-cycle: write the batch (.npz)"
    )
    parser.add_argument(
        "--debug", action="store_true", help="with --to-cycle: stop in Python's debugger there"
    )
    try:
        env, rest = take_env_flags(sys.argv[1:])
    except ConfigError as error:
        parser.error(str(error))
    options = parser.parse_args(rest)
    if options.to_cycle is None and (options.dump is not None or options.debug):
        parser.error("--dump and --debug: expected --to-cycle N")
    sys.exit(
        rerun(
            options.run_dir,
            to_cycle=options.to_cycle,
            dump=options.dump,
            debug=options.debug,
            env=env,
        )
    )


def _cycle(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a learner cycle from 0, got {text}")
    return int(text)


def rerun(
    run_dir: pathlib.Path,
    *,
    to_cycle: int | None = None,
    dump: pathlib.Path | None = None,
    debug: bool = False,
    env: Sequence[str] = (),
) -> int:
    """Rerun a part of a run, print what is in it, and return the exit code.

    Args:
        run_dir: the run's directory, which is not changed.
        to_cycle: rerun up to the update of this learner cycle, from 0, and show its batch. None:
            rerun the non-finite update that ended the run, and show what is not finite in it.
        dump: file for the batch as arrays, in the format of `.npz`; None: none.
        debug: whether to stop in the debugger before the cycle is learned from.
        env: flags that replace settings of the run's environment, `--env.options.NAME=VALUE`.
    """
    # Importing jax takes a second, so command line errors and --help come first.
    from sebulba.devices.compilation_cache import use_compilation_cache
    from sebulba.envs.base import EnvironmentFault
    from sebulba.storage.checkpoints.restore import CheckpointError

    use_compilation_cache()
    try:
        check_writable("--dump", dump)
        if to_cycle is None:
            return _rerun_update(run_dir, env)
        _rerun_to_cycle(run_dir, to_cycle, dump=dump, debug=debug, env=env)
    except ConfigError as error:
        print(escaped(f"sebulba: {error}"), file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(escaped(f"sebulba: CheckpointError: {error}"), file=sys.stderr)
        return EXIT_CHECKPOINT
    except EnvironmentFault as error:
        print(escaped(f"sebulba: {describe_error(error)}. {ENV_FLAG}"), file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Finding:
    """How many elements of a leaf are not finite."""

    part: str  # input, metric or gradient
    path: str
    size: int
    num_nan: int
    num_infinite: int

    @property
    def is_finite(self) -> bool:
        """Whether every element is finite."""
        return self.num_nan == self.num_infinite == 0


def _rerun_update(run_dir: pathlib.Path, env: Sequence[str]) -> int:
    """Rerun the update that stopped a run, show what is not finite, and return the exit code.

    Makes the agent and the learner, and an environment only to read its spaces.
    """
    import jax

    from sebulba.comparison.starts import starts_of
    from sebulba.config.loading import load_config
    from sebulba.devices.roles import assign_devices
    from sebulba.evaluation.stored import read_environment_spec
    from sebulba.ring.programs import make_programs
    from sebulba.storage.checkpoints.restore import restore
    from sebulba.storage.names import CHECKPOINTS, CONFIG, NON_FINITE
    from sebulba.storage.run_dir import read_run_json

    try:
        failure = json.loads((run_dir / NON_FINITE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"expected the directory of a run that ended with exit code {EXIT_NON_FINITE}"
            f" (non-finite), got {run_dir}: {error}"
        ) from error
    config = load_config(str(run_dir / CONFIG), env)
    _use_kernels_of(config, starts_of(read_run_json(run_dir))[-1])
    devices = assign_devices(config.devices, jax.local_devices(), num_envs=config.actor.num_envs)
    programs = make_programs(config, devices, read_environment_spec(config.env))
    like = programs.learner.state_shapes()
    arrays, meta = restore(
        run_dir / CHECKPOINTS, failure["checkpoint"], {"learner": like}, partial=True
    )
    state = arrays["learner"]
    # The count includes the update itself, whose clock counts those before it.
    counts = dataclasses.replace(state.non_finite, in_a_row=state.non_finite.in_a_row - 1)
    findings = _examine(
        programs.agent,
        devices.learner_devices,
        dataclasses.replace(state, non_finite=counts),
        # Earlier versions wrote only the count after the learner cycle.
        env_steps=failure.get("env_steps", meta["progress"]["env_steps"]),
        dtype=config.learner.gradients,
    )
    _show_findings(findings, failure)
    # Training judges an update by its loss and gradients alone, too.
    judged = [each for each in findings if each.part == "gradient" or each.path == "loss"]
    return EXIT_DONE if all(each.is_finite for each in judged) else EXIT_NON_FINITE


def _use_kernels_of(config: "Config", start: Mapping[str, Any]) -> None:
    """Ask for the GPU's kernels that the run's config asks for, and start JAX.

    Prints a warning if this process differs from the run in what decides bits.

    Args:
        config: the run's settings.
        start: the contents of `run.json` about the start that is rerun.

    Raises:
        ConfigError: they cannot be had, or there is no device of JAX_PLATFORMS.
    """
    from sebulba.comparison.starts import differences_of_starts
    from sebulba.config.objects import source_files
    from sebulba.devices.repeatable import use_repeatable_kernels
    from sebulba.devices.roles import check_platforms
    from sebulba.evaluation.opponents import opponent_files
    from sebulba.storage.fingerprint import CodeReading
    from sebulba.storage.names import MAPPED_SEEDS
    from sebulba.storage.run_dir import describe_run

    code = CodeReading({**source_files(config), **opponent_files(config)})
    fastest = use_repeatable_kernels(config.run.repeatable, is_exact=config.has_fixed_order)
    check_platforms()
    if fastest:
        print(fastest, file=sys.stderr)
    now = {**describe_run(), "code": code.wait(), MAPPED_SEEDS: []}
    if found := differences_of_starts(start, now):
        names = ", ".join(f"{each.name} (there {each.first}, here {each.second})" for each in found)
        print(escaped(f"warning: the run may have had other bits: {names}"), file=sys.stderr)


def _examine(
    agent: "Agent",
    learner_devices: "LearnerDevices",
    state: "LearnerState",
    *,
    env_steps: int,
    dtype: str,
) -> list[_Finding]:
    """Compute one update of a state on the learner devices, without applying it.

    Args:
        agent: the algorithm.
        learner_devices: hold the state.
        state: before the update.
        env_steps: of all hosts, learned from before the learner cycle.
        dtype: the dtype in which gradients cross between devices.

    Returns:
        The inputs in the order of their use, then the metrics, the loss first, then the gradients.
    """
    import jax.numpy as jnp
    import numpy as np

    from sebulba.devices import mapping
    from sebulba.devices.learner_devices import REPLICATED
    from sebulba.pytree import is_key
    from sebulba.ring.update import clock_of, experience_of, loss_and_gradients
    from sebulba.storage.checkpoints.manifest import flatten
    from sebulba.types import EnvStepCount

    def update(state: "LearnerState", count: EnvStepCount) -> "tuple[PyTree, PyTree]":
        value, metrics, grads, _ = loss_and_gradients(
            agent, state, experience_of(state), clock_of(state, count), dtype=dtype
        )
        return {"loss": value, **metrics}, grads

    mapped_update = mapping.map_over_learner_devices(
        update, learner_devices, out_specs=(REPLICATED, REPLICATED)
    )
    metrics, grads = mapped_update(state, EnvStepCount.of(env_steps))
    inputs = {
        "networks": state.networks,
        "opt_state": state.opt_state,
        "experience": state.experience,
    }
    findings = []
    for part, tree in (("input", inputs), ("metric", metrics), ("gradient", grads)):
        for path, leaf in flatten(tree).items():
            if is_key(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating):
                continue
            array = np.asarray(leaf).astype(np.float32)  # NumPy has no isinf for bfloat16
            findings.append(
                _Finding(
                    part=part,
                    path=path,
                    size=array.size,
                    num_nan=int(np.isnan(array).sum()),
                    num_infinite=int(np.isinf(array).sum()),
                )
            )
    return findings


def _show_findings(findings: list[_Finding], failure: dict[str, Any]) -> None:
    import rich.console
    import rich.table

    console = rich.console.Console(
        width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False
    )
    table = rich.table.Table(
        title=f"update {failure['update']}, learner cycle {failure['learner_cycle']}"
    )
    for column in ("part", "leaf", "elements", "NaN", "infinite"):
        table.add_column(column, justify="left" if column in ("part", "leaf") else "right")
    for each in findings:
        numbers = (f"{each.size:,}", f"{each.num_nan:,}", f"{each.num_infinite:,}")
        style = None if each.is_finite else "bold red"
        table.add_row(each.part, each.path, *numbers, style=style)
    console.print(table)
    bad = [f"{each.part} {each.path}" for each in findings if not each.is_finite]
    console.print(f"not finite: {', '.join(bad)}" if bad else "every leaf is finite")


def _rerun_to_cycle(
    run_dir: pathlib.Path,
    cycle: int,
    *,
    dump: pathlib.Path | None,
    debug: bool,
    env: Sequence[str],
) -> None:
    """Rerun a repeatable run up to the update of a learner cycle, and show its batch."""
    import numpy as np

    from sebulba.comparison.starts import resumes_before
    from sebulba.config.loading import load_config
    from sebulba.ring.make import made_ring
    from sebulba.run.warm_start import InitialNetworks
    from sebulba.storage.checkpoints.manifest import flatten
    from sebulba.storage.names import CHECKPOINTS, CONFIG
    from sebulba.storage.run_dir import read_run_json
    from sebulba.toolkit.frame_stack import with_stacks

    config = load_config(str(run_dir / CONFIG), env)
    if not config.has_fixed_order:
        raise ConfigError(
            "learner.policy_lag: expected a number of learner cycles, got null; a free-running run"
            " is not repeatable"
        )
    process = read_run_json(run_dir)
    resumes = resumes_before(process, cycle)
    _use_kernels_of(config, (resumes or [process])[-1])
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, mode="serial"))
    source = config.init_from if config.resume is None else None
    initial_networks = InitialNetworks(source, mismatch=config.init_mismatch)
    with made_ring(config, initial_networks=initial_networks) as ring:
        _bring_before(ring, config, run_dir / CHECKPOINTS, cycle, resumes=resumes)
        items = ring.act_in_turn()
        _show_batch(items, cycle)
        if dump is not None:
            arrays: Any = {
                f"actor {item.info.actor_id}, trajectory {item.info.sequence_number}: {path}": (
                    np.asarray(leaf)
                )
                for item in items
                for path, leaf in flatten(with_stacks(item.unroll.trajectory)).items()
            }
            with open(dump, "wb") as file:  # Of a name without .npz, NumPy writes another file.
                np.savez(file, **arrays)
            print(f"wrote {dump}")
        if debug:
            breakpoint()  # `items` is the batch; `ring.learn(items)` learns from it.


def _bring_before(
    ring: "Ring",
    config: "Config",
    checkpoints: pathlib.Path,
    cycle: int,
    *,
    resumes: Sequence[Mapping[str, Any]],
) -> None:
    """Bring a new ring to the point at which it has learned from all cycles before `cycle`.

    Args:
        ring: a new one.
        config: the run's settings.
        checkpoints: those of the run.
        cycle: a learner cycle, from 0.
        resumes: how the run was resumed before this cycle.

    Raises:
        ConfigError: the run did something else before it reached this cycle.
    """
    from sebulba.run.resume import resume
    from sebulba.storage.checkpoints.restore import steps_in

    are_stored = all(actor.point.carry.env_state is not None for actor in ring.actors)
    can_resume = are_stored or config.checkpoint.exact_reset_cycles is not None
    steps = [step for step in steps_in(checkpoints) if step <= cycle] if can_resume else []
    first = steps[-1] if steps else 0
    for each in resumes:
        if each.get("level") == "restart" and each["at"] > first:
            raise ConfigError(
                f"--to-cycle: expected less than {each['at']}, at which the run was resumed with"
                f" new episodes, got {cycle}; what it did after that cannot be repeated"
            )
    if steps:
        resumed = resume(ring, checkpoints, first)
        if resumed.remapping is not None:
            raise ConfigError(f"--to-cycle: expected a run on one host, got {resumed.remapping}")
        print(resumed)
    ring.publish()
    while ring.learner.num_cycles < cycle:
        if ring.end.goal:
            goal = "the goal of the run's config.yaml" if resumes else "its goal"
            raise ConfigError(
                f"--to-cycle: expected at most {ring.learner.num_cycles}, after which the run"
                f" reached {goal}, got {cycle}"
                + ("; a resume with a later goal cannot be repeated" if resumes else "")
            )
        ring.learn(ring.act_in_turn())


def _show_batch(items: "list[Delivery]", cycle: int) -> None:
    """Print the range of every leaf of a batch, and where its largest element is."""
    import jax
    import numpy as np
    import rich.console
    import rich.table

    from sebulba.storage.checkpoints.manifest import flatten
    from sebulba.toolkit.frame_stack import with_stacks

    console = rich.console.Console(
        width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False
    )
    table = rich.table.Table(title=f"batch of learner cycle {cycle}")
    for column in ("actor", "version", "leaf", "minimum", "maximum", "NaN", "infinite", "largest"):
        table.add_column(column, justify="left" if column in ("leaf", "largest") else "right")
    for item in items:
        for path, leaf in flatten(with_stacks(item.unroll.trajectory)).items():
            if not jax.numpy.issubdtype(leaf.dtype, np.number):
                continue
            array = np.asarray(leaf).astype(np.float64)
            magnitude = np.where(np.isnan(array), np.inf, np.abs(array))
            row, env, *_ = np.unravel_index(int(np.argmax(magnitude)), array.shape)
            is_finite = bool(np.isfinite(array).all())
            table.add_row(
                str(item.info.actor_id),
                str(item.info.policy_version),
                path,
                f"{np.nanmin(array):.4g}",
                f"{np.nanmax(array):.4g}",
                f"{int(np.isnan(array).sum()):,}",
                f"{int(np.isinf(array).sum()):,}",
                f"row {row}, env {env}",
                style=None if is_finite else "bold red",
            )
    console.print(table)


if __name__ == "__main__":
    run_command(main)
