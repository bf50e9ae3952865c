"""Mistakes in the shipped cores are found: by what every core does, or by the core's formula."""

import pytest

from sebulba.toolkit.cores import core_class, core_settings
from tests.check.core_mutants import MUTANTS, mutant_core
from tests.toolkit import test_core_conformance as conformance
from tests.toolkit import test_gru, test_gtrxl, test_lru

# Less than the rows of an unroll, so that rows are forgotten in it.
OPTIONS = {"gtrxl": {"memory_length": 3, "heads": 2, "layers": 1}}
# Mistakes with which acting and learning still agree, and the test of the formula that finds them.
BY_FORMULA = {
    "attention sees a row too few": (test_gtrxl, "GTrXLCore", "test_gtrxl_equals_its_formulas", 1),
    "gates are open": (test_gtrxl, "GTrXLCore", "test_gtrxl_equals_its_formulas", 1),
    "positions count from the oldest row": (
        test_gtrxl,
        "GTrXLCore",
        "test_gtrxl_equals_its_formulas",
        1,
    ),
    "inputs are not scaled": (
        test_lru,
        "LRUCore",
        "test_the_lru_equals_its_formula_in_complex_numbers",
        "auto",
    ),
    "the update gate is swapped": (
        test_gru,
        "GRUCore",
        "test_the_gru_equals_flaxs_cell_with_resets",
        None,
    ),
}
BY_CONFORMANCE = {
    name: "test_an_unroll_over_a_reset_equals_one_that_begins_there" for name in MUTANTS
} | {
    "rows are not counted": "test_without_a_reset_the_state_matters",
    "the newest row is not remembered": "test_an_unroll_equals_two_that_meet_anywhere",
    "the state turns the other way in each unroll": "test_an_unroll_equals_two_that_meet_anywhere",
}


def made(name):
    core = MUTANTS[name][0]
    return core_settings(mutant_core(name), conformance.SIZE, OPTIONS.get(core, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in BY_FORMULA])
def test_a_mutant_that_acts_otherwise_than_it_learns_is_found_by_what_every_core_does(name):
    with pytest.raises(AssertionError):
        getattr(conformance, BY_CONFORMANCE[name])(made(name).make(parent=None))


@pytest.mark.parametrize("name", BY_FORMULA)
def test_a_mutant_that_is_another_core_is_found_by_the_formula(name, monkeypatch, lenient_jax):
    module, core, test, argument = BY_FORMULA[name]
    monkeypatch.setattr(module, core, core_class(mutant_core(name)))
    with pytest.raises(AssertionError):
        getattr(module, test)(argument)
