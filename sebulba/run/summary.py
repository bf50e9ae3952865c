"""The results of a run, as `summary.json` and as lines on the console."""

import pathlib
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np

from sebulba.config import RunConfig
from sebulba.devices.xla_flags import describe_xla_flags
from sebulba.errors import describe_error
from sebulba.ring.clocks import (
    BUSY_ACTING,
    UPDATE,
    WAIT_FOR_NETWORKS,
    WAIT_FOR_QUEUE,
    WAIT_FOR_TRAJECTORIES,
    Shares,
    bottleneck,
)
from sebulba.ring.progress import Progress
from sebulba.ring.ring import Ring
from sebulba.ring.run_end import RunEnd
from sebulba.run.remote_actors import Numbers
from sebulba.storage.checkpoints.manifest import crc32_of, flatten
from sebulba.storage.run_dir import resume_command

_REASONS = {
    "stop_at_return": "the mean return reached {:,g}",
    "total_episodes": "the episodes reached {:,}",
    "total_learner_cycles": "the learner cycles reached {:,}",
    "total_env_steps": "the env steps reached {:,}",
}
"""Why a run has ended, by the setting whose goal it has reached."""


def summarize(
    ring: Ring,
    run: RunConfig,
    path: pathlib.Path,
    *,
    all_reduce: dict[str, float],
    remote_actors: Mapping[int, Numbers],
    dropped_rows: Mapping[str, int],
    networks_crc32: str | None,
) -> dict[str, Any]:
    """Return the contents of `summary.json`.

    Args:
        ring: a ring that has ended.
        run: the goal of the run.
        path: the run directory.
        all_reduce: columns of the gradients' all-reduces; empty with one device.
        remote_actors: the numbers of each; empty without any.
        dropped_rows: the rows of metrics that each writer dropped; empty if none did.
        networks_crc32: the checksum of the last networks; None: not known.
    """
    progress = ring.progress
    return {
        "status": ring.end.status,
        "reason": describe_reason(ring.end, progress, run),
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
        "remote_actors": remote_actors or None,
        "dropped_rows": dropped_rows or None,
        "networks_crc32": networks_crc32,
        "memory_plan": ring.programs.memory_plan.describe(),
        "compiler_flags": describe_xla_flags() or None,
        "resume_command": resume_command(path),
    }


def networks_crc32(ring: Ring) -> str | None:
    """Return the CRC32 of all leaves of the learner's networks; None within a learner cycle."""
    if not ring.is_between_cycles:
        return None
    leaves = flatten(ring.learner.state.networks).values()
    return crc32_of(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))


def describe_reason(end: RunEnd, progress: Progress, run: RunConfig) -> str:
    """Return why a run has ended."""
    if end.failure is not None and not end.interrupted_while:
        return describe_error(end.failure)
    if end.is_interrupted:
        when = f" while {end.interrupted_while}" if end.interrupted_while else ""
        return f"stopped by {signal.Signals(end.stopped_by or 0).name}{when}"
    if not progress.goals_reached:
        return "a callback ended the run"
    goal = progress.goals_reached[0]
    return _REASONS[goal].format(getattr(run, goal))


def describe_result(summary: dict[str, Any], *, return_window: int) -> list[str]:
    """Return the lines on the console of a run that is done."""
    final, episodes = summary["final_episode_return_mean"], summary["episodes"]
    newest = summary["episode_return_last"]
    if final is None:
        result = f"too few episodes for a mean return: {episodes:,}"
    else:
        over = f"over {min(episodes, return_window):,} episodes"
        best = summary["best_episode_return_mean"]
        result = f"mean return in training {final:,.1f} {over}, best {best:,.1f}"
    if episodes < return_window and newest is not None:
        # The mean is of early episodes too, so it is below what the policy can do now.
        early = "" if final is None else "; those are all so far, the first ones included"
        result += f"{early}; the newest has {newest:,.1f}"
    return [f"done: {summary['reason']}", f"result: {result}", f"speed: {_describe_speed(summary)}"]


def describe_early_end(summary: dict[str, Any], path: pathlib.Path) -> str:
    """Return the line on the console of a run that has ended before its goal."""
    final, best = summary["final_episode_return_mean"], summary["best_episode_return_mean"]
    result = "no mean return yet" if final is None else f"return {final:,.1f}, best {best:,.1f}"
    return (
        f"{summary['status']}: {summary['updates']:,} updates,"
        f" {_describe_speed(summary)}; {result}; {path}"
    )


def _describe_speed(summary: dict[str, Any]) -> str:
    rate, startup_s = summary["steps_per_second"], summary["startup_s"]
    text = f"{summary['env_steps']:,} env steps in {summary['wall_time_s']:,.1f} s"
    if rate is None:
        return text
    return f"{text}, {rate:,.0f} env steps/s after {startup_s:.1f} s of start-up"


def describe_bottleneck(shares: Shares, *, all_reduce: float = 0.0) -> str:
    """Return the bottleneck of a run in one line, with the config keys to change.

    Args:
        shares: the shares of the threads' time.
        all_reduce: the share of the updates' time in which learner devices average gradients.
    """
    actor, learner = shares.get("actor", {}), shares.get("learner", {})
    update = f"{learner.get(UPDATE, 0.0):.0%}"
    learner_waits = f"{learner.get(WAIT_FOR_TRAJECTORIES, 0.0):.0%}"
    networks_waits = actor.get(WAIT_FOR_NETWORKS, 0.0)
    actor_waits = f"{networks_waits + actor.get(WAIT_FOR_QUEUE, 0.0):.0%}"
    match bottleneck(shares, all_reduce=all_reduce):
        case None:
            return "too short to find the bottleneck"
        case "one program":
            return f"acting and learning are one program ({update} of the time): use faster devices"
        case "taking turns":
            return (
                f"actors and learner wait for each other ({networks_waits:.0%} and {learner_waits}"
                " of their time): a larger learner.policy_lag is faster, and may cost env steps"
            )
        case "actor-bound":
            busiest = max(BUSY_ACTING, key=lambda activity: actor.get(activity, 0.0))
            return (
                f"actor-bound ({busiest}: {actor[busiest]:.0%} of the actors' time; the learner"
                f" waits {learner_waits} of its time): increase actor.threads_per_device,"
                " actor.num_envs or devices.actor"
            )
        case "all-reduce-bound":
            return (
                f"bound by the connection of the learner devices (averaging gradients:"
                f" {all_reduce:.0%} of the updates' time): fewer and larger updates, by"
                " actor.num_envs or learner.trajectories_per_cycle, or learner.gradients: bfloat16"
            )
        case "learner-bound":
            return (
                f"learner-bound (update: {update} of the learner's time; the actors wait"
                f" {actor_waits} of their time): add devices.learner, or increase actor.num_envs or"
                " learner.trajectories_per_cycle"
            )
        case "balanced":
            return "actors and learner are balanced: add devices for both"
