"""Train an agent: the command `python -m sebulba.train CONFIG`, and the function `sebulba.train`.

Imports no jax before it trains, so that `--help` and errors of the command line come at once.
"""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sebulba.config import Config, flags
from sebulba.config.naming import default_run_dir, expanded
from sebulba.errors import ConfigError, escaped, refuse
from sebulba.process import (
    EXIT_FAILED,
    EXIT_SIGNAL_BASE,
    leave,
    program,
    run_command,
)
from sebulba.processes.children import Children, end_of_reports, end_with_parent
from sebulba.processes.command_line import (
    RAY_HELP,
    check_holds_no_run,
    take_ray,
    take_seeds,
    take_switch,
)
from sebulba.processes.ray_cluster import RayShare
from sebulba.processes.ray_runs import train_runs_on_ray, with_absolute_paths
from sebulba.processes.runs import TrainingRun
from sebulba.processes.seeds import are_mapped
from sebulba.storage.lock import refuse_if_in_use
from sebulba.storage.names import CONFIG

if TYPE_CHECKING:
    from sebulba.run.callbacks import Callback
    from sebulba.run.result import Result

_PROG = program("train")
_DESCRIPTION = f"""\
Trains the agent of a config.

--seeds 0..4          train with each of these seeds (or a list: 0,3,7), each in RUN_DIR/seed-N: one
                      after another or as one program, as run.seeds says; they are compiled once
{RAY_HELP}"""


def train(
    config: Config | str | os.PathLike[str],
    *,
    agent: Any = None,
    environment: Any = None,
    callbacks: "Callback | Sequence[Callback]" = (),
    verbose: bool | None = None,
) -> "Result":
    """Train, and return what was learned.

    Writes the same run directory as the command line, and can be called again in the same process.
    In the main thread, a stop signal ends the run, which is saved; a second one ends the process.
    Other threads receive no signals. Afterwards the handlers are as before, and no thread is left.

    Args:
        config: from `sebulba.load_config`, or what it takes: a file, or the name of a config that
            comes with Sebulba.
        agent: instead of `agent.name`: a class or function `(settings, run_spec) -> Agent`, or an
            `Agent`. Its settings are `config.agent` if that is of the agent's dataclass `Config`,
            else the defaults of that.
        environment: instead of `env.suite` and `env.id`: a subclass of `gymnasium.Env` or a
            function that returns one, a JAX task, or an adapter's function.
        callbacks: functions `(event, row) -> bool | None`, called in this thread with each row of
            metrics and each evaluation. If one returns True, the run ends.
        verbose: True: show progress on stderr, as the command line does. False: show nothing. None:
            show a line of progress in a Jupyter notebook, and nothing elsewhere. With False and
            None, lines of text go to the logger `sebulba` as INFO.

    Raises:
        ConfigError: the config is wrong, or does not fit the devices, the environment or the agent.
        CheckpointError: `resume` names a checkpoint that cannot be used.
        TrainingError: the run failed later; it can be resumed.
        TrainingInterrupted: a signal ended the run; a `KeyboardInterrupt`.
        Exception: what a callback raised, or what kept the run from beginning.
    """
    from sebulba.config.loading import load_config
    from sebulba.config.objects import with_agent, with_environment
    from sebulba.config.validation import validate
    from sebulba.evaluation.rendering import load_opengl
    from sebulba.ring.run_end import StoppedAtStart
    from sebulba.run import training
    from sebulba.run.result import TrainingInterrupted, error_before_start, result_of
    from sebulba.storage.checkpoints.restore import CheckpointError
    from sebulba.storage.metrics.console import Display, LogDisplay
    from sebulba.storage.metrics.notebook import NotebookDisplay, in_notebook

    config = config if isinstance(config, Config) else load_config(config)
    config = config if agent is None else with_agent(config, agent)
    config = config if environment is None else with_environment(config, environment)
    validate(config)
    functions = [callbacks] if callable(callbacks) else callbacks
    if not isinstance(functions, Sequence) or not all(map(callable, functions)):
        raise ConfigError(
            f"callbacks: expected a function (event, row) or several, got {callbacks!r}"
        )
    config = training.with_absolute_run_dir(config)
    if config.distributed.effective_mode != "off":
        raise ConfigError(
            f"distributed.mode: expected off, got {config.distributed.effective_mode}; on several"
            f" hosts, start `{program('train')}` on each: a failed host has to end its process"
        )
    load_opengl()  # for `Result.video`: EnvPool looks for it only when it is imported
    display: Display | None = None if verbose else LogDisplay()
    if verbose is None and in_notebook():
        display = NotebookDisplay(config.run.total_env_steps)
    try:
        finished = training.train(
            config,
            display=display,
            callbacks=functions,
        )
    except (ConfigError, CheckpointError):
        raise
    except StoppedAtStart as error:
        code = EXIT_SIGNAL_BASE + error.number
        raise TrainingInterrupted(str(error), exit_code=code, result=None) from None
    except Exception as error:
        path, is_resume = pathlib.Path(config.run_dir or ""), config.resume is not None
        raise error_before_start(error, path, is_resume=is_resume) from error
    failure = finished.end.failure
    if failure is not None and finished.callers.failure is failure:
        raise failure
    return result_of(finished)


