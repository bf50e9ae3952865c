"""Rerun a part of a run to look at it: `python -m sebulba.rerun RUN_DIR [--to-cycle N ...]`.

The run directory is not changed. Imports no jax before it reruns.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from sebulba.errors import ConfigError, describe_error, escaped, refuse
from sebulba.process import (
    EXIT_CHECKPOINT,
    EXIT_DONE,
    EXIT_FAILED,
    program,
    run_command,
)
from sebulba.processes.command_line import ENV_FLAG, check_writable, take_env_flags

_DESCRIPTION = """\
Without --to-cycle: reruns the non-finite update that ended a run with exit code 6, from the
checkpoint before it, and lists the inputs, metrics and gradients with NaN or infinite elements.

With --to-cycle N: repeats a run that has a learner.policy_lag up to learner cycle N, in one thread,
from the nearest checkpoint or from the start, and shows the batch that the cycle takes.

--env.options.NAME VALUE replaces an argument of the run's environment."""


def main() -> None:
    """Parse the command line, rerun, and exit with 0, or 6 if the update is not finite."""
    parser = argparse.ArgumentParser(
        prog=program("rerun"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=pathlib.Path, metavar="RUN_DIR", help="run to repeat")
    parser.add_argument("--to-cycle", type=_cycle, metavar="N", help="learner cycle, from 0")
    parser.add_argument(
        "--dump", type=pathlib.Path, metavar="FILE", help="with --to-cycle: write the batch (.npz)"
    )
    parser.add_argument(
        "--debug", action="store_true", help="with --to-cycle: stop in Python's debugger there"
    )
    try:
        env, rest = take_env_flags(sys.argv[1:])
    except ConfigError as error:
        parser.error(str(error))
    options = parser.parse_args(rest)
    if options.to_cycle is None and (options.dump is not None or options.debug):
        parser.error("--dump and --debug: expected --to-cycle N")
    sys.exit(
        rerun(
            options.run_dir,
            to_cycle=options.to_cycle,
            dump=options.dump,
            debug=options.debug,
            env=env,
        )
    )


def _cycle(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a learner cycle from 0, got {text}")
    return int(text)


def rerun(
    run_dir: pathlib.Path,
    *,
    to_cycle: int | None = None,
    dump: pathlib.Path | None = None,
    debug: bool = False,
    env: Sequence[str] = (),
) -> int:
    """Rerun a part of a run, print what is in it, and return the exit code.

    Args:
        run_dir: the run's directory, which is not changed.
        to_cycle: rerun up to the update of this learner cycle, from 0, and show its batch. None:
            rerun the non-finite update that ended the run, and show what is not finite in it.
        dump: file for the batch as arrays, in the format of `.npz`; None: none.
        debug: whether to stop in the debugger before the cycle is learned from.
        env: flags that replace settings of the run's environment, `--env.options.NAME=VALUE`.
    """
    # Importing jax takes a second, so command line errors and --help come first.
    from sebulba.devices.compilation_cache import use_compilation_cache
    from sebulba.envs.base import EnvironmentFault
    from sebulba.run.rerun_batch import rerun_to_cycle
    from sebulba.run.rerun_update import rerun_update
    from sebulba.storage.checkpoints.restore import CheckpointError

    use_compilation_cache()
    try:
        check_writable("--dump", dump)
        if to_cycle is None:
            return rerun_update(run_dir, env)
        rerun_to_cycle(run_dir, to_cycle, dump=dump, debug=debug, env=env)
    except ConfigError as error:
        return refuse(error)
    except CheckpointError as error:
        print(escaped(f"sebulba: CheckpointError: {error}"), file=sys.stderr)
        return EXIT_CHECKPOINT
    except EnvironmentFault as error:
        print(escaped(f"sebulba: {describe_error(error)}. {ENV_FLAG}"), file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
