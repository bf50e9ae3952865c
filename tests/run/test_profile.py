import dataclasses
import gzip
import itertools
import json

import pytest

from sebulba.config import ActorConfig, ProfileConfig, RunConfig
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.run import training
from tests import disturbances
from tests.evaluation.runs import tiny_config
from tests.run.runs import make_config


def test_a_trace_of_the_requested_cycles_names_its_regions(run_of, tmp_path):
    run = RunConfig(
        total_env_steps=200,
        log_interval_env_steps=100,
        profile=ProfileConfig(from_cycle=2, cycles=3),
    )
    assert training.train_to_exit_code(tiny_config("impala", tmp_path / "run", run=run)) == 0
    (trace,) = (tmp_path / "run" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event.get("name") for event in events]
    assert names.count("update") == 3
    # In lock-step an act cycle precedes each update. The first one may have begun before the trace,
    # and the one after the last update may begin before the trace ends.
    assert 2 <= names.count("act cycle") <= 4
    assert 2 <= names.count("transfer") <= 4
    assert not list(run_of("impala").glob("profile"))


def test_a_trace_of_one_program_has_the_requested_cycles_alone(tmp_path, monkeypatch):
    calls = []
    disturbances.note_calls(calls.append, monkeypatch.setattr)
    disturbances.set_most_ahead(monkeypatch)
    config = make_config(tmp_path / "run", actor=ActorConfig(num_envs=4, threads_per_device=1))
    profile = ProfileConfig(from_cycle=12, cycles=9)
    run = dataclasses.replace(config.run, mode="anakin", checksums=False, profile=profile)
    assert training.train_to_exit_code(dataclasses.replace(config, run=run)) == 0
    assert {12, 21} <= set(itertools.accumulate(calls))
    (trace,) = (tmp_path / "run" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event.get("name") for event in events]
    assert names.count("all-reduce") == 9, "one of each update"


def test_a_profile_that_the_run_does_not_reach_is_told(tmp_path, capsys):
    profile = ProfileConfig(from_cycle=1000, cycles=3)
    run = RunConfig(total_env_steps=50, profile=profile)
    assert training.train_to_exit_code(make_config(tmp_path / "run", run=run)) == 0
    line = "profile: nothing was recorded; run.profile.from_cycle is 1000, and this run had the"
    assert line in capsys.readouterr().err


def test_a_profile_without_cycles_is_refused():
    with pytest.raises(ConfigError, match=r"--run.profile: cycles: expected int ≥ 1, got 0"):
        load_config(None, ["--run.profile={from_cycle: 3, cycles: 0}"])
