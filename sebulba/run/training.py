"""A training run from its config to its end."""

import contextlib
import dataclasses
import functools
import gc
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence

import jax

from sebulba.config import Config
from sebulba.config.naming import default_run_dir
from sebulba.config.objects import source_files
from sebulba.devices.compilation_cache import use_compilation_cache
from sebulba.devices.known_answers import check_compiler
from sebulba.devices.memory import check_memory, describe_costly_network
from sebulba.devices.repeatable import use_repeatable_kernels
from sebulba.devices.roles import Roles, assign_devices, check_platforms
from sebulba.devices.small_networks import describe_small_network
from sebulba.devices.xla_flags import describe_xla_flags, has_accelerator
from sebulba.devices.xla_workarounds import keep_freed_memory
from sebulba.envs.closing import closed_on_error
from sebulba.envs.task_defaults import TaskDefaults, with_task_defaults
from sebulba.errors import ConfigError
from sebulba.evaluation.rendering import load_opengl
from sebulba.evaluation.stored import parse_which
from sebulba.hosts import connection as hosts
from sebulba.hosts.agreement import Agreement
from sebulba.hosts.joining import check_networks, open_run_dir_together, resume_together
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_SIGNAL_BASE,
    EXIT_UNSAVED,
    end_process,
    handled,
    start_daemon,
)
from sebulba.remote.make import RemoteCollectors
from sebulba.remote.ray_processes import ray_processes
from sebulba.ring.collectors import LocalCollector
from sebulba.ring.make import make_ring
from sebulba.ring.mapped_seeds import check_mapping
from sebulba.ring.programs import RingPrograms, actor_devices_of
from sebulba.ring.ring import Ring
from sebulba.ring.run_end import RunEnd
from sebulba.ring.running import check_mode, run
from sebulba.run.callbacks import Callback
from sebulba.run.ending import (
    Finished,
    describe_lost_hosts,
    exit_code_of,
    finish,
    path_from,
    print_error,
    report,
    report_before_start,
)
from sebulba.run.observers import RunObservers, make_observers
from sebulba.run.resume import Resumed, resume
from sebulba.run.summary import networks_crc32
from sebulba.run.warm_start import InitialNetworks, exact_source
from sebulba.storage.checksums import next_row
from sebulba.storage.fingerprint import CodeReading
from sebulba.storage.lock import RunLock
from sebulba.storage.metrics.console import Console, Display, Goal
from sebulba.storage.run_dir import (
    CHECKPOINTS,
    read_run_json,
    record_in_run_json,
    record_in_start,
    record_seeds,
)


def train_to_exit_code(
    *configs: Config,
    verbose: bool = False,
    on_start: Callable[[int], None] = lambda number: None,
    on_end: Callable[[int, int], None] = lambda number, code: None,
) -> int:
    """Train, print how each run ended, and return the exit code of the last one that was started.

    Runs of several configs, which differ in their seed, end with the first that is not done. They
    are numerically the runs of separate processes, but share what is traced and compiled.

    If threads do not end, this ends the process instead of returning, and so does a failure on some
    of several hosts: the ordinary end of a process would wait for the other hosts.

    Args:
        configs: the settings of each run.
        verbose: whether the console shows details too, such as the memory plan.
        on_start: called with the position of each run before it starts.
        on_end: called with the position of each run that has ended, and its exit code.
    """
    started_in, code = pathlib.Path.cwd(), EXIT_DONE
    directories = [with_absolute_run_dir(each).run_dir or "" for each in configs]
    programs: RingPrograms | None = None
    for number, config in enumerate(configs):
        os.chdir(started_in)  # An environment may have changed it.
        if number > 0:
            gc.collect()  # A cycle may hold the last ring; devices have no room for two replays.
        on_start(number)
        finished = None
        try:
            hosts.connect(config.distributed)
            config = dataclasses.replace(config, run_dir=directories[number])
            finished = train(config, verbose=verbose, programs=programs)
            code = exit_code_of(finished.end)
        except BaseException as error:  # Code of the user may exit.
            with RunEnd().listening():  # The first signal does not keep the cause from being told.
                path, is_resume = pathlib.Path(directories[number]), config.resume is not None
                code = report_before_start(error, path, is_resume=is_resume)
        on_end(number, code)
        if finished is not None:
            with finished.end.listening():  # as above
                report(finished)
        with handled(lambda number, frame: end_process(code)):  # noqa: B023 - used in this turn
            if hosts.are_several():
                is_failure = EXIT_DONE < code < EXIT_SIGNAL_BASE and code != EXIT_UNSAVED
                is_failure |= finished is None and code > EXIT_SIGNAL_BASE  # The others wait.
                # Most bad starts are found on all hosts.
                may_be_shared = code in (EXIT_CONFIG, EXIT_CHECKPOINT)
                if is_failure and not (may_be_shared and hosts.all_end()):
                    end_process(code)
                hosts.disconnect()
        if code != EXIT_DONE or finished is None or finished.end.has_late_signal:
            return code
        programs, finished = finished.ring.programs, None
    return code


