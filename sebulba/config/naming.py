"""The default name of a run directory."""

import datetime
import itertools
import os

from sebulba.config.schema import Config


def default_run_dir(config: Config) -> str:
    """Return `runs/<agent>-<environment>-<date and time>`, which does not exist yet."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = f"{config.agent.name}-{config.env.id}".replace("/", "-").replace(":", "-")
    name = f"runs/{names}-{now}"
    # Two runs of one process may start in the same second.
    others = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], others) if not os.path.exists(each))
