"""Repeat a run, and say if it gives the same bits: `python -m sebulba.verify RUN_DIR[@CHECKPOINT]`.

The repetition is a run of its own, in a process of its own, with the variables that the run had
recorded. Imports no jax.
"""

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sebulba.devices.variables import decides_bits, is_read
from sebulba.devices.xla_flags import LAPACK_THREADS, NUM_THREADS, VARIABLE
from sebulba.errors import ConfigError, escaped, one_line, refuse
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_OTHER_RESULT,
    EXIT_ROUNDING,
    EXIT_SIGNAL_BASE,
    program,
    run_command,
)
from sebulba.processes.children import Children, exit_code_of
from sebulba.processes.command_line import to_count
from sebulba.storage.names import CHECKPOINTS, CHECKSUMS, CONFIG, RUN, SOURCES

if TYPE_CHECKING:
    from sebulba.config import Config
    from sebulba.storage.checkpoints.restore import Which
    from sebulba.storage.checksums import ChecksumRow
    from sebulba.storage.run_files import Run

_CODES = {"same": EXIT_DONE, "rounding": EXIT_ROUNDING, "other": EXIT_OTHER_RESULT}
_DESCRIPTION = f"""\
Repeats a run in a new directory, from its start or from one of its checkpoints, with the XLA flags,
threads and other variables that it recorded, and compares the checksums of networks, optimizer
state and trajectories.

Ends with {EXIT_DONE}: the same bits; {EXIT_ROUNDING}: other bits on another machine, or with other
threads, flags or versions, consistent with rounding; {EXIT_OTHER_RESULT}: another result;
{EXIT_CHECKPOINT}: a checkpoint has other networks than the checksums, so nothing is repeated;
{EXIT_CONFIG}: the run cannot be repeated; {EXIT_FAILED}: the repetition failed, and its last lines
are shown."""
_LAST_LINES = 20
# What the repetition does not need, and what has no effect on its numbers.
_QUIET: dict[str, Any] = {
    "run.checksums": True,
    "run.wandb_project": None,
    "run.profile": None,
    "evaluation.interval_env_steps": None,
    "evaluation.video": None,
    "checkpoint.interval_s": None,
}