def train(
    config: Config,
    *,
    display: Display | None = None,
    verbose: bool = False,
    callbacks: Sequence[Callback] = (),
    programs: RingPrograms | None = None,
) -> Finished:
    """Train to the goal, a signal or a failure, which the result's `end` holds.

    Stop signals are received in the main thread only.

    Args:
        config: the run's settings.
        display: takes rows and lines of text; None: a console on stderr.
        verbose: whether that console shows details too.
        callbacks: called in this thread with rows of metrics and evaluations.
        programs: the programs of an earlier run whose config differs in its seed alone; None: new
            ones.

    Raises:
        ConfigError: before the first act cycle: the config does not fit devices, agent or
            environment. Later such errors are failures of the run like any other.
        CheckpointError: before the first act cycle: the run cannot be resumed.
        StoppedAtStart: a stop signal came while remote actors were waited for.
        Exception: the ring could not be made.
    """
    started_in = pathlib.Path.cwd()
    task_defaults, fastest = set_up(config)
    with (
        RunEnd(hosts_agree=hosts.are_several()).listening() as end,
        prepared(
            task_defaults,
            end=end,
            fastest=fastest,
            started_in=started_in,
            display=display,
            verbose=verbose,
            callbacks=callbacks,
            programs=programs,
        ) as ready,
    ):
        with end.collecting():  # the first failure is the cause
            run(
                ready.ring,
                mode=ready.config.run.mode,
                observers=ready.observers.in_order,
                boundaries=ready.boundaries,
                next_look=ready.next_look,
                compile_timeout_s=ready.config.run.compile_timeout_s,
            )
        return ready.finish()


def set_up(config: Config) -> tuple[TaskDefaults, str | None]:
    """Set process-wide options, before JAX starts; return the config with the task's defaults.

    Returns:
        The config and its defaults; and a line about kernels that are not repeatable, if it has to
        be shown.

    Raises:
        ConfigError: there is no device of JAX_PLATFORMS, or no repeatable kernels.
    """
    if config.evaluation.video is not None:
        load_opengl()  # EnvPool looks for OpenGL only when it is imported.
    # Before an environment is made, which may start JAX.
    fastest = use_repeatable_kernels(config.run.repeatable, is_exact=config.has_fixed_order)
    # First of all, since `run.keep_memory` may be among the defaults. The directory of the run is
    # made absolute before, because an environment may change the working directory.
    task_defaults = with_task_defaults(with_absolute_run_dir(config))
    prepare_process(task_defaults.config)
    return task_defaults, fastest


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
    def boundaries(self) -> list[int]:
        """Numbers of env steps at whose multiples something is due."""
        run = self.config.run.log_interval_env_steps
        return [
            each for each in (run, self.config.evaluation.interval_env_steps) if each is not None
        ]

    @property
    def next_look(self) -> Callable[[int], int] | None:
        """The next number of learner cycles, after a number, at which something is due."""
        return next_row if self.config.run.checksums else None

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
    fastest: str | None,
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
        task_defaults: the run's settings, from `set_up`, like `fastest`.
        end: why the run ends.
        fastest: a line about kernels that are not repeatable; None: none.
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
        code = CodeReading(source_files(config))
        devices = assign_devices(config.devices, num_envs=config.actor.num_envs)
        # Of seeds that share a program, the first says it for all.
        show = display.message if mapped_with is None else display.detail
        for line in _describe_run(config, devices, task_defaults.message):
            show(line)
        if fastest:
            display.message(fastest)
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
            collector = ring.actors[0].collector
            spec = collector.spec
            if spec.num_players > 1:
                display.message(
                    f"players: {spec.num_players} in each environment; an env step is one player's"
                )
            if costly := describe_costly_network(config.agent, spec, ring.learner.state.networks):
                display.message(costly)
            if config.devices.actor is None and isinstance(collector, LocalCollector):
                hint = describe_small_network(
                    ring.learner.state.networks,
                    actor_devices=devices.actor,
                    num_envs=config.actor.num_envs * spec.num_players,
                    is_on_host=collector.act_within is None,
                )
                if hint is not None:
                    display.message(hint)
            if (warm_start := initial_networks.warm_start) is not None:
                display.message(str(warm_start))
                if hosts.is_first():
                    record_in_run_json(path, "init_from", warm_start.to_json())
            if hosts.is_first() and (change := record_seeds(path, mapped_seeds)) is not None:
                display.message(change)
            resumed = _resume(ring, config, path, display)
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
            check_networks(networks_crc32(ring))
            if hosts.is_first():
                at = {} if resumed is None else {"at": resumed.num_cycles, "level": resumed.level}
                record_in_start(path, {"code": code.wait(), **at})
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
    name = os.path.expandvars(config.run_dir or default_run_dir(config))
    return dataclasses.replace(config, run_dir=str(pathlib.Path(name).expanduser().absolute()))


