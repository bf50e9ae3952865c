"""Prepares a run: its process, run directory, ring and observers."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from sebulba.config import Config
from sebulba.config.naming import default_run_dir, expanded
from sebulba.config.objects import source_files
from sebulba.devices.compilation_cache import use_compilation_cache
from sebulba.devices.known_answers import check_compiler
from sebulba.devices.memory import check_memory
from sebulba.devices.repeatable import use_repeatable_kernels
from sebulba.devices.roles import assign_devices, check_platforms
from sebulba.devices.xla_flags import describe_xla_flags, has_accelerator
from sebulba.devices.xla_workarounds import keep_freed_memory
from sebulba.envs.closing import closed_on_error
from sebulba.envs.task_defaults import TaskDefaults, with_task_defaults
from sebulba.errors import ConfigError
from sebulba.evaluation.opponents import opponent_files, with_exact_opponent
from sebulba.evaluation.rendering import load_opengl
from sebulba.evaluation.stored import exact_source, parse_which
from sebulba.hosts import connection as hosts
from sebulba.hosts.agreement import Agreement
from sebulba.hosts.joining import check_networks, open_run_dir_together, resume_together
from sebulba.process import (
    EXIT_FAILED,
    start_daemon,
)
from sebulba.remote.make import RemoteCollectors
from sebulba.remote.ray_processes import ray_processes
from sebulba.ring.make import make_ring
from sebulba.ring.mapped_seeds import check_mapping
from sebulba.ring.programs import RingPrograms
from sebulba.ring.records import DueTimes
from sebulba.ring.ring import Ring
from sebulba.ring.run_end import RunEnd
from sebulba.ring.running import check_mode
from sebulba.run.callbacks import Callback
from sebulba.run.ending import (
    Finished,
    finish,
    path_from,
    print_error,
)
from sebulba.run.last_lines import describe_lost_hosts
from sebulba.run.observers import RunObservers, make_observers
from sebulba.run.opening_lines import describe_networks, describe_run
from sebulba.run.profile import borders_of
from sebulba.run.resume import Resumed, resume
from sebulba.run.summary import networks_crc32
from sebulba.run.warm_start import InitialNetworks
from sebulba.storage.checksums import next_row
from sebulba.storage.fingerprint import CodeReading
from sebulba.storage.lock import RunLock
from sebulba.storage.metrics.console import Console, Display
from sebulba.storage.names import CHECKPOINTS, MAPPED_SEEDS
from sebulba.storage.run_dir import read_run_json, record_in_run_json, record_in_start


def set_up(config: Config) -> tuple[TaskDefaults, str]:
    """Set process-wide options, before JAX starts; return the config with the task's defaults.

    Returns:
        The config and its defaults; and a warning that kernels are not repeatable, to be shown
        where the run's other lines are, or "".

    Raises:
        ConfigError: there is no device of JAX_PLATFORMS, or no repeatable kernels.
    """
    if config.evaluation.video is not None:
        load_opengl()  # EnvPool looks for OpenGL only when it is imported.
    # Before an environment is made, which may start JAX.
    kernel_warning = use_repeatable_kernels(config.run.repeatable, is_exact=config.has_fixed_order)
    # First of all, since `run.keep_memory` may be among the defaults. The directory of the run is
    # made absolute before, because an environment may change the working directory.
    task_defaults = with_task_defaults(with_absolute_run_dir(config))
    prepare_process(task_defaults.config)
    return task_defaults, kernel_warning


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A run that is ready for its first learner cycle."""

    config: Config  # with the complete path of the run directory
    path: pathlib.Path  # the run directory
    display: Display
    started_in: pathlib.Path
    ring: Ring
    observers: RunObservers
    resumed: Resumed | None

    @property
    def due(self) -> DueTimes:
        """Where the observers want to see the state."""
        run, evaluation = self.config.run, self.config.evaluation
        intervals = (run.log_interval_env_steps, evaluation.interval_env_steps)
        return DueTimes(
            every_env_steps=tuple(each for each in intervals if each is not None),
            next_cycle=next_row if run.checksums else None,
            before_cycles=() if run.profile is None else borders_of(run.profile),
        )

    def finish(self) -> Finished:
        """Save and close the run once it has ended; never raises."""
        return finish(
            self.ring,
            self.observers,
            self.config,
            self.path,
            self.display,
            started_in=self.started_in,
            resumed_at=None if self.resumed is None else self.resumed.num_cycles,
        )


