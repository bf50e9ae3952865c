"""The lines that a run begins with: what acts and learns where, until when, and hints."""

from collections.abc import Iterator, Sequence

import jax

from sebulba.config import Config
from sebulba.devices.memory import describe_costly_network
from sebulba.devices.roles import Roles
from sebulba.devices.small_networks import describe_small_network
from sebulba.hosts import connection as hosts
from sebulba.ring.local_collector import LocalCollector
from sebulba.ring.programs import actor_devices_of
from sebulba.ring.ring import Ring


def describe_run(config: Config, devices: Roles, defaults: str | None) -> Iterator[str]:
    """Yield lines of text: agent and task, what acts and learns where, and until when.

    Args:
        config: the run's settings.
        devices: this host's.
        defaults: a line about the defaults that suit the task; None: no default was replaced.
    """

    def names(devices: Sequence[jax.Device]) -> str:
        kinds = sorted({device.platform for device in devices})
        of_kinds = ((kind, [d.id for d in devices if d.platform == kind]) for kind in kinds)
        return ", ".join(f"{kind} {', '.join(map(str, ids))}" for kind, ids in of_kinds)

    yield f"agent: {config.agent.name} on {config.env.suite} {config.env.id}"
    if defaults is not None:
        yield defaults
    num_actors, num_envs = len(actor_devices_of(config, devices)), config.actor.num_envs
    acting = (
        f"{num_actors} actor{'s' * (num_actors > 1)} × {num_envs} environment{'s' * (num_envs > 1)}"
    )
    roles = f"{names(devices.actor)} for acting ({acting})"
    if set(devices.actor) == set(devices.learner):
        roles += " and learning"
    else:
        roles += f", {names(devices.learner)} for learning"
    if hosts.are_several():
        roles += f", on each of {jax.process_count()} hosts"
    yield f"devices: {roles}"
    unused = [d for d in jax.local_devices() if d not in {*devices.actor, *devices.learner}]
    if config.devices.learner is None and unused:
        yield (
            f"warning: without a role: {names(unused)}. actor.num_envs is no multiple of more than"
            f" {len(devices.learner)} learner devices; change it, or set devices.actor"
        )
    goals = [f"{config.run.total_env_steps:,} env steps"]
    if config.run.total_learner_cycles is not None:
        goals.insert(0, f"{config.run.total_learner_cycles:,} learner cycles")
    if config.run.total_episodes is not None:
        goals.insert(0, f"{config.run.total_episodes:,} episodes")
    if config.run.stop_at_return is not None:
        window = config.run.return_window
        goals.insert(0, f"mean return {config.run.stop_at_return:,g} over {window} episodes")
    yield f"goal: {', or '.join(goals)}"


def describe_networks(ring: Ring, config: Config, devices: Roles) -> Iterator[str]:
    """Yield lines of text: what an env step is, and whether other settings are probably faster.

    Args:
        ring: a new one.
        config: the run's settings.
        devices: this host's.
    """
    collector, networks = ring.actors[0].collector, ring.learner.state.networks
    spec = collector.spec
    if spec.num_players > 1:
        groups = len(config.env.groups)
        networks_of = f"networks for {groups} groups" if groups else "shared networks"
        yield (
            f"players: {spec.num_players} in each environment, with {networks_of};"
            " an env step is one player's"
        )
    if costly := describe_costly_network(config.agent, spec, networks):
        yield costly
    if config.devices.actor is None and isinstance(collector, LocalCollector):
        hint = describe_small_network(
            networks,
            actor_devices=devices.actor,
            num_envs=config.actor.num_envs * spec.num_players,
            is_on_host=collector.act_within is None,
        )
        if hint is not None:
            yield hint
