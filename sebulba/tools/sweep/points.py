"""The runs of a sweep: every combination of the listed values, with every seed. Imports no jax."""

import collections
import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Sequence

from sebulba.config import Config
from sebulba.config.loading import load_config, split_arguments
from sebulba.config.schema import key_types
from sebulba.config.validation import value_of
from sebulba.errors import ConfigError
from sebulba.hosts.seeds import take_seeds
from sebulba.processes.command_line import take_count

_MAX_RUNS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep."""

    settings: dict[str, str]  # the flags with several values, and this run's value
    seed: int
    directory: pathlib.Path
    argv: tuple[str, ...]  # of `sebulba.train`

    @property
    def label(self) -> str:
        """The name of the run in messages."""
        return self.directory.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """All runs of a sweep."""

    directory: pathlib.Path
    points: tuple[Point, ...]
    num_jobs: int  # runs at a time


def parse_sweep(argv: Sequence[str]) -> Sweep:
    """Return the sweep that a command line describes.

    Every flag may have several values, separated by commas: `--agent.learning-rate 1e-3,3e-4`.

    Raises:
        ConfigError: a flag or the config of a run is wrong.
    """
    seeds, argv = take_seeds(argv)
    num_jobs, argv = take_count(argv, "--jobs")
    positionals, flags = split_arguments(argv)
    if len(positionals) != 1:
        raise ConfigError(f"expected one config, got {' '.join(positionals) or 'none'}")
    (path,) = positionals
    if "--resume" in flags:
        raise ConfigError("--resume: a sweep resumes by itself. Start the same command again")
    name = flags.pop("--run-dir", f"runs/sweep-{pathlib.Path(path).stem}")
    directory = pathlib.Path(os.path.expandvars(name)).expanduser()
    values = {flag: split_values(text) for flag, text in flags.items()}
    fixed = {flag: texts[0] for flag, texts in values.items() if len(texts) == 1}
    axes = {flag: texts for flag, texts in values.items() if len(texts) > 1}
    points: list[Point] = []
    for choice in itertools.product(*axes.values()):
        settings = dict(zip(axes, choice, strict=True))
        arguments = [f"{flag}={text}" for flag, text in {**fixed, **settings}.items()]
        config = load_config(path, arguments)
        for seed in [config.seed] if seeds is None else seeds:
            own = directory / _name(settings, seed)
            last = [f"--seed={seed}", f"--run-dir={own}"]
            if (own / "config.yaml").is_file():
                _check_earlier_run(own, load_config(path, [*arguments, *last]))
            argv_of_run = (path, *arguments, *last)
            points.append(Point(settings=settings, seed=seed, directory=own, argv=argv_of_run))
    _check_names(points)
    return Sweep(directory=directory, points=tuple(points), num_jobs=num_jobs or 1)


def split_values(text: str) -> list[str]:
    """Return the values that commas separate, except those inside of brackets or quotes."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    return [each.strip() for each in values]


def _name(settings: dict[str, str], seed: int) -> str:
    parts = [f"{flag.removeprefix('--')}={text}" for flag, text in settings.items()]
    return re.sub(r"[^\w.=,+-]", "_", ",".join([*parts, f"seed-{seed}"]))


def _check_names(points: Sequence[Point]) -> None:
    if len(points) > _MAX_RUNS:
        raise ConfigError(f"expected at most {_MAX_RUNS:,} runs, got {len(points):,}")
    for label, count in collections.Counter(point.label for point in points).items():
        if count > 1:
            raise ConfigError(f"expected every combination of values once, got {label} twice")


def _check_earlier_run(directory: pathlib.Path, config: Config) -> None:
    """Check that an earlier run in the directory is the one that the sweep asks for."""
    earlier = load_config(str(directory / "config.yaml"))
    keys = {**key_types(type(earlier.agent)), **key_types(type(config.agent))}
    # `init_from` is stored as the exact checkpoint.
    ignored = ("run_dir", "resume", "init_from", "distributed.")
    differing = [
        key for key in keys if not key.startswith(ignored) and _differs(earlier, config, key)
    ]
    if differing:
        raise ConfigError(
            f"{directory} holds a run with another {', '.join(differing)}. Choose another"
            " directory: --run-dir DIRECTORY"
        )


def _differs(first: Config, second: Config, key: str) -> bool:
    missing = object()
    values = []
    for config in (first, second):
        try:
            values.append(value_of(config, key))
        except AttributeError:  # another agent's
            values.append(missing)
    return values[0] != values[1]
