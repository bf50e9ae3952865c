"""A check from its config to its exit code."""

import pathlib
import sys

import jax

from sebulba.config import Config
from sebulba.errors import ConfigError
from sebulba.exit_codes import EXIT_CONFIG, EXIT_DONE, EXIT_FAILED
from sebulba.tools.check.report import print_report, write_report
from sebulba.tools.check.suite import check


def run_check(config: Config, json_path: pathlib.Path | None = None) -> int:
    """Checks what `config` describes, prints the table, and returns the process's exit code.

    Args:
        config: of a run.
        json_path: where the results go as JSON too.
    """
    if config.devices.actor is None and config.devices.learner is None:
        # Two, to compare one learner device with several; before JAX starts its backends.
        jax.config.update("jax_num_cpu_devices", 2)
    try:
        report = check(config)
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    print_report(report, f"{config.agent.name} on {config.env.suite} {config.env.id}", sys.stdout)
    if json_path is not None:
        write_report(report, json_path)
    return EXIT_FAILED if report.has_failures else EXIT_DONE
