"""Runs that differ in their seed, one after another in a process: they share programs, only."""

import dataclasses
import gc
import json
import os
import pathlib
import signal

import jax
import pytest

from sebulba.config import LearnerConfig
from sebulba.ring.ring import Observer, Ring
from sebulba.run import preparation, training
from tests.rings import close, make_ring
from tests.run.runs import make_config
from tests.toys import ToyAgent


class TracedAgent(ToyAgent):
    """Counts how often Python calls its loss, which is when it is traced."""

    num_losses = 0

    def loss(self, *args):
        type(self).num_losses += 1
        return super().loss(*args)


def configs_of(directory, seeds, *, mode="threads", **changes):
    first = make_config(directory, learner=LearnerConfig(policy_lag=1), **changes)
    first = dataclasses.replace(first, run=dataclasses.replace(first.run, mode=mode))
    first = dataclasses.replace(first, actor=dataclasses.replace(first.actor, threads_per_device=1))
    return [
        dataclasses.replace(first, seed=seed, run_dir=str(directory / f"seed-{seed}"))
        for seed in seeds
    ]


def train_in_turn(configs, on_start=lambda number: None):
    return training.train_to_exit_code(*configs, on_start=on_start)


def results_of(config):
    """Return what a run has learned and written, without its times."""
    path = pathlib.Path(config.run_dir)
    summary = json.loads((path / "summary.json").read_text())
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    kept = [(row["env_steps"], row["updates"], row["episode_return_mean"]) for row in rows]
    return summary["status"], summary["networks_crc32"], summary["episodes"], kept


@pytest.mark.parametrize("mode", ["threads", pytest.param("anakin", marks=pytest.mark.slow)])
def test_a_seed_learns_the_same_alone_and_among_others(mode, tmp_path):
    among = configs_of(tmp_path / "among", [0, 1, 3], mode=mode)
    (alone,) = configs_of(tmp_path / "alone", [3], mode=mode)
    assert train_in_turn(among) == 0
    assert training.train_to_exit_code(alone) == 0
    assert results_of(among[2]) == results_of(alone)
    assert len({results_of(each)[1] for each in among}) == 3


@pytest.mark.parametrize("mode", ["threads", pytest.param("anakin", marks=pytest.mark.slow)])
def test_later_seeds_trace_nothing_and_leave_no_ring(mode, tmp_path, monkeypatch):
    monkeypatch.setattr(TracedAgent, "num_losses", 0)
    monkeypatch.setattr("sebulba.config.agents.agent_factory", lambda name: TracedAgent)
    before, traces = [], []

    def on_start(number):
        before.append(sum(isinstance(each, Ring) for each in gc.get_objects()))
        traces.append(TracedAgent.num_losses)

    gc.collect()  # rings of other tests
    gc.disable()  # Python would collect some time, maybe after the next replay was allocated.
    try:
        assert train_in_turn(configs_of(tmp_path, [0, 1, 2], mode=mode), on_start) == 0
    finally:
        gc.enable()
    assert before[0] == before[1] == before[2]
    assert 0 == traces[0] < traces[1] == traces[2] == TracedAgent.num_losses


def test_seeds_after_one_that_fails_are_left_to_the_parent(tmp_path):
    first, second, third = configs_of(tmp_path, [0, 1, 2])
    second = dataclasses.replace(second, run_dir=first.run_dir)
    assert train_in_turn([first, second, third]) == 2
    assert results_of(first)[0] == "done"
    assert not pathlib.Path(third.run_dir).exists()


@pytest.mark.shares_programs
def test_a_signal_ends_the_current_seed_and_all_are_resumed_exactly(tmp_path, monkeypatch):
    configs = configs_of(tmp_path / "runs", [0, 1, 2])
    wholes = configs_of(tmp_path / "wholes", [0, 1])
    make_observers = preparation.make_observers

    class Signal(Observer):
        def on_cycle(self, report):
            if report.num_cycles == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    def observers_of(ring, config, **options):
        observers = make_observers(ring, config, **options)
        signals = [Signal()] if config.seed == 1 else []
        return dataclasses.replace(observers, in_order=(*signals, *observers.in_order))

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "make_observers", observers_of)
        assert train_in_turn(configs) == 143
    assert [results_of(each)[0] for each in configs[:2]] == ["done", "interrupted"]
    assert not pathlib.Path(configs[2].run_dir).exists()
    assert train_in_turn([dataclasses.replace(each, resume="latest") for each in configs[:2]]) == 0
    assert train_in_turn(wholes) == 0
    assert [results_of(each) for each in configs[:2]] == [results_of(each) for each in wholes]


def test_programs_of_another_config_are_refused(tmp_path):
    (config,) = configs_of(tmp_path, [0])
    ring = make_ring(config)
    close(ring)
    other = dataclasses.replace(config, actor=dataclasses.replace(config.actor, num_envs=2))
    with pytest.raises(ValueError, match=r"programs: expected actor .*differ in their seed alone"):
        make_ring(other, programs=ring.programs)
    with pytest.raises(ValueError, match=r"programs: expected the actor devices"):
        make_ring(config, programs=ring.programs, devices=jax.devices()[1:])
