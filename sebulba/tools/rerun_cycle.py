"""Rerun a repeatable run to a learner cycle, and show the batch that the cycle takes."""

import dataclasses
import pathlib
import sys
from typing import Any

import jax
import numpy as np
import rich.console
import rich.table

from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.process import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DONE
from sebulba.ring.make import made_ring
from sebulba.ring.records import Item
from sebulba.ring.ring import Ring
from sebulba.run.resume import resume
from sebulba.run.training import use_compilation_cache
from sebulba.run.warm_start import InitialNetworks
from sebulba.storage.checkpoints.manifest import flatten
from sebulba.storage.checkpoints.restore import CheckpointError, steps_in
from sebulba.storage.run_dir import CHECKPOINTS, CONFIG


def rerun_to_cycle(
    run_dir: pathlib.Path, cycle: int, *, dump: pathlib.Path | None, debug: bool
) -> int:
    """Rerun up to the update of a learner cycle, show its batch, and return the exit code.

    Args:
        run_dir: of the run, which is not changed.
        cycle: learner cycle, from 0.
        dump: file for the batch as arrays, `.npz`; None: none.
        debug: stop in the debugger before the cycle is learned from.
    """
    try:
        config = _repeatable(load_config(str(run_dir / CONFIG)))
        use_compilation_cache()
        with made_ring(config, begin_with=InitialNetworks(config)) as ring:
            _bring_before(ring, config, run_dir / CHECKPOINTS, cycle)
            items = ring.act_in_turn()
            show_batch(items, cycle)
            if dump is not None:
                arrays: Any = _arrays(items)
                np.savez(dump, **arrays)
                print(f"wrote {dump}")
            if debug:
                breakpoint()  # `items` is the batch; `ring.learn(items)` learns from it.
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except CheckpointError as error:
        print(f"sebulba: CheckpointError: {error}", file=sys.stderr)
        return EXIT_CHECKPOINT
    return EXIT_DONE


def _repeatable(config: Config) -> Config:
    if config.learner.policy_lag is None and config.run.mode != "serial":
        raise ConfigError(
            "learner.policy_lag: expected a number of learner cycles, got null; a free-running run"
            " is not repeatable"
        )
    return dataclasses.replace(config, run=dataclasses.replace(config.run, mode="serial"))


def _bring_before(ring: Ring, config: Config, checkpoints: pathlib.Path, cycle: int) -> None:
    """Bring a new ring to the point at which it has learned from all cycles before `cycle`."""
    are_stored = all(actor.carry.env_state is not None for actor in ring.actors)
    can_resume = are_stored or config.checkpoint.exact_reset_cycles is not None
    steps = [step for step in steps_in(checkpoints) if step <= cycle]
    if can_resume and steps:
        resumed = resume(ring, checkpoints, steps[-1])
        if resumed.remapping is not None:
            raise ConfigError(f"--to-cycle: expected a run on one host, got {resumed.remapping}")
        print(resumed)
    ring.publish()
    while ring.learner.num_cycles < cycle:
        if ring.end.goal:
            raise ConfigError(
                f"--to-cycle: expected at most {ring.learner.num_cycles}, after which the run"
                f" reached its goal, got {cycle}"
            )
        ring.learn(ring.act_in_turn())


def show_batch(items: list[Item], cycle: int) -> None:
    """Print the range of every leaf of a batch, and where its largest element is."""
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = rich.table.Table(title=f"batch of learner cycle {cycle}")
    for column in ("actor", "version", "leaf", "minimum", "maximum", "NaN", "infinite", "largest"):
        table.add_column(column, justify="left" if column in ("leaf", "largest") else "right")
    for item in items:
        for path, leaf in flatten(item.unroll.trajectory).items():
            if not jax.numpy.issubdtype(leaf.dtype, np.number):
                continue
            array = np.asarray(leaf).astype(np.float64)
            magnitude = np.where(np.isnan(array), np.inf, np.abs(array))
            row, env, *_ = np.unravel_index(int(np.argmax(magnitude)), array.shape)
            is_finite = bool(np.isfinite(array).all())
            table.add_row(
                str(item.info.actor_id),
                str(item.info.policy_version),
                path,
                f"{np.nanmin(array):.4g}",
                f"{np.nanmax(array):.4g}",
                f"{int(np.isnan(array).sum()):,}",
                f"{int(np.isinf(array).sum()):,}",
                f"row {row}, env {env}",
                style=None if is_finite else "bold red",
            )
    console.print(table)


def _arrays(items: list[Item]) -> dict[str, np.ndarray]:
    return {
        f"actor {item.info.actor_id}, trajectory {item.info.sequence_number}: {path}": np.asarray(
            leaf
        )
        for item in items
        for path, leaf in flatten(item.unroll.trajectory).items()
    }
