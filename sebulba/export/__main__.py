"""Export a trained policy: `python -m sebulba.export RUN_DIR [-o DIRECTORY]`.

The files need JAX and NumPy only; a copy of `loader.py` beside them loads them. Imports no
jax before it exports.
"""

import argparse
import importlib.util
import pathlib
import sys

from sebulba.errors import ConfigError, describe_error, did_you_mean, escaped, refuse
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    program,
    run_command,
)
from sebulba.processes.command_line import ENV_FLAG, take_env_flags, to_count

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def main() -> None:
    """Parse the command line, export, and exit with 0, 2, 3 or 4."""
    parser = _parser()
    try:
        env, rest = take_env_flags(sys.argv[1:])
    except ConfigError as error:
        parser.error(str(error))
    sys.exit(export(parser.parse_args(rest, argparse.Namespace(env=env))))


def export(options: argparse.Namespace) -> int:
    """Export as the command line requests, print the directory, and return the exit code."""
    if importlib.util.find_spec("flatbuffers") is None:
        print(
            "sebulba: jax.export needs flatbuffers: pip install 'sebulba[export]'", file=sys.stderr
        )
        return EXIT_CONFIG
    # Imported late: jax takes over a second, which --help and usage errors should not cost.
    from sebulba.envs.base import EnvironmentFault
    from sebulba.evaluation.stored import load_stored_policy, parse_which
    from sebulba.export.policy import FILES, export_policy
    from sebulba.storage.checkpoints.restore import CheckpointError

    try:
        directory = pathlib.Path(options.output or pathlib.Path(options.run_dir) / "export")
        if options.output is None and directory.is_symlink():
            raise ConfigError(
                f"{directory} is a symbolic link, perhaps out of the run directory. Choose a"
                " directory with -o"
            )
        which = parse_which(options.checkpoint)
        stored = load_stored_policy(
            options.run_dir, which, imports=not options.no_imports, env=options.env
        )
        export_policy(
            stored,
            directory,
            num_envs=options.num_envs,
            greedy=not options.stochastic,
            seed=options.seed,
            platforms=options.platforms,
        )
    except (ConfigError, OSError) as error:
        return refuse(error)
    except CheckpointError as error:
        print(escaped(f"sebulba: CheckpointError: {error}"), file=sys.stderr)
        return EXIT_CHECKPOINT
    except EnvironmentFault as error:
        print(escaped(f"sebulba: {describe_error(error)}. {ENV_FLAG}"), file=sys.stderr)
        return EXIT_FAILED
    *files, loader = FILES
    print(f"wrote {directory}: {', '.join(files)}, and {loader}, which loads them")
    return EXIT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("export"),
        description="Writes a trained policy as a compiled function (jax.export), its arrays and a"
        " module that loads them with JAX and NumPy only.",
        epilog="--env.options.NAME VALUE replaces an argument of the run's environment, which is"
        " made once to read its spaces.",
    )
    parser.set_defaults(env=())
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a finished or running run")
    parser.add_argument(
        "-o", "--output", metavar="DIRECTORY", help="default: export in the run directory"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|CYCLE",
        help="checkpoint to load; default: latest",
    )
    parser.add_argument(
        "--num-envs",
        type=to_count,
        default=1,
        metavar="B",
        help="rows of each call: one for each environment, or for each player of each environment;"
        " default: 1",
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="sample actions, as in training; default: greedy"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the samples")
    parser.add_argument(
        "--no-imports",
        action="store_true",
        help="refuse a run whose config names modules to import, for a run of somebody else",
    )
    parser.add_argument(
        "--platforms",
        type=_platforms,
        default="cpu,cuda,tpu",
        metavar="P,P",
        help=f"platforms to compile for: {', '.join(_PLATFORMS)}; default: cpu,cuda,tpu",
    )
    return parser


def _platforms(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _PLATFORMS:
            raise argparse.ArgumentTypeError(
                f"there is no platform {name!r}{did_you_mean(name, _PLATFORMS)}"
            )
    return names


if __name__ == "__main__":
    run_command(main)
