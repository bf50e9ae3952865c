"""The plan of a run on many hosts, as a Markdown table."""

from collections.abc import Sequence

from benchmarks.scaling_model_prediction import BEND, Host, Network, bend, scale
from sebulba.config import Config
from sebulba.devices.memory_plan import format_bytes


def describe_plan(
    host: Host, network: Network, config: Config, *, num_hosts: int, all_hosts: Sequence[int]
) -> str:
    """Return a table of what a run on `num_hosts` needs and how fast it is.

    Args:
        host: the measurements of one host.
        network: the network between the hosts.
        config: the config of the run.
        num_hosts: number of hosts to plan for.
        all_hosts: numbers of hosts among which to look for the bend of the speed curve.
    """
    (alone,) = scale(host, network, [1])
    (point,) = scale(host, network, [num_hosts])
    bent = bend(scale(host, network, sorted({*all_hosts, num_hosts})))
    trajectory_steps = host.parts.env_steps * host.parts.trajectories_per_cycle
    interval_s = config.checkpoint.interval_s
    rows = {
        "actors": f"{host.num_actors} a host, {num_hosts * host.num_actors:,} of all",
        "environments": (
            f"{host.num_actors * host.num_envs:,} a host,"
            f" {num_hosts * host.num_actors * host.num_envs:,} of all"
        ),
        "env steps in a learner cycle": (
            f"{trajectory_steps:,} of a host, {num_hosts * trajectory_steps:,} of all"
        ),
        "all-reduce": (
            f"{host.gradient_bytes:,} bytes, {1e3 * point.all_reduce_s:.3f} ms,"
            f" {host.updates_per_cycle:g} in a learner cycle;"
            f" {point.gbit_per_s:.3g} Gbit/s of a host"
        ),
        "learner cycle": (
            f"{1e3 * point.update_s:.2f} ms; of one host alone {1e3 * alone.update_s:.2f} ms"
        ),
        "env steps/s": (
            f"{point.env_steps_per_s:,.0f}; {point.efficiency:.2f} of {num_hosts} times one host's"
            f" {alone.env_steps_per_s:,.0f}; bottleneck: {point.bound}"
        ),
        "bend": (
            f"below {BEND:.0%} of linear from {bent} hosts on"
            if bent
            else f"none up to {max([*all_hosts, num_hosts])} hosts"
        ),
        "deque of a host": (
            f"{host.queue_slots} trajectories,"
            f" {format_bytes(host.queue_slots * host.trajectory_bytes)}"
        ),
        "checkpoint": (
            f"{format_bytes(host.state_bytes)} of a host's learner,"
            f" {format_bytes(num_hosts * host.state_bytes)} of all, {config.checkpoint.keep} kept; "
            + ("at the end only" if interval_s is None else f"every {interval_s:g} s, which is")
            + ("" if interval_s is None else " the most that a restart loses")
        ),
        "whole run": (
            f"{config.run.total_env_steps:,} env steps in"
            f" {config.run.total_env_steps / point.env_steps_per_s:,.0f} s, start-up excluded"
        ),
    }
    heading = f"{config.agent.name} on {config.env.id}, {num_hosts} hosts"
    lines = [f"| {heading} | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows.items())]
    return "\n".join(lines)
