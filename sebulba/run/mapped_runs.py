"""Train the runs of several seeds as one program, each in its own run directory."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Sequence

from sebulba.config import Config
from sebulba.process import EXIT_DONE, EXIT_FAILED
from sebulba.ring.records import NEVER_DUE
from sebulba.ring.ring import Observer
from sebulba.ring.run_end import RunEnd, listening_together
from sebulba.ring.running import run_mapped
from sebulba.run.ending import Finished, exit_code_of, report, report_before_start
from sebulba.run.preparation import Prepared, prepared, set_up, with_absolute_run_dir
from sebulba.run.slow_compilation import SlowCompilation
from sebulba.storage.metrics.base import Row
from sebulba.storage.metrics.console import Console


def train_mapped(
    *configs: Config,
    verbose: bool = False,
    on_start: Callable[[int], None] = lambda number: None,
    on_end: Callable[[int, int], None] = lambda number, code: None,
) -> int:
    """Train, print how each run ended, and return the first exit code that is not 0, or 0.

    If threads do not end, this ends the process instead of returning.

    Args:
        configs: the settings of each run, which differ in their seed and run directory.
        verbose: whether the console shows details too.
        on_start: called with the position of each run before it starts.
        on_end: called with the position of each run and its exit code.
    """
    started_in = pathlib.Path.cwd()
    codes, finished = [EXIT_FAILED] * len(configs), list[Finished]()  # until a run has ended
    configs = tuple(map(with_absolute_run_dir, configs))
    ends = [RunEnd() for _ in configs]

    def end(number: int, code: int) -> None:
        codes[number] = code
        on_end(number, code)

    displays = _displays(configs, verbose=verbose)
    with listening_together(ends):
        with contextlib.ExitStack() as stack:
            closing: dict[int, contextlib.ExitStack] = {}
            ready: dict[int, Prepared] = {}
            for number, config in enumerate(configs):
                on_start(number)
                os.chdir(started_in)  # An environment may have changed it.
                closing[number] = stack.enter_context(contextlib.ExitStack())
                first = next((each.ring for each in ready.values()), None)
                try:
                    task_defaults, kernel_warning = set_up(config)
                    ready[number] = closing[number].enter_context(
                        prepared(
                            task_defaults,
                            end=ends[number],
                            kernel_warning=kernel_warning,
                            started_in=started_in,
                            display=displays[number],
                            mapped_seeds=[each.seed for each in configs],
                            mapped_with=first,
                        )
                    )
                except BaseException as error:  # Code of the user may exit.
                    displays[number].close()
                    path, is_resume = pathlib.Path(config.run_dir or ""), config.resume is not None
                    end(number, report_before_start(error, path, is_resume=is_resume))
            numbers, runs = tuple(ready), tuple(ready.values())

            def finish(position: int) -> None:
                number = numbers[position]
                finished.append(runs[position].finish())
                closing[number].close()
                end(number, exit_code_of(ends[number]))

            run_mapped(
                [each.ring for each in runs],
                observers=[_observers_of(each, position) for position, each in enumerate(runs)],
                due=runs[0].due if runs else NEVER_DUE,
                on_end=finish,
            )
        # The report of a run whose threads are stuck ends the process.
        for each in sorted(finished, key=lambda each: each.end.is_stuck):
            report(each)
    return next((code for code in codes if code != EXIT_DONE), EXIT_DONE)


def _observers_of(run: Prepared, position: int) -> list[Observer]:
    """Return the observers of a seed; only the first reports the compilation, which all share."""
    return [
        each
        for each in run.observers.in_order
        if position == 0 or not isinstance(each, SlowCompilation)
    ]


class _SeedDisplay:
    """Shows a seed's lines of text on a console of all seeds, and the rows of the first one left.

    See `Display`.
    """

    def __init__(self, console: Console, seed: int, showing: list[int]):
        self._console = console
        self._seed = seed
        self._showing = showing  # seeds that have not ended

    def update(self, row: Row) -> None:
        """Show a row of metrics, if it is of the first seed that has not ended."""
        if self._showing and self._showing[0] == self._seed:
            self._console.update(row)

    def message(self, text: str, *, command: str = "") -> None:
        """Show a line of text with the seed."""
        self._console.message(f"seed {self._seed}: {text}", command=command)

    def detail(self, text: str) -> None:
        """Show a line of text with the seed, if details are shown."""
        self._console.detail(f"seed {self._seed}: {text}")

    def close(self) -> None:
        """Let the next seed show its rows; close the console after the last one."""
        if self._seed in self._showing:
            self._showing.remove(self._seed)
            if not self._showing:
                self._console.close()


def _displays(configs: Sequence[Config], *, verbose: bool) -> list[_SeedDisplay]:
    console = Console(configs[0].run, verbose=verbose)
    seeds = [config.seed for config in configs]
    showing = list(seeds)
    console.message(
        f"seeds {', '.join(map(str, seeds))} are one program; lines of progress are those of the"
        " first that has not ended"
    )
    return [_SeedDisplay(console, seed, showing) for seed in seeds]
