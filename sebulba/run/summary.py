"""The results of a run, as `summary.json` and as the last line on the console."""

import pathlib
from typing import Any

import numpy as np

from sebulba.ring.clocks import (
    ACT,
    ENVIRONMENT,
    INFERENCE,
    TRANSFER,
    UPDATE,
    WAIT_FOR_NETWORKS,
    WAIT_FOR_QUEUE,
    WAIT_FOR_TRAJECTORIES,
    Shares,
)
from sebulba.ring.ring import Ring
from sebulba.storage.checkpoints.manifest import crc32_of, flatten
from sebulba.storage.run_dir import resume_command

_NOTABLE_WAIT = 0.2  # share of a thread's time; shorter waits are noise, not a bottleneck
_NOTABLE_ALL_REDUCE = 0.3  # share of the updates' time


def summarize(ring: Ring, path: pathlib.Path, *, all_reduce: dict[str, float]) -> dict[str, Any]:
    """Return the contents of `summary.json`."""
    progress = ring.progress
    return {
        "status": ring.end.status,
        "env_steps": progress.env_steps,
        "updates": progress.updates,
        "non_finite_updates": ring.learner.num_non_finite_updates,
        "learner_cycles": ring.learner.num_cycles,
        "wall_time_s": progress.wall_time_s,
        "startup_s": progress.startup_s,
        "steps_per_second": progress.steps_per_second,
        "steps_per_second_counts": "env steps learned from, start-up and compilation excluded",
        "episodes": progress.window.num_episodes,
        "episodes_cut": progress.episodes_cut,
        "env_restarts": progress.env_restarts,
        "best_episode_return_mean": progress.window.best_return_mean,
        "final_episode_return_mean": progress.window.return_mean,
        "episode_return_last": progress.window.last_return,
        "time_shares": progress.time_shares.shares(),
        "all_reduce": all_reduce or None,
        "bound_by": describe_bottleneck(
            progress.time_shares.shares(), all_reduce=all_reduce.get("share", 0.0)
        ),
        "ledger": ring.ledger.balance(),
        "networks_crc32": networks_crc32(ring),
        "resume_command": resume_command(path),
    }


def networks_crc32(ring: Ring) -> str | None:
    """Return the CRC32 of all leaves of the learner's networks; None within a learner cycle."""
    if not ring.is_between_cycles:
        return None
    leaves = flatten(ring.learner.state.networks).values()
    return crc32_of(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))


def describe_summary(summary: dict[str, Any], path: pathlib.Path) -> str:
    """Return the run's last line on the console."""

    def number(value: float | None, digits: int = 0) -> str:
        return "unknown" if value is None else f"{value:,.{digits}f}"

    return (
        f"{summary['status']}: {summary['env_steps']:,} env steps,"
        f" {summary['updates']:,} updates in {summary['wall_time_s']:.1f} s;"
        f" {number(summary['steps_per_second'])} env steps/s (start-up and compilation,"
        f" {number(summary['startup_s'], 1)} s, excluded);"
        f" return {number(summary['final_episode_return_mean'], 1)},"
        f" best {number(summary['best_episode_return_mean'], 1)};"
        f" networks {summary['networks_crc32'] or 'unknown'}; {path}"
    )


def describe_bottleneck(shares: Shares, *, all_reduce: float = 0.0) -> str:
    """Return the bottleneck of a run in one line, with the config keys to change.

    `all_reduce` is the share of the updates' time in which learner devices average gradients.
    """
    actor, learner = shares.get("actor", {}), shares.get("learner", {})
    if learner and not actor:
        share = learner.get(UPDATE, 0.0)
        return f"acting and learning are one program ({share:.0%} of the time): use faster devices"
    if not learner:
        return "too short to find the bottleneck"
    learner_waits = learner.get(WAIT_FOR_TRAJECTORIES, 0.0)
    queue_waits = actor.get(WAIT_FOR_QUEUE, 0.0)
    networks_waits = actor.get(WAIT_FOR_NETWORKS, 0.0)
    if networks_waits > max(queue_waits, _NOTABLE_WAIT) and learner_waits > _NOTABLE_WAIT:
        return (
            f"actors and learner wait for each other ({networks_waits:.0%} and"
            f" {learner_waits:.0%} of their time): increase learner.policy_lag"
        )
    if learner_waits >= queue_waits + networks_waits and learner_waits > _NOTABLE_WAIT:
        busiest = max((ACT, ENVIRONMENT, INFERENCE, TRANSFER), key=lambda key: actor.get(key, 0.0))
        return (
            f"actor-bound ({busiest}: {actor[busiest]:.0%} of the actors' time; the learner waits"
            f" {learner_waits:.0%} of its time): increase actor.threads_per_device, actor.num_envs"
            " or devices.actor"
        )
    if queue_waits + networks_waits > _NOTABLE_WAIT and all_reduce > _NOTABLE_ALL_REDUCE:
        return (
            f"bound by the connection of the learner devices (averaging gradients:"
            f" {all_reduce:.0%} of the updates' time): fewer and larger updates, by actor.num_envs"
            " or learner.trajectories_per_cycle, or learner.gradients: bfloat16"
        )
    if queue_waits + networks_waits > _NOTABLE_WAIT:
        return (
            f"learner-bound (update: {learner.get(UPDATE, 0.0):.0%} of the learner's time; the"
            f" actors wait {queue_waits + networks_waits:.0%} of their time): add devices.learner,"
            " or increase actor.num_envs or learner.trajectories_per_cycle"
        )
    return "actors and learner are balanced: add devices for both"
