"""The command `sebulba`: `sebulba NAME …` runs the module `sebulba.NAME`, as `python -m` does.

Imports nothing of a command that is not asked for.
"""

import os
import runpy
import sys

from sebulba import __version__
from sebulba.errors import did_you_mean
from sebulba.process import CALLER_VARIABLE, EXIT_CONFIG, program, run_command

COMMANDS = {
    "train": "train an agent",
    "sweep": "train with several settings and seeds, and compare the results",
    "lag": "measure what acting with older networks costs",
    "evaluate": "evaluate a trained policy, and record videos",
    "export": "export a trained policy that needs JAX and NumPy only",
    "plot": "plot learning curves of runs",
    "configs": "list the configs that come with Sebulba, or copy one",
    "envs": "list environment suites and IDs",
    "check": "check that an agent and an environment work together",
    "rerun": "repeat an update or a learner cycle of a run, to debug it",
    "verify": "repeat a run, and say whether it gives the same bits",
    "diff": "say where two runs part",
    "launch": "run several hosts, on machines of a Ray cluster or on this one",
    "compile": "compile a config's programs for accelerators that are not here",
}
"""What each command does."""


def main() -> None:
    """Run the command that the command line names, and exit with its exit code."""
    run_command(_run)


def _run() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        sys.exit(0 if arguments else EXIT_CONFIG)
    name, *rest = arguments
    if name == "--version":
        print(f"sebulba {__version__}")
        sys.exit(0)
    if name not in COMMANDS:
        print(f"sebulba: there is no command {name}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    # As `python -m` does: a config may name modules of the working directory.
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    # Usage lines, hints and `run.json` name the command as it was called.
    is_installed = not sys.argv[0].endswith("__main__.py")
    os.environ[CALLER_VARIABLE] = "sebulba" if is_installed else "python -m sebulba"
    sys.argv = [program(name), *rest]
    runpy.run_module(f"sebulba.{name}", run_name="__main__")


def _help() -> str:
    commands = [f"  {name:10}{what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: sebulba COMMAND ...",
            "",
            "Reinforcement learning in JAX with actor threads and a learner thread. Begin with:",
            "",
            "  sebulba train impala_cartpole",
            "",
            "commands:",
            *commands,
            "",
            "sebulba COMMAND --help explains a command; sebulba --version prints the version.",
            "Without an installation of the command: python -m sebulba COMMAND ...",
        ]
    )


if __name__ == "__main__":
    main()
