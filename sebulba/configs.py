"""List the configs that come with Sebulba, or copy one: `python -m sebulba.configs`."""

import argparse
import pathlib
import sys

from sebulba.config.shipped import copy_config, describe, shipped_configs
from sebulba.errors import ConfigError, refuse
from sebulba.process import program, run_command


def main() -> None:
    """Print a line for each config, or copy one to the working directory."""
    parser = argparse.ArgumentParser(
        prog=program("configs"),
        description=(
            "List the configs that come with Sebulba. Every command that takes a config takes the"
            " name of one of them as well as a file."
        ),
    )
    parser.add_argument(
        "--copy", metavar="NAME", help="copy the config NAME to the working directory, to edit it"
    )
    parser.add_argument("name", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.name is not None:
        parser.error(f"to copy a config to the working directory: --copy {arguments.name}")
    name = arguments.copy
    if name is None:
        shipped = shipped_configs()
        width = max(map(len, shipped), default=0)
        print("\n".join(f"{each:{width}}  {describe(path)}" for each, path in shipped.items()))
        return
    try:
        target = copy_config(name, pathlib.Path())
    except ConfigError as error:
        sys.exit(refuse(error))
    print(f"wrote {target}; to train with it: {program('train')} {target}")


if __name__ == "__main__":
    run_command(main)
