"""Names of run directories: the default, and paths with `~` and variables."""

import datetime
import os
import pathlib
import secrets

from sebulba.config.schema import Config


def default_run_dir(config: Config) -> str:
    """Return `runs/<agent>-<environment>-<date and time>-<random>`, another one at each call.

    Runs that a script starts in the same second, on any machine, have different names.
    """
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = f"{config.agent.name}-{config.env.id}".replace("/", "-").replace(":", "-")
    return f"runs/{names}-{now}-{secrets.token_hex(3)}"


def expanded(path: str) -> pathlib.Path:
    """Return a path with environment variables and `~` replaced, as `run_dir` may have them."""
    return pathlib.Path(os.path.expandvars(path)).expanduser()
