"""Mistakes in Rainbow's parts are found by `sebulba check`, and sound variants pass it."""

import dataclasses
import types

import numpy as np
import pytest

from sebulba.check import sampling
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


@pytest.mark.parametrize(
    ("actions", "equal_environments", "is_found"),
    [
        ([[0, 1], [0, 1]], True, True),  # noise of a key that never changes
        ([[0, 1], [0, 1]], False, False),  # an exploration rate for each environment
        ([[0, 1], [1, 0]], True, False),
        ([[1, 1], [1, 1]], True, False),  # no exploration
    ],
)
def test_noise_is_fixed_if_it_differs_among_equal_environments_and_among_no_keys(
    actions, equal_environments, is_found
):
    calm = np.zeros((3, 2, 2), np.int32)  # [rows, keys, environments]
    other = calm.copy()
    other[1] = actions
    sampler = types.SimpleNamespace(
        has_equal_environments=equal_environments, on_other_rows=lambda: iter([calm, other])
    )
    answer = sampling._fixed_noise(sampler)
    assert (answer is not None) == is_found
    if is_found:
        assert answer.status == "fail"
        assert "envs 0 and 1, row 1: expected" in answer.detail
        assert "got 0 and 1 with each of 2 keys" in answer.detail
