"""Runs that are to fail, in this process and in others."""

import dataclasses
import json
import threading

from sebulba.config import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearnerConfig,
    RunConfig,
)
from tests.disturbances import before
from tests.toys import ToyConfig

BREAKING = "tests.faults.breaking"
LONG_S = 60.0  # a process that hangs takes an hour
ENDLESS = """
env: {suite: jax, id: Catch-v0}
agent: {name: 'tests.toys:ToyAgent'}
devices: {actor: [0], learner: [0]}
actor: {num_envs: 4, trajectory_length: 5}
checkpoint: {interval_s: 0}
run: {total_env_steps: 1_000_000_000, log_interval_env_steps: 1_000}
"""
"""A run that saves after every learner cycle, until something ends it."""


def make_config(run_dir, *, agent="tests.toys:ToyAgent", updates_per_cycle=1, **sections):
    """Returns a lock-step run of Catch by a toy agent; `sections` are changes to its sections."""
    config = Config(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(num_envs=4, trajectory_length=5),
        learner=LearnerConfig(policy_lag=0),
        run=RunConfig(total_env_steps=400, log_interval_env_steps=100),
        checkpoint=CheckpointConfig(interval_s=None),
        agent=ToyConfig(name=agent, updates_per_cycle=updates_per_cycle),
        run_dir=str(run_dir),
    )
    changes = {
        name: dataclasses.replace(getattr(config, name), **changes)
        for name, changes in sections.items()
    }
    return dataclasses.replace(config, **changes)


def last_line(capsys):
    """Returns the last line on stderr so far."""
    return capsys.readouterr().err.splitlines()[-1]


def summary_of(run_dir):
    """Returns `summary.json`."""
    return json.loads((run_dir / "summary.json").read_text())


def hang_at(monkeypatch, step, call, release, announce=None):
    """Makes an `act` or `update` hang when it is taken for the `call`-th time; returns the event.

    The thread's clock then shows the activity `announce`.
    """
    calls, hangs = [], threading.Event()

    def hang(owner):
        calls.append(None)
        if len(calls) == call:
            if announce is not None:
                owner.clock.begin(announce)
            hangs.set()
            release.wait()

    before(step, hang, setattr=monkeypatch.setattr)
    return hangs
