"""The default name of a run directory."""

import datetime

from sebulba.config.schema import Config


def default_run_dir(config: Config) -> str:
    """Return `runs/<agent>-<environment>-<date and time>`."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = f"{config.agent.name}-{config.env.id}".replace("/", "-").replace(":", "-")
    return f"runs/{names}-{now}"
