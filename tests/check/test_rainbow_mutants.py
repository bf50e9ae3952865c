"""Mistakes in Rainbow's parts are found by `sebulba check`, and sound variants pass it."""

import dataclasses

import pytest

from sebulba.check.suite import check
from sebulba.config import EnvConfig
from tests.check.rainbow_mutants import MISTAKES, SOUND, planted
from tests.check.test_faults import config_of, failures

MASKED = EnvConfig(suite="jax", id="tests.envs.masked:MaskedTask")


def found_by(name, seed, question):
    mistake = MISTAKES[name]
    config = config_of(mistake.agent, seed)
    if mistake.is_masked:
        config = dataclasses.replace(config, env=MASKED)
    with planted(mistake):
        return failures(check(config, only=[question]).results)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in MISTAKES if MISTAKES[name].question])
def test_a_mistake_is_found(name, seed):
    assert list(found_by(name, seed, MISTAKES[name].question)) == [MISTAKES[name].question]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_variant_passes_all_questions(name, seed):
    assert failures(check(config_of(SOUND[name], seed)).results) == {}