@contextlib.contextmanager
def prepared(
    task_defaults: TaskDefaults,
    *,
    end: RunEnd,
    kernel_warning: str,
    started_in: pathlib.Path,
    display: Display | None = None,
    verbose: bool = False,
    callbacks: Sequence[Callback] = (),
    programs: RingPrograms | None = None,
    mapped_seeds: Sequence[int] = (),
    mapped_with: Ring | None = None,
) -> Iterator[Prepared]:
    """Open the run directory, and make the ring and its observers; close what `finish` does not.

    Args:
        task_defaults: the run's settings, from `set_up`, like `kernel_warning`.
        end: why the run ends.
        kernel_warning: a line of text; "": none.
        started_in: the working directory at the start.
        display: as of `train`, like all that follow.
        verbose: whether a console shows details.
        callbacks: the user's functions.
        programs: those of an earlier run.
        mapped_seeds: those that share one program; `run.json` records them.
        mapped_with: the ring of the first of them; None: this run has the first.

    Raises:
        Exception: as `train`.
    """
    with (
        _open_run_dir(task_defaults.config, display, verbose=verbose) as (
            config,
            path,
            lock,
            display,
        ),
        contextlib.ExitStack() as ended,
    ):
        code = CodeReading({**source_files(config), **opponent_files(config)})
        ended.callback(code.wait)  # No thread is left, also if the run does not start.
        devices = assign_devices(config.devices, num_envs=config.actor.num_envs)
        # Of seeds that share a program, the first says it for all.
        show = display.message if mapped_with is None else display.detail
        for line in describe_run(config, devices, task_defaults.message):
            show(line)
        if kernel_warning:
            display.message(kernel_warning)
        display.message(f"run directory: {path_from(started_in, path)}")
        if flags := describe_xla_flags():
            display.detail(f"compiler: {flags}")
        agreement = Agreement(
            devices.learner_devices,
            end=end,
            max_episodes=config.run.return_window,
        )
        source = config.init_from if config.resume is None else None  # else of its checkpoint
        initial_networks = InitialNetworks(source, mismatch=config.init_mismatch)
        make_collector = None
        if config.actor.remote:
            processes = ended.enter_context(ray_processes(config.actor, on_message=display.message))
            make_collector = RemoteCollectors(processes, config, check=end.raise_if_received)
        ring = make_ring(
            config,
            devices=devices,
            programs=programs if mapped_with is None else mapped_with.programs,
            end=end,
            gather=agreement.gather,
            initial_networks=initial_networks,
            make_collector=make_collector,
            on_warning=display.message,
        )
        environments = {f"actor {actor.actor_id}": actor.collector for actor in ring.actors}
        with closed_on_error(environments, config.run.close_timeout_s):
            check_mode(ring, config.run.mode)
            if mapped_with is not None:
                check_mapping(mapped_with, ring)
            elif mapped_seeds:
                check_memory(
                    ring.programs.memory_plan,
                    actor_devices=devices.actor,
                    learner_devices=devices.learner,
                    num_seeds=len(mapped_seeds),
                )
            display.detail(f"memory: {ring.programs.memory_plan.describe()}")
            for line in describe_networks(ring, config, devices):
                display.message(line)
            if (warm_start := initial_networks.warm_start) is not None:
                display.message(str(warm_start))
                if hosts.is_first():
                    record_in_run_json(path, "init_from", warm_start.to_json())
            resumed = _resume(ring, config, path, display)
            check_networks(networks_crc32(ring))
            observers = make_observers(
                ring,
                config,
                path=path,
                lock=lock,
                agreement=agreement,
                display=display,
                callbacks=callbacks,
                resumed=resumed,
            )
            if hosts.is_first():
                at = {} if resumed is None else {"at": resumed.num_cycles, "level": resumed.level}
                started = {"code": code.wait(), MAPPED_SEEDS: list(mapped_seeds), **at}
                record_in_start(path, started)
            if resumed is not None and config.has_fixed_order and hosts.is_first():
                # Importing it takes 8 ms, of which a new run has no use.
                from sebulba.comparison.starts import describe_change_of_start

                if (change := describe_change_of_start(read_run_json(path))) is not None:
                    display.message(change)
        yield Prepared(
            config=config,
            path=path,
            display=display,
            started_in=started_in,
            ring=ring,
            observers=observers,
            resumed=resumed,
        )


def prepare_process(config: Config) -> None:
    """Set process-wide options; call it before JAX starts its threads.

    Raises:
        ConfigError: there is no device of JAX_PLATFORMS.
        MiscompiledError: XLA computes wrong numbers on this machine.
    """
    use_compilation_cache()
    # XLA's compiler for GPUs compiles in many threads, which would share one arena of memory.
    if config.run.keep_memory and (config.devices.actor == "cpu" or not has_accelerator()):
        keep_freed_memory()
    check_platforms()
    check_compiler()


def with_absolute_run_dir(config: Config) -> Config:
    """Return the config with its run directory in full: environments may change directories."""
    path = expanded(config.run_dir or default_run_dir(config))
    return dataclasses.replace(config, run_dir=str(path.absolute()))


@contextlib.contextmanager
def _open_run_dir(
    config: Config, display: Display | None, *, verbose: bool
) -> Iterator[tuple[Config, pathlib.Path, RunLock, Display]]:
    """Open and lock the run directory; remove a new one if a ConfigError leaves it empty-handed.

    Yields:
        The config as it is written there, the directory, the lock of this host's part of it, and
        the display.
    """
    config = with_exact_opponent(with_absolute_run_dir(config))
    if config.init_from is not None and config.resume is None:
        source = exact_source(config.init_from, key="init_from")
        config = dataclasses.replace(config, init_from=source)
    assert config.run_dir is not None
    is_new = not pathlib.Path(config.run_dir).exists()
    on_message = print_error if display is None else display.message
    path, lock = open_run_dir_together(config, on_message=on_message)
    lock.keep(start_daemon)
    hosts.exit_when_lost(EXIT_FAILED, lambda: describe_lost_hosts(path))
    if display is None:
        display = Console(config.run, verbose=verbose)
    try:
        yield config, path, lock, display
    except ConfigError:
        # Only what this process made, and nothing was learned yet.
        if is_new and hosts.is_first():
            shutil.rmtree(path)
        raise
    finally:
        lock.release()
        display.close()


def _resume(ring: Ring, config: Config, path: pathlib.Path, display: Display) -> Resumed | None:
    """Bring the ring to the checkpoint of `resume`, if the run resumes.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """
    if config.resume is None:
        return None
    directory = path / CHECKPOINTS
    resumed = resume_together(
        functools.partial(resume, ring, directory), directory, parse_which(config.resume)
    )
    display.message(str(resumed))
    return resumed
