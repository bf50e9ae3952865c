"""Take a command's own flags out of the command line of its runs. Imports no jax."""

import argparse
import os
import pathlib
import re
from collections.abc import Sequence

from sebulba.config.loading import flag_name
from sebulba.errors import ConfigError
from sebulba.processes.ray_cluster import RayShare
from sebulba.storage.names import CONFIG

ENV_FLAG = "To use other arguments of the environment: --env.options.NAME VALUE"
"""Advice of commands that make the environment of a run again, which may fail."""
RAY_HELP = """\
--ray                 give each run to Ray: on the cluster of the environment variable RAY_ADDRESS,
                      or on a Ray that is started here. All machines have to share the run directory
--cpus N, --gpus N    with --ray: CPUs and GPUs of each run; default: 1 and 0"""
"""Describes the flags of `take_ray`."""
_MAX_SEEDS = 1000


def check_writable(flag: str, file: str | os.PathLike[str] | None) -> None:
    """Check that a command will be able to write a file that a flag names; None: it writes none.

    Raises:
        ConfigError: its directory does not exist or is not writable, or it is itself a directory.
    """
    if file is None:
        return
    path = pathlib.Path(file)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag}: expected a file in a directory that is writable, got {file}")


def check_holds_no_run(directory: pathlib.Path) -> None:
    """Check that a directory for several runs is not that of one.

    Raises:
        ConfigError: it holds a run's config.
    """
    if (directory / CONFIG).is_file():
        raise ConfigError(
            f"run_dir: expected a directory for several runs, got {directory}, which is that of one"
            " run; choose another run_dir"
        )


def take_flag(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Take a flag and its value out of a command line.

    As in the flags of a config, `_` in its name is `-`.

    Returns:
        The value ("" if it is missing; None without the flag) and the other arguments.

    Raises:
        ConfigError: the command line has the flag twice.
    """
    rest: list[str] = []
    texts: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if name.startswith("--") and flag_name(name) == flag:
            texts.append(text if equals else next(arguments, ""))
        else:
            rest.append(argument)
    if len(texts) > 1:
        raise ConfigError(f"{flag}: expected it once, got {' and '.join(texts)}")
    return (texts[0] if texts else None), rest


def take_switch(argv: Sequence[str], flag: str) -> tuple[bool, list[str]]:
    """Take a flag without a value out of a command line; return whether it was there."""
    return flag in argv, [argument for argument in argv if argument != flag]


def take_env_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the flags of the config's section `env`, `--env.options.rows 5`, out of a command line.

    Returns:
        The flags, as `--env.options.rows=5`, and the other arguments.

    Raises:
        ConfigError: a flag has no value.
    """
    flags: list[str] = []
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith("--env."):
            rest.append(argument)
            continue
        value = "" if "=" in argument else next(arguments, "--")
        if value.startswith("--"):
            raise ConfigError(f"{argument}: expected a value, got none")
        flags.append(argument if "=" in argument else f"{argument}={value}")
    return flags, rest


def take_count(argv: Sequence[str], flag: str) -> tuple[int | None, list[str]]:
    """Take a flag and its value, an integer of at least 1; otherwise like `take_flag`."""
    text, rest = take_flag(argv, flag)
    if text is None:
        return None, rest
    try:
        return to_count(text), rest
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{flag}: {error}") from error


def to_count(text: str) -> int:
    """Return an integer of at least 1; a type of `argparse`.

    Raises:
        argparse.ArgumentTypeError: the text is no such integer.
    """
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text or 'none'}")
    return int(text)


def take_share(argv: Sequence[str], *, is_on_ray: bool) -> tuple[RayShare, list[str]]:
    """Take `--cpus` and `--gpus`, which need `--ray`, out of a command line.

    Raises:
        ConfigError: a value is wrong, or the command line has no `--ray`.
    """
    num_cpus, rest = take_count(argv, "--cpus")
    text, rest = take_flag(rest, "--gpus")
    if not is_on_ray and (num_cpus is not None or text is not None):
        flag = "--gpus" if num_cpus is None else "--cpus"
        raise ConfigError(f"{flag}: expected --ray beside it, got none")
    try:
        num_gpus = 0.0 if text is None else float(text)
    except ValueError:
        num_gpus = -1.0
    # Ray gives one run a part of one GPU, or several.
    if not (num_gpus >= 0.0 and (num_gpus < 1.0 or num_gpus.is_integer())):
        raise ConfigError(f"--gpus: expected an integer or a part of 1, got {text!r}")
    return RayShare(num_cpus=num_cpus or 1, num_gpus=num_gpus), rest


def take_ray(argv: Sequence[str]) -> tuple[RayShare | None, list[str]]:
    """Take `--ray`, and `--cpus` and `--gpus` with it, out of a command line.

    Returns:
        What each run asks of Ray (None without `--ray`) and the other arguments.

    Raises:
        ConfigError: as `take_share`.
    """
    is_on_ray, rest = take_switch(argv, "--ray")
    share, rest = take_share(rest, is_on_ray=is_on_ray)
    return (share if is_on_ray else None), rest


def take_seeds(argv: Sequence[str]) -> tuple[list[int] | None, list[str]]:
    """Take `--seeds` out of a command line.

    Returns:
        The seeds (None without the flag) and the other arguments.

    Raises:
        ConfigError: the value is no list of seeds, the flag comes twice, or together with `--seed`.
    """
    text, rest = take_flag(argv, "--seeds")
    if text is not None and any(argument.partition("=")[0] == "--seed" for argument in rest):
        raise ConfigError("--seeds: cannot be combined with --seed")
    return (None if text is None else parse_seeds(text)), rest


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of `0..4` (both ends included) or of `0,3,7`, in that order.

    Raises:
        ConfigError: the text is no list of seeds, or has one twice.
    """
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = map(int, span.groups())
        if last - first >= _MAX_SEEDS:
            raise ConfigError(f"--seeds: expected at most {_MAX_SEEDS} seeds, got {text}")
        seeds = list(range(first, last + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        seeds = [int(each) for each in text.split(",")]
    else:
        seeds = []
    if not seeds:
        raise ConfigError(
            f"--seeds: expected seeds as 0..4 (both ends included) or 0,3,7, got {text!r}"
        )
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: expected each seed once, got {text}")
    return seeds
