"""Runs in processes that Ray starts: on the machines of a cluster, or on this one."""

import contextlib
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

from sebulba.config import Config
from sebulba.config.loading import split_arguments
from sebulba.errors import ConfigError
from sebulba.processes.command_line import take_switch
from sebulba.processes.ray_cluster import ADDRESS_VARIABLE, RayShare, ray_cluster, room_for
from sebulba.processes.ray_process import RayProcess
from sebulba.processes.remote_runs import RemoteRun, train_elsewhere
from sebulba.processes.run_holder import Order, RunHolder
from sebulba.processes.runs import GPU_MEMORY, GPU_MEMORY_VARIABLES, TrainingRun, say

MAX_RESTARTS = 20
"""Of one run, after losses of its process or machine."""


def check_ray(config: Config, *, has_seeds: bool) -> None:
    """Check that `--ray` suits the rest of the command line of `sebulba train`.

    Args:
        config: the settings of each run.
        has_seeds: whether there are several, by `--seeds`.

    Raises:
        ConfigError: they cannot.
    """
    if not has_seeds:
        raise ConfigError(
            "--ray: expected --seeds beside it. One run on a cluster has remote actors"
            " (--actor.remote 8) or several hosts (sebulba launch --ray 4)"
        )
    if config.distributed.effective_mode != "off":
        raise ConfigError("--ray: cannot be combined with distributed.mode")
    if config.run.seeds == "mapped":
        raise ConfigError("run.seeds: expected auto or in_turn with --ray, got mapped")


def train_runs_on_ray(
    runs: Sequence[TrainingRun],
    *,
    share: RayShare,
    directory: pathlib.Path,
    num_jobs: int | None,
    on_start: Callable[[TrainingRun, str], None],
    on_end: Callable[[TrainingRun, int], None],
) -> int:
    """Train runs on the machines of a Ray cluster, as `train_runs` does on this one.

    Ray chooses the machine of each run, and starts its process again if that or the machine dies.

    Args:
        runs: the runs, with absolute paths in their command lines.
        share: what each asks for.
        directory: holds their files, and has to be on a file system that all machines share.
        num_jobs: the number of runs at a time; None: as many as the cluster has room for.
        on_start: called with each run that has started, and its machine's name.
        on_end: called with each run that has ended, and its exit code.

    Returns:
        The exit code, as `train_runs` returns it.

    Raises:
        ConfigError: Ray is not installed, there is no such cluster, or a machine cannot run them.
    """
    if not runs:
        return 0
    with run_cluster(share), shared_mark(directory) as mark:

        def start(run: TrainingRun) -> RemoteRun:
            order = order_of(run.argv, share, run_dir=run.directory, mark=mark, log=run.log)
            holder = RayProcess(
                RunHolder, name=run.name, max_restarts=MAX_RESTARTS, **share.options
            )
            on_line = prefixed_by(run.name)
            return RemoteRun(run.name, order, holder, on_line=on_line, on_message=say)

        num_jobs = num_jobs or len(runs)
        return train_elsewhere(
            runs, start=start, num_jobs=num_jobs, on_start=on_start, on_end=on_end
        )


@contextlib.contextmanager
def run_cluster(share: RayShare, *, num_runs: int = 1) -> Iterator[bool]:
    """Join or start a Ray cluster for runs, and say where they run.

    Args:
        share: what each run asks for.
        num_runs: the number of runs, for which a Ray that is started here has the CPUs.

    Yields:
        Whether it was started here.

    Raises:
        ConfigError: Ray is not installed, there is no such cluster, or no GPU in one that is here.
    """
    with ray_cluster(
        num_cpus=num_runs * share.num_cpus,
        wanted="--ray: expected Ray, which is not installed",
        shows_logs=False,
    ) as where:
        say(f"{share} for each run on {where}")
        is_here = not os.environ.get(ADDRESS_VARIABLE)
        if not room_for(share):
            if is_here:
                raise ConfigError(f"--gpus: this machine has too few, got {share.num_gpus:g}")
            say(f"no machine of the cluster has {share}: runs wait until one joins")
        yield is_here


@contextlib.contextmanager
def shared_mark(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Write a file, by which other machines see whether they share the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = directory / f".ray-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def with_absolute_paths(argv: Sequence[str], run_dir: pathlib.Path) -> list[str]:
    """Return a command line of `sebulba.train` that means the same in another directory.

    Args:
        argv: the command line.
        run_dir: absolute; it replaces another one.

    Raises:
        ConfigError: a flag has no value.
    """
    is_verbose, argv = take_switch(argv, "--verbose")
    paths, flags = split_arguments(argv)
    absolute = [os.path.abspath(path) if os.path.isfile(path) else path for path in paths]
    absolute += [f"{flag}={text}" for flag, text in flags.items() if flag != "--run-dir"]
    return [*absolute, f"--run-dir={run_dir}", *(["--verbose"] if is_verbose else [])]


def order_of(
    argv: Sequence[str],
    share: RayShare,
    *,
    run_dir: str | os.PathLike[str],
    mark: pathlib.Path | None = None,
    log: pathlib.Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Order:
    """Return what a `RunHolder` is asked to run.

    Args:
        argv: the command line of `sebulba.train`.
        share: what the run asks for.
        run_dir: its directory.
        mark: of `shared_mark`; None: the run itself finds out whether `run_dir` is shared.
        log: gets stdout and stderr; None: they come here.
        variables: environment variables, in addition to those of the machine.
    """
    variables = dict(variables or {})
    if 0.0 < share.num_gpus < 1.0 and not any(name in os.environ for name in GPU_MEMORY_VARIABLES):
        variables[GPU_MEMORY_VARIABLES[0]] = f"{GPU_MEMORY * share.num_gpus:.3f}"
    return {
        "argv": list(argv),
        "run_dir": os.fspath(run_dir),
        "log": None if log is None else os.fspath(log),
        "directory": os.getcwd(),
        "variables": variables,
        "num_cpus": share.num_cpus,
        "uses_accelerator": share.num_gpus > 0,
        "mark": None if mark is None else os.fspath(mark),
    }


def prefixed_by(name: str) -> Callable[[str], None]:
    """Return a function that prints lines of a run to stderr, each after the run's name."""
    return lambda line: say(f"[{name}] {line}")