@contextlib.contextmanager
def _open_run_dir(
    config: Config, display: Display | None, *, verbose: bool
) -> Iterator[tuple[Config, pathlib.Path, RunLock, Display]]:
    """Open and lock the run directory; remove a new one if a ConfigError leaves it empty-handed.

    Yields:
        The config as it is written there, the directory, the lock of this host's part of it, and
        the display.
    """
    config = with_absolute_run_dir(config)
    if config.init_from is not None and config.resume is None:
        config = dataclasses.replace(config, init_from=exact_source(config.init_from))
    assert config.run_dir is not None
    is_new = not pathlib.Path(config.run_dir).exists()
    on_message = print_error if display is None else display.message
    path, lock = open_run_dir_together(config, on_message=on_message)
    lock.keep(start_daemon)
    hosts.exit_when_lost(EXIT_FAILED, lambda: describe_lost_hosts(path))
    if display is None:
        goal = Goal(
            total_env_steps=config.run.total_env_steps,
            total_episodes=config.run.total_episodes,
            stop_at_return=config.run.stop_at_return,
            return_window=config.run.return_window,
        )
        display = Console(goal, verbose=verbose)
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


def _describe_run(config: Config, devices: Roles, defaults: str | None) -> Iterator[str]:
    """Yield lines of text: agent and task, what acts and learns where, and until when.

    Args:
        config: the run's settings.
        devices: this host's.
        defaults: a line about the defaults that suit the task; None: no default was replaced.
    """

    def names(devices: Sequence[jax.Device]) -> str:
        kinds = sorted({device.platform for device in devices})
        of_kinds = ((kind, [d.id for d in devices if d.platform == kind]) for kind in kinds)
        return ", ".join(f"{kind} {', '.join(map(str, ids))}" for kind, ids in of_kinds)

    yield f"agent: {config.agent.name} on {config.env.suite} {config.env.id}"
    if defaults is not None:
        yield defaults
    num_actors, num_envs = len(actor_devices_of(config, devices)), config.actor.num_envs
    acting = (
        f"{num_actors} actor{'s' * (num_actors > 1)} × {num_envs} environment{'s' * (num_envs > 1)}"
    )
    roles = f"{names(devices.actor)} for acting ({acting})"
    if set(devices.actor) == set(devices.learner):
        roles += " and learning"
    else:
        roles += f", {names(devices.learner)} for learning"
    if hosts.are_several():
        roles += f", on each of {jax.process_count()} hosts"
    yield f"devices: {roles}"
    unused = [d for d in jax.local_devices() if d not in {*devices.actor, *devices.learner}]
    if config.devices.learner is None and unused:
        yield (
            f"warning: without a role: {names(unused)}. actor.num_envs is no multiple of more than"
            f" {len(devices.learner)} learner devices; change it, or set devices.actor"
        )
    goals = [f"{config.run.total_env_steps:,} env steps"]
    if config.run.total_learner_cycles is not None:
        goals.insert(0, f"{config.run.total_learner_cycles:,} learner cycles")
    if config.run.total_episodes is not None:
        goals.insert(0, f"{config.run.total_episodes:,} episodes")
    if config.run.stop_at_return is not None:
        window = config.run.return_window
        goals.insert(0, f"mean return {config.run.stop_at_return:,g} over {window} episodes")
    yield f"goal: {', or '.join(goals)}"


def _resume(ring: Ring, config: Config, path: pathlib.Path, display: Display) -> Resumed | None:
    """Bring the ring to the checkpoint of `resume`, if the run resumes.

    Raises:
        CheckpointError: the checkpoint cannot be used; no file has been changed.
    """
    if config.resume is None:
        return None
    directory = path / CHECKPOINTS
    resumed = resume_together(
        functools.partial(resume, ring, directory), directory, parse_which(config.resume)
    )
    display.message(str(resumed))
    return resumed
