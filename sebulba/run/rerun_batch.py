"""Rerun a run up to a learner cycle, and show the batch that the cycle takes."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import rich.table

from sebulba.comparison.starts import resumes_before
from sebulba.config import Config
from sebulba.config.loading import load_config
from sebulba.config.validation import check_repeatable
from sebulba.errors import ConfigError
from sebulba.ring.make import made_ring
from sebulba.ring.records import Delivery
from sebulba.ring.ring import Ring
from sebulba.run.rerun_start import make_console, use_kernels_of
from sebulba.run.resume import resume
from sebulba.run.warm_start import InitialNetworks
from sebulba.storage.checkpoints.manifest import flatten
from sebulba.storage.checkpoints.restore import steps_in
from sebulba.storage.names import CHECKPOINTS, CONFIG
from sebulba.storage.run_dir import read_run_json
from sebulba.toolkit.frame_stack import with_stacks


def rerun_to_cycle(
    run_dir: pathlib.Path,
    cycle: int,
    *,
    dump: pathlib.Path | None,
    debug: bool,
    env: Sequence[str],
) -> None:
    """Rerun a repeatable run up to the update of a learner cycle, and show its batch."""
    config = load_config(str(run_dir / CONFIG), env)
    check_repeatable(config)
    process = read_run_json(run_dir)
    resumes = resumes_before(process, cycle)
    use_kernels_of(config, (resumes or [process])[-1])
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, mode="serial"))
    source = config.init_from if config.resume is None else None
    initial_networks = InitialNetworks(source, mismatch=config.init_mismatch)
    with made_ring(config, initial_networks=initial_networks) as ring:
        _bring_before(ring, config, run_dir / CHECKPOINTS, cycle, resumes=resumes)
        deliveries = ring.act_in_turn()
        _show_batch(deliveries, cycle)
        if dump is not None:
            arrays: dict[str, Any] = {}
            for delivery in deliveries:
                info, trajectory = delivery.info, with_stacks(delivery.unroll.trajectory)
                for path, leaf in flatten(trajectory).items():
                    name = f"actor {info.actor_id}, trajectory {info.sequence_number}: {path}"
                    arrays[name] = np.asarray(leaf)
            with open(dump, "wb") as file:  # Of a name without .npz, NumPy writes another file.
                np.savez(file, **arrays)
            print(f"wrote {dump}")
        if debug:
            breakpoint()  # `deliveries` is the batch; `ring.learn(deliveries)` learns from it.


def _bring_before(
    ring: Ring,
    config: Config,
    checkpoints: pathlib.Path,
    cycle: int,
    *,
    resumes: Sequence[Mapping[str, Any]],
) -> None:
    """Bring a new ring to the point at which it has learned from all cycles before `cycle`.

    Args:
        ring: a new one.
        config: the run's settings.
        checkpoints: those of the run.
        cycle: a learner cycle, from 0.
        resumes: how the run was resumed before this cycle.

    Raises:
        ConfigError: the run did something else before it reached this cycle.
    """
    are_stored = all(actor.point.carry.env_state is not None for actor in ring.actors)
    can_resume = are_stored or config.checkpoint.exact_reset_cycles is not None
    steps = [step for step in steps_in(checkpoints) if step <= cycle] if can_resume else []
    first = steps[-1] if steps else 0
    for each in resumes:
        if each.get("level") == "restart" and each["at"] > first:
            raise ConfigError(
                f"--to-cycle: expected less than {each['at']}, at which the run was resumed with"
                f" new episodes, got {cycle}; what it did after that cannot be repeated"
            )
    if steps:
        resumed = resume(ring, checkpoints, first)
        if resumed.remapping is not None:
            raise ConfigError(f"--to-cycle: expected a run on one host, got {resumed.remapping}")
        print(resumed)
    ring.publish()
    while ring.learner.num_cycles < cycle:
        if ring.end.goal:
            goal = "the goal of the run's config.yaml" if resumes else "its goal"
            raise ConfigError(
                f"--to-cycle: expected at most {ring.learner.num_cycles}, after which the run"
                f" reached {goal}, got {cycle}"
                + ("; a resume with a later goal cannot be repeated" if resumes else "")
            )
        ring.learn(ring.act_in_turn())


def _show_batch(deliveries: list[Delivery], cycle: int) -> None:
    """Print the range of each leaf of numbers in a batch, and where its largest element is."""
    table = rich.table.Table(title=f"batch of learner cycle {cycle}")
    for column in ("actor", "version", "leaf", "minimum", "maximum", "NaN", "infinite", "largest"):
        table.add_column(column, justify="left" if column in ("leaf", "largest") else "right")
    for delivery in deliveries:
        for path, leaf in flatten(with_stacks(delivery.unroll.trajectory)).items():
            if not leaf.size or not jnp.issubdtype(leaf.dtype, np.number):
                continue
            array = np.asarray(leaf).astype(np.float64)
            magnitude = np.where(np.isnan(array), np.inf, np.abs(array))
            row, env, *_ = np.unravel_index(int(np.argmax(magnitude)), array.shape)
            is_finite = bool(np.isfinite(array).all())
            table.add_row(
                str(delivery.info.actor_id),
                str(delivery.info.policy_version),
                path,
                f"{np.nanmin(array):.4g}",
                f"{np.nanmax(array):.4g}",
                f"{int(np.isnan(array).sum()):,}",
                f"{int(np.isinf(array).sum()):,}",
                f"row {row}, env {env}",
                style=None if is_finite else "bold red",
            )
    make_console().print(table)
