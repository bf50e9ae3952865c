"""The default name of a run directory."""

import datetime
import secrets

from sebulba.config.schema import Config


def default_run_dir(config: Config) -> str:
    """Return `runs/<agent>-<environment>-<date and time>-<random>`, another one at each call.

    Runs that a script starts in the same second, on any machine, have different names.
    """
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = f"{config.agent.name}-{config.env.id}".replace("/", "-").replace(":", "-")
    return f"runs/{names}-{now}-{secrets.token_hex(3)}"
