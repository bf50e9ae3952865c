"""The matrix of faults and questions in the documentation is what the check finds."""

import pytest

from sebulba.check.suite import EVERY
from tests.check import matrix
from tests.extras import needs_search

TEXT = matrix.TABLE.read_text()
FOUND_BY = matrix.read_table(TEXT)
NAMES = matrix.faults()


def test_the_page_has_the_record_of_every_question():
    assert matrix.section(TEXT, *matrix.RECORDS) == matrix.make_table_of_records()


def test_every_record_says_what_it_changes_and_where_its_bound_comes_from():
    for each in EVERY.values():
        assert all((each.perturbs, each.proof, each.expects, each.bound)), each.name


def test_the_page_counts_what_each_question_finds():
    assert matrix.section(TEXT, *matrix.QUESTIONS) == matrix.make_table_of_questions(FOUND_BY)


def test_the_page_has_every_fault_that_the_tests_plant():
    assert set(FOUND_BY) == set(NAMES)


def test_a_question_that_finds_nothing_alone_says_why_it_stays():
    alone = {names[0] for names in FOUND_BY.values() if len(names) == 1}
    assert set(EVERY) - alone <= set(matrix.KEPT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_search if name.endswith("muzero") else ())
        for name in FOUND_BY
    ],
)
def test_the_questions_of_the_page_find_a_fault(name):
    assert matrix.questions_that_find(name)["fail"] == FOUND_BY[name]
