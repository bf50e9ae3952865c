"""A training run from its config to its end."""

import contextlib
import dataclasses
import gc
import os
import pathlib
from collections.abc import Callable, Sequence

from sebulba.config import Config
from sebulba.hosts import connection as hosts
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_SIGNAL_BASE,
    EXIT_UNSAVED,
    end_process,
    handled,
)
from sebulba.ring.programs import RingPrograms
from sebulba.ring.run_end import RunEnd
from sebulba.ring.running import run
from sebulba.run.callbacks import Callback
from sebulba.run.ending import (
    Finished,
    exit_code_of,
    report,
    report_before_start,
)
from sebulba.run.preparation import prepared, set_up, with_absolute_run_dir
from sebulba.run.start_timeout import start_within
from sebulba.storage.metrics.console import Display


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
            finished = train(
                config,
                verbose=verbose,
                programs=programs,
                # A debugger may stop a serial run.
                start_timeout_s=(
                    None if config.run.mode == "serial" else config.run.compile_timeout_s
                ),
            )
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
    start_timeout_s: float | None = None,
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
        start_timeout_s: ends the process if the run has not started by then; None: no limit.

    Raises:
        ConfigError: before the first act cycle: the config does not fit devices, agent or
            environment. Later such errors are failures of the run like any other.
        CheckpointError: before the first act cycle: the run cannot be resumed.
        StoppedAtStart: a stop signal came while remote actors were waited for.
        Exception: the ring could not be made.
    """
    started_in = pathlib.Path.cwd()
    with contextlib.ExitStack() as stack:
        with start_within(start_timeout_s):
            task_defaults, kernel_warning = set_up(config)
            end = stack.enter_context(RunEnd(hosts_agree=hosts.are_several()).listening())
            ready = stack.enter_context(
                prepared(
                    task_defaults,
                    end=end,
                    kernel_warning=kernel_warning,
                    started_in=started_in,
                    display=display,
                    verbose=verbose,
                    callbacks=callbacks,
                    programs=programs,
                )
            )
        with end.collecting():  # the first failure is the cause
            run(
                ready.ring,
                mode=ready.config.run.mode,
                observers=ready.observers.in_order,
                due=ready.due,
                compile_timeout_s=ready.config.run.compile_timeout_s,
            )
        return ready.finish()