def main() -> None:
    """Parse the command line, repeat the run, and exit."""
    parser = argparse.ArgumentParser(
        prog=program("verify"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "run",
        metavar="RUN_DIR[@CHECKPOINT]",
        help="run to repeat, from its start or from a checkpoint: latest, best or a learner cycle",
    )
    parser.add_argument(
        "--cycles",
        type=to_count,
        metavar="N",
        help="repeat at most N learner cycles; default: all",
    )
    parser.add_argument(
        "--run-dir",
        type=pathlib.Path,
        metavar="DIR",
        dest="into",
        help="directory of the repetition; default: one that is removed if the bits are the same",
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="keep this shell's JAX_, XLA_ and PJRT_ variables instead of setting those of the run",
    )
    options = parser.parse_args()
    sys.exit(
        verify(options.run, cycles=options.cycles, into=options.into, with_own=not options.here)
    )


def verify(
    run: str | os.PathLike[str],
    *,
    cycles: int | None = None,
    into: pathlib.Path | None = None,
    with_own: bool = True,
) -> int:
    """Repeat a run, print the verdict, and return the exit code.

    Args:
        run: `RUN_DIR` or `RUN_DIR@CHECKPOINT`, which is not changed.
        cycles: the most learner cycles to repeat; None: no limit.
        into: a new directory for the repetition; None: a temporary one.
        with_own: whether the repetition has the variables that the run recorded; False: those of
            this process.
    """
    # Importing numpy and jax takes time, so command line errors and --help come first.
    from sebulba.comparison.checkpoints import changed_networks, has_networks, link_checkpoint
    from sebulba.comparison.rows import compare_checksums
    from sebulba.comparison.starts import (
        describe_start,
        differences_of_starts,
        mapped_seeds,
        read_start,
        resumes_before,
        starts_of,
    )
    from sebulba.comparison.verdict import verdict_of
    from sebulba.config.loading import to_yaml
    from sebulba.evaluation.stored import parse_source
    from sebulba.storage.checksums import checksums_of, read_checksums
    from sebulba.storage.run_dir import shown_path

    source, which = parse_source(run, default=0)
    run_dir = pathlib.Path(shown_path(source))
    try:
        if into is not None and into.exists():
            raise ConfigError(f"--run-dir: expected a new directory, got {into}")
        whole = read_start(run_dir)
        begin = _begin_of(whole, which)
        # The start or the resume that the learner cycles after `begin` are of.
        resumes = resumes_before(whole.process, begin) if begin else []
        first = dataclasses.replace(whole, process=dict(resumes[-1])) if resumes else whole
        all_rows, num_damaged = read_checksums(run_dir)
        rows = _rows_to_repeat(whole, all_rows, begin, cycles)
        last = rows[-1].num_cycles
        config = _config_until(first, last)
        seeds = mapped_seeds(first.process)
        if seeds is None:
            raise ConfigError(
                f"{RUN}: expected the seeds with which the run began as one program, got those"
                " of its last resume; such a run cannot be repeated"
            )
        if seeds and begin:
            raise ConfigError(
                f"{run_dir}: expected a program of one seed, got a program of the seeds"
                f" {', '.join(map(str, seeds))}, which is repeated from its start only"
            )
        environment = dict(os.environ)
        if with_own:
            environment = variables_of(first.process, environment)
    except ConfigError as error:
        code = refuse(error)
        _print_sources(run_dir)
        return code
    if (change := changed_networks(run_dir, all_rows)) is not None:
        print(escaped(f"sebulba: {change}; the file is not what the run saved"), file=sys.stderr)
        return EXIT_CHECKPOINT
    until = f"{last:,}"
    if cycles is not None and last < begin + cycles:
        until += f", the last with a row of {CHECKSUMS}"
    what = f"{describe_start(first)}; repeating learner cycles {begin + 1:,} to {until}"
    print(f"{run_dir}: {what}", flush=True)
    if num_damaged:
        print(f"{CHECKSUMS}: damaged lines, which are left out: {num_damaged}", flush=True)
    if seeds:
        print(f"with the seeds of its program: {', '.join(map(str, seeds))}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sebulba-verify-") as temporary:
        scratch = pathlib.Path(temporary)
        root = scratch / "run" if into is None else into
        path = root / f"seed-{first.config['seed']}" if seeds else root
        # Another CPU may have compiled what is in the user's cache.
        environment["JAX_COMPILATION_CACHE_DIR"] = str(scratch / "cache")
        if begin:
            link_checkpoint(run_dir, begin, into=path)
        # A resume accepts no other settings than those of its directory.
        file = (path if begin else scratch) / CONFIG
        file.write_text(to_yaml(config), encoding="utf-8")
        argv = [str(file), f"--run-dir={root}"]
        if begin:
            argv.append(f"--resume={begin}")
        if seeds:
            argv += ["--run.seeds=mapped", f"--seeds={','.join(map(str, seeds))}"]
        with Children().forwarding_signals() as children, open(scratch / "log", "wb") as log:
            process = children.start(argv, base=environment, output=log)
            code = exit_code_of(process.wait())
        if children.signal_number is not None:
            name = signal.Signals(children.signal_number).name
            print(f"sebulba: {name} ended the repetition: there is no verdict", file=sys.stderr)
            return EXIT_SIGNAL_BASE + children.signal_number
        compared = compare_checksums(rows, checksums_of(path))
        # A run that failed fails again, after the last of its rows.
        is_complete = bool(compared.rows) and compared.rows[-1].num_cycles == last
        has_parted = bool(compared.rows) and bool(compared.rows[-1].leaves)
        if not is_complete and not has_parted:
            text = (scratch / "log").read_text(encoding="utf-8", errors="replace")
            print(escaped("\n".join(text.splitlines()[-_LAST_LINES:])), file=sys.stderr)
            _print_sources(run_dir)
            print(f"sebulba: the repetition ended with exit code {code}", file=sys.stderr)
            return EXIT_CONFIG if code == EXIT_CONFIG else EXIT_FAILED
        found = differences_of_starts(first.process, starts_of(read_start(path).process)[-1])
        verdict = verdict_of(compared, found)
        if verdict.kind != "same" and into is None:
            root = pathlib.Path(tempfile.mkdtemp(prefix="sebulba-verify-")) / "run"
            shutil.move(scratch / "run", root)
    for each in found:
        print(one_line(f"other {each.kind}: {each.name}: there {each.first}, here {each.second}"))
    for line in verdict.lines:
        print(escaped(line))
    if len(compared.rows) < len(rows):
        print(f"{len(rows) - len(compared.rows)} rows of the run have no counterpart")
    if verdict.kind == "same" and has_networks(run_dir, last):
        print(f"checkpoint {last} of {run_dir} has these networks")
    if root.exists():
        print(f"the repetition: {root}")
    return _CODES[verdict.kind]


def _print_sources(run_dir: pathlib.Path) -> None:
    """Print where the run had the modules that its config names and that are not found here."""
    from sebulba.storage.run_files import read_json

    sources = (read_json(run_dir / RUN) or {}).get(SOURCES)
    for name, file in sources.items() if isinstance(sources, dict) else ():
        try:
            is_here = importlib.util.find_spec(name.partition(":")[0]) is not None
        except (ImportError, ValueError):
            is_here = False
        if not is_here:
            text = f"the run had {name} in {file}; PYTHONPATH={pathlib.Path(file).parent} finds it"
            print(one_line(text), file=sys.stderr)


def _begin_of(run: "Run", which: "Which") -> int:
    """Return the learner cycles of the checkpoint that a repetition begins with; 0: the start.

    Raises:
        ConfigError: there is no such checkpoint.
    """
    from sebulba.storage.checkpoints.restore import CheckpointError, find_step

    if which == 0:
        return 0
    try:
        return find_step(run.path / CHECKPOINTS, which)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _rows_to_repeat(
    run: "Run", rows: "Sequence[ChecksumRow]", begin: int, cycles: int | None
) -> "list[ChecksumRow]":
    """Return the rows of a run's checksums that a repetition can give again.

    Args:
        run: with all of its starts.
        rows: all that it has.
        begin: learner cycles before the repetition.
        cycles: the most learner cycles to repeat; None: no limit.

    Raises:
        ConfigError: there are none, or the run is not repeatable.
    """
    from sebulba.comparison.checkpoints import continues_environments
    from sebulba.comparison.starts import next_resume, resumes_before
    from sebulba.config.loading import load_config
    from sebulba.config.validation import check_repeatable

    config = load_config(str(run.path / CONFIG))
    check_repeatable(config)
    if config.distributed.effective_mode != "off":
        raise ConfigError(
            f"distributed.mode: expected off, got {config.distributed.effective_mode}; a run of"
            " several hosts cannot be repeated by one process"
        )
    if not rows or "cpu" not in run.process:
        what = f"{CHECKSUMS} and a {RUN} with the machine"
        raise ConfigError(
            f"{run.path}: expected {what}, got a run without; run.checksums was false, the run"
            " failed before its first learner cycle, or an earlier version of Sebulba trained it"
        )
    limits = [] if cycles is None else [begin + cycles]
    # Another part of a run may have had other settings, such as its length, or new episodes.
    if (resumed_at := next_resume(run.process, begin + 1 if begin else 0)) is not None:
        limits.append(resumed_at)
        print(f"the run was resumed at learner cycle {resumed_at:,}: only up to there", end="")
        is_kept = (run.path / CHECKPOINTS / str(resumed_at)).is_dir()
        print(f"; {run.path}@{resumed_at} is the part after it" if is_kept else "", flush=True)
    later = [row for row in rows if row.num_cycles > begin]
    found = [row for row in later if row.num_cycles <= min(limits, default=row.num_cycles)]
    if not found:
        after = f" after {begin:,}" if begin else ""
        first = f"; the first is {later[0].num_cycles:,}" if later else ""
        raise ConfigError(
            f"{run.path}: expected a learner cycle{after} with a row of {CHECKSUMS}{first}"
        )
    resumes = resumes_before(run.process, begin)
    was_resumed = bool(resumes) and resumes[-1]["at"] == begin
    if begin and not was_resumed and not continues_environments(run.path, begin, run.config):
        raise ConfigError(
            f"{run.path}@{begin}: expected a checkpoint from which environments continue as in the"
            " run, got one after which a resume begins new episodes, while the run went on with its"
            " own. Name one that the run was resumed from; a run with"
            " checkpoint.exact_reset_cycles can be repeated from all of its checkpoints"
        )
    return found if begin else [row for row in rows if row.num_cycles <= found[-1].num_cycles]


def _config_until(run: "Run", last: int) -> "Config":
    """Return the config of a repetition up to a learner cycle.

    Args:
        run: with the start or the resume that is repeated, which may have had other goals than the
            config: schedules follow them.
        last: the learner cycle.
    """
    from sebulba.config.loading import load_config
    from sebulba.storage.names import GOALS
    from sebulba.storage.run_files import changes_of

    goals = {key: value for key, value in changes_of(run.process).items() if key in GOALS}
    settings = {**_QUIET, **goals, "run.total_learner_cycles": last}
    return load_config(str(run.path / CONFIG), settings)


def variables_of(process: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables in which JAX and XLA compute as they did in a run.

    Args:
        process: the run's `run.json`.
        environment: all variables of this process, of which those that JAX or XLA read are
            replaced.

    Raises:
        ConfigError: a variable that the run recorded cannot be one.
    """
    variables = {name: text for name, text in environment.items() if not is_read(name)}
    recorded = process.get("environment")
    variables |= {
        name: str(text)
        for name, text in (recorded if isinstance(recorded, dict) else {}).items()
        if is_read(name) and (decides_bits(name) or name in ("JAX_PLATFORMS", VARIABLE))
    }
    settings = process.get("jax")
    for name, value in (settings if isinstance(settings, dict) else {}).items():
        # Each setting of JAX is a variable, too. -1: it was not set.
        if value is not None and value != -1 and name.startswith("jax_"):
            variables[name.upper()] = str(int(value)) if isinstance(value, bool) else str(value)
    for key, name in (("threads", NUM_THREADS), ("lapack_threads", LAPACK_THREADS)):
        if isinstance(process.get(key), int):
            variables[name] = str(process[key])
    if broken := [name for name, text in variables.items() if "\0" in text]:
        raise ConfigError(f"{RUN}: expected text, got a null byte in {', '.join(broken)}")
    return variables


if __name__ == "__main__":
    run_command(main)
