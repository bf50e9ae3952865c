"""Measure the parts of a config, propose settings, and verify their predicted speed."""

import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any

import jax
import rich.box
import rich.console
import rich.table

from sebulba.config import Config
from sebulba.config.run_spec import queue_slots_per_actor
from sebulba.devices.split import plan_devices
from sebulba.errors import ConfigError
from sebulba.process import EXIT_CONFIG, EXIT_DONE
from sebulba.run.assembly import assemble
from sebulba.run.lifecycle import prepare_process
from sebulba.run.modes import run
from sebulba.tools.plan.measuring import measure_parts
from sebulba.tools.plan.model import Cost, Parts, Prediction, predict, scaled_update
from sebulba.tools.plan.proposing import Candidate, Setting, candidates, propose

_WIDTH = 120  # columns of output that goes to a file or a pipe
_ENV_FACTORS = (1, 2, 4)  # multiples of actor.num_envs to measure


def plan(config: Config, *, seconds: float, verify: bool, json_path: pathlib.Path | None) -> int:
    """Print the plan for a config, and return the process's exit code."""
    prepare_process(config)
    console = rich.console.Console()
    if not console.is_terminal:
        console.width = _WIDTH
    try:
        result = make_plan(config, seconds=seconds)
        for line in describe(result):
            console.print(line, soft_wrap=isinstance(line, str), highlight=False)
        if verify:
            _verify(result, config, seconds=seconds, console=console)
    except ConfigError as error:
        print(f"sebulba: {error}", file=sys.stderr)
        return EXIT_CONFIG
    if json_path is not None:
        json_path.write_text(json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    return EXIT_DONE


@dataclasses.dataclass(kw_only=True)
class Plan:
    """Measured times, and the settings predicted from them."""

    parts: dict[int, Parts]  # keys: actor.num_envs
    given: Candidate
    proposed: Candidate
    # Faster, but changes the agent's batch size, so the user decides; None: no faster setting.
    with_more_envs: Candidate | None
    measured: dict[str, float] = dataclasses.field(default_factory=dict)  # env steps/s


def make_plan(config: Config, *, seconds: float) -> Plan:
    """Measure the config with 1, 2 and 4 times its environments, and predict other settings.

    Raises:
        ConfigError: the config cannot run.
    """
    num_devices, num_cores = len(jax.local_devices()), len(os.sched_getaffinity(0))
    given = given_setting(config)
    everything = tuple(range(num_devices))
    parts = {
        num_envs: measure_parts(_on(config, (0,), (0,), num_envs), seconds=seconds)
        for num_envs in (factor * config.actor.num_envs for factor in _ENV_FACTORS)
    }
    updates_on_all: dict[int, Cost] = {
        num_envs: measure_parts(_on(config, (0,), everything, num_envs), seconds=seconds).update
        for num_envs in parts
        if num_devices > 1 and num_envs % num_devices == 0
    }

    def parts_on(measured: Parts, num_learner_devices: int) -> Parts:
        num_envs = measured.env_steps // config.actor.trajectory_length
        if num_learner_devices == 1 or num_envs not in updates_on_all:
            return measured
        update = scaled_update(
            measured.update,
            updates_on_all[num_envs],
            num_all=num_devices,
            num_devices=num_learner_devices,
        )
        return dataclasses.replace(measured, update=update)

    found = candidates(
        parts,
        parts_on,
        num_devices=num_devices,
        num_cores=num_cores,
        policy_lag=config.learner.policy_lag,
    )
    prediction = predict(
        parts_on(parts[given.num_envs], len(given.learner_devices)),
        num_actors=given.num_actors,
        num_cores=num_cores,
        is_lock_step=config.learner.policy_lag == 0,
    )
    proposed = propose(found, given.num_envs)
    fastest = propose(found, found[0].setting.num_envs)
    return Plan(
        parts=parts,
        given=Candidate(setting=given, prediction=prediction),
        proposed=proposed,
        with_more_envs=None if fastest.setting.num_envs == given.num_envs else fastest,
    )


def given_setting(config: Config) -> Setting:
    """Return the setting of a config."""
    devices = jax.local_devices()
    chosen = plan_devices(config.devices, devices)
    num_actors = config.actor.threads_per_device * len(chosen.actor)
    return Setting(
        threads_per_device=config.actor.threads_per_device,
        num_envs=config.actor.num_envs,
        queue_slots_per_actor=queue_slots_per_actor(config.learner, num_actors),
        actor_devices=tuple(devices.index(device) for device in chosen.actor),
        learner_devices=tuple(devices.index(device) for device in chosen.learner),
    )


def with_setting(config: Config, setting: Setting) -> Config:
    """Return the config with another setting."""
    config = _on(config, setting.actor_devices, setting.learner_devices, setting.num_envs)
    return dataclasses.replace(
        config,
        actor=dataclasses.replace(config.actor, threads_per_device=setting.threads_per_device),
        learner=dataclasses.replace(
            config.learner, queue_slots_per_actor=setting.queue_slots_per_actor
        ),
    )


def measured_rate(config: Config, *, seconds: float) -> float:
    """Run a config and return the env steps that it learns from per second, start-up excluded.

    The run ends after `seconds`, or earlier if the config says so.
    """
    ring = assemble(config, write_row=lambda row: None)
    steady_since: float | None = None

    def stop_when_due() -> None:
        nonlocal steady_since
        if steady_since is None and ring.progress.startup_s is not None:
            steady_since = time.monotonic()
        if steady_since is not None and time.monotonic() - steady_since >= seconds:
            ring.run_end.goal = True

    try:
        run(ring, mode=config.run.mode, on_poll=stop_when_due)
    finally:
        ring.close_environments()
    return ring.progress.steps_per_second or 0.0


def _on(config: Config, actor: tuple[int, ...], learner: tuple[int, ...], num_envs: int) -> Config:
    return dataclasses.replace(
        config,
        devices=dataclasses.replace(config.devices, actor=actor, learner=learner),
        actor=dataclasses.replace(config.actor, num_envs=num_envs),
    )


def _verify(result: Plan, config: Config, *, seconds: float, console: Any) -> None:
    for name, candidate in (("given", result.given), ("proposed", result.proposed)):
        rate = measured_rate(with_setting(config, candidate.setting), seconds=3 * seconds)
        result.measured[name] = rate
        predicted = candidate.prediction.env_steps_per_s
        console.print(
            f"{name} settings: predicted {predicted:,.0f} env steps/s, measured {rate:,.0f}"
            f" ({rate / predicted:.0%} of the prediction)"
        )


def describe(result: Plan) -> list[Any]:
    """Return the lines and tables to print."""
    lines: list[Any] = [_parts_table(result.parts), _candidates_table(result)]
    lines.append(f"Flags for the proposed settings: {result.proposed.setting.flags}")
    if result.with_more_envs is not None:
        lines.append(
            "Flags for more environments, which enlarge the agent's batch and may need another"
            f" learning rate: {result.with_more_envs.setting.flags}"
        )
    return lines


def _parts_table(parts: dict[int, Parts]) -> rich.table.Table:
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD,
        title="measured time in ms, each part running alone (in brackets: CPU time)",
    )
    for heading in ("envs", "act cycle", "its environment", "its transfer", "learner cycle"):
        table.add_column(heading, justify="right")
    for num_envs, each in parts.items():
        costs = (each.act, each.environment, each.transfer, each.update)
        table.add_row(
            str(num_envs),
            *(f"{1e3 * cost.wall_s:,.2f} ({1e3 * cost.core_s:,.2f})" for cost in costs),
        )
    return table


def _candidates_table(result: Plan) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, title="predicted speed")
    headings = ("settings", "actors", "envs", "queue slots", "actor : learner devices")
    for heading in (*headings, "env steps/s", "bottleneck"):
        table.add_column(heading, no_wrap=True)
    rows = {
        "given": result.given,
        "proposed": result.proposed,
        "with more envs": result.with_more_envs,
    }
    for name, candidate in rows.items():
        if candidate is not None:
            table.add_row(name, *_cells(candidate.setting, candidate.prediction))
    return table


def _cells(setting: Setting, prediction: Prediction) -> list[str]:
    shared = set(setting.actor_devices) & set(setting.learner_devices)
    return [
        f"{setting.num_actors}",
        f"{setting.num_envs}",
        f"{setting.queue_slots_per_actor}",
        f"{len(setting.actor_devices)} : {len(setting.learner_devices)}"
        + (f", {len(shared)} shared" if shared else ""),
        f"{prediction.env_steps_per_s:,.0f}",
        prediction.bound,
    ]
