"""Cores that unroll rows otherwise than they act are found, and no sound core is accused."""

import dataclasses
import types

import pytest

from sebulba.check.unrolls import unrolls
from sebulba.references import CORES
from sebulba_agents.config import ImpalaConfig
from tests.check.core_mutants import MUTANTS, mutant_core

SETTINGS = ImpalaConfig(hidden_sizes=(4,), lstm_size=4)
OPTIONS = {"gtrxl": {"memory_length": 3, "heads": 2, "layers": 1}}
OTHERWISE = (
    "attention sees the next row",
    "an unroll sees rows that acting has lost",
    "the newest row is not remembered",
    "rows of an earlier episode are kept",
    "the state turns the other way in each unroll",
)


def answer(core, options, trajectory_length=8):
    agent = dataclasses.replace(SETTINGS, core=core, core_options=options)
    subject = types.SimpleNamespace(
        config=types.SimpleNamespace(agent=agent),
        run_spec=types.SimpleNamespace(trajectory_length=trajectory_length),
    )
    return unrolls(types.SimpleNamespace(subject=subject))


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_core_that_unrolls_otherwise_than_it_acts_is_found(name):
    found = answer(mutant_core(name), OPTIONS.get(MUTANTS[name][0], {}))
    assert found.status == "fail"
    assert "expected" in found.detail and "env" in found.detail


@pytest.mark.parametrize(
    ("core", "options"),
    [
        *((name, {}) for name in CORES),
        ("gtrxl", OPTIONS["gtrxl"]),
        ("tests.check.cores:LRU", {}),
        ("tests.check.cores:Attention", {}),
    ],
)
def test_a_sound_core_unrolls_many_rows_as_one_by_one(core, options):
    assert answer(core, options).status == "pass"


@pytest.mark.slow
def test_a_memory_as_long_as_a_trajectory_is_full_before_the_rows_are_compared():
    name = "an unroll sees rows that acting has lost"
    options = {"memory_length": 104, "layers": 1}
    assert answer(mutant_core(name), options, trajectory_length=128).status == "fail"
    assert answer("gtrxl", options, trajectory_length=128).status == "pass"


def test_an_agent_without_a_core_is_not_asked():
    agent = dataclasses.replace(SETTINGS, lstm_size=None)
    subject = types.SimpleNamespace(config=types.SimpleNamespace(agent=agent))
    assert unrolls(types.SimpleNamespace(subject=subject)).status == "skip"