def main() -> None:
    """Parse the command line, train, and exit with the run's exit code."""
    end_with_parent()
    is_verbose, argv = take_switch(sys.argv[1:], "--verbose")
    try:
        seeds, argv = take_seeds(argv)
        share, argv = take_ray(argv)
    except ConfigError as error:
        sys.exit(refuse(error))
    report = end_of_reports()
    of_seed = [] if seeds is None else ["--seed", str(max(seeds))]
    config = flags.parse([*argv, *of_seed], _PROG, _DESCRIPTION)
    is_one_host = config.distributed.effective_mode == "off"
    seeds_dir = config.run_dir or default_run_dir(config)
    is_mapped = False
    try:
        if share is not None:
            from sebulba.processes.ray_runs import check_ray

            check_ray(config, has_seeds=seeds is not None)
        if seeds is not None:
            is_mapped = len(seeds) > 1 and are_mapped(config)
            check_holds_no_run(expanded(seeds_dir))
    except ConfigError as error:
        sys.exit(refuse(error))
    if seeds is not None and report is None:
        argv = [*argv, "--verbose"] if is_verbose else argv
        if share is not None:
            sys.exit(train_seeds_on_ray(argv, seeds, run_dir=seeds_dir, share=share))
        # A process can join the other hosts of a run once.
        sys.exit(train_seeds(argv, seeds, run_dir=seeds_dir, share_process=is_one_host))
    try:
        # On several hosts the lock may be that of this run's first host.
        if seeds is None and config.run_dir is not None and is_one_host:
            refuse_if_in_use(expanded(config.run_dir).absolute())
    except ConfigError as error:
        sys.exit(refuse(error))
    try:
        from sebulba.devices import tuner_lines
        from sebulba.devices.xla_flags import has_nvidia_gpu
        from sebulba.run.mapped_runs import train_mapped
        from sebulba.run.training import train_to_exit_code
    except (OSError, MemoryError) as error:  # too few open files are allowed, for example
        print(
            escaped(f"sebulba: {type(error).__name__}: {error} – while importing"), file=sys.stderr
        )
        sys.exit(EXIT_FAILED)
    if has_nvidia_gpu():
        tuner_lines.drop_tuner_lines()
    if seeds is None or report is None:
        leave(train_to_exit_code(config, verbose=is_verbose))
    configs = [
        dataclasses.replace(config, seed=seed, run_dir=f"{seeds_dir}/seed-{seed}") for seed in seeds
    ]

    def tell(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # The parent was killed: the run saves and ends.
            os.write(report, f"{line}\n".encode())

    def on_start(number: int) -> None:
        tell(f"{seeds[number]}")
        if not is_mapped:
            print(f"seed {seeds[number]}: {configs[number].run_dir}", file=sys.stderr)

    def on_end(number: int, code: int) -> None:
        tell(f"{seeds[number]} {code}")

    train_all = train_mapped if is_mapped else train_to_exit_code
    leave(train_all(*configs, verbose=is_verbose, on_start=on_start, on_end=on_end))


def train_seeds(
    argv: Sequence[str], seeds: Sequence[int], *, run_dir: str, share_process: bool = True
) -> int:
    """Train with each seed in `run_dir/seed-N`, and print how each run ended.

    The runs are in one child process for as long as they are done, one after another or as one
    program. A run that fails or crashes ends that process, and the runs that have not begun start
    in a new one.

    Args:
        argv: the command line of the runs, without a seed.
        seeds: the seeds, in the order of the runs.
        run_dir: holds the run directories.
        share_process: False: each run has a process of its own.

    Returns:
        0 if all ended with 0, else the first other exit code; 128 + the number of a signal that
        prevented runs although none failed.
    """
    ends, waiting = dict.fromkeys(seeds, "not started"), list(seeds)
    failures: list[int] = []
    with Children().forwarding_signals() as children:
        while waiting and children.signal_number is None:
            together = waiting if share_process else waiting[:1]
            flags = ("--seeds", ",".join(map(str, together)), "--run-dir", run_dir)
            code, codes = children.run_seeds((*argv, *flags))
            # A process that ends before it begins a run would end so again.
            codes = codes or {together[0]: code}
            for seed, code_of_run in codes.items():
                ended = code if code_of_run is None else code_of_run
                ends[seed] = f"ended with {ended}" if ended else "done"
                failures += [ended] if ended else []
            waiting = [seed for seed in waiting if seed not in codes]
    _show_ends(ends)
    if any(code > EXIT_SIGNAL_BASE for code in failures) and _have_begun(seeds, run_dir):
        numbers = ",".join(map(str, seeds))
        command = f"{program('train')} --seeds {numbers} --run-dir {shlex.quote(run_dir)}"
        print(f"to resume all seeds: {command} --resume latest", file=sys.stderr)
    if not failures and waiting and children.signal_number is not None:
        return EXIT_SIGNAL_BASE + children.signal_number
    return failures[0] if failures else 0


def train_seeds_on_ray(
    argv: Sequence[str], seeds: Sequence[int], *, run_dir: str, share: RayShare
) -> int:
    """Train as `train_seeds`, but each run on a machine that Ray chooses, with its name in a line.

    Args:
        argv: the command line of the runs, without a seed.
        seeds: the seeds, in the order of the runs.
        run_dir: holds the run directories; all machines have to share it.
        share: what each run asks of Ray.

    Returns:
        As `train_seeds`; 2 if Ray is not installed, or a machine cannot run them.
    """
    directory = expanded(run_dir).absolute()
    by_run = {f"seed-{seed}": seed for seed in seeds}
    ends = dict.fromkeys(seeds, "not started")
    runs = []
    for name, seed in by_run.items():
        own = directory / name
        of_seed = (*with_absolute_paths(argv, own), f"--seed={seed}")
        runs.append(TrainingRun(name=name, directory=own, argv=of_seed))

    def on_start(run: TrainingRun, machine: str) -> None:
        print(f"seed {by_run[run.name]} on {machine}: {run.directory}", file=sys.stderr)

    def on_end(run: TrainingRun, code: int) -> None:
        ends[by_run[run.name]] = f"ended with {code}" if code else "done"

    try:
        code = train_runs_on_ray(
            runs,
            share=share,
            directory=directory,
            num_jobs=None,
            on_start=on_start,
            on_end=on_end,
        )
    except ConfigError as error:
        return refuse(error)
    _show_ends(ends)
    return code


def _have_begun(seeds: Sequence[int], run_dir: str) -> bool:
    directory = expanded(run_dir)
    return all((directory / f"seed-{seed}" / CONFIG).is_file() for seed in seeds)


def _show_ends(ends: dict[int, str]) -> None:
    print("; ".join(f"seed {seed} {end}" for seed, end in ends.items()), file=sys.stderr)


if __name__ == "__main__":
    run_command(main, interrupted="interrupted before the start")
