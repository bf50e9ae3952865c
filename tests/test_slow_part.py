"""Which slow tests a landing runs."""

import itertools

import pytest

from tests import slow_part
from tests.slow_part import (
    NUM_AT_ONCE,
    NUM_PARTS,
    NUM_TOGETHER,
    PAUSE_S,
    ROOT,
    belongs,
    is_over,
    part_of_each,
    parts_of,
    select,
    sittings,
)

NAMES = [f"tests/test_{file}.py::test_{i}" for file in range(40) for i in range(file)]


def test_ten_landings_run_every_slow_test():
    """Whatever the landings are, of one to three sittings each; here every kind of ten landings."""
    masks = [sum(1 << part for part in parts_of(n)) for n in range(NUM_PARTS)]
    assert {mask.bit_count() for mask in masks} == {NUM_AT_ONCE}
    for steps in itertools.product(range(1, NUM_AT_ONCE + 1), repeat=9):
        number, covered = 0, masks[0]
        for step in steps:
            number += step
            covered |= masks[number % NUM_PARTS]
        assert covered == (1 << NUM_PARTS) - 1, steps


def test_the_selections_of_ten_sittings_are_all_tests():
    selected = [set(select(NAMES, number, [])) for number in range(10)]
    assert set().union(*selected) == set(NAMES)
    assert max(map(len, selected)) < 0.4 * len(NAMES)


def test_a_sitting_ends_with_a_pause():
    times = [0, 1, PAUSE_S + 1, 2 * PAUSE_S + 2, 2 * PAUSE_S + 2]
    groups = sittings([(str(number), each) for number, each in enumerate(times)])
    assert [[name for name, _ in group] for group in groups] == [["0", "1", "2"], ["3", "4"]]
    assert sittings([]) == []


def test_a_large_file_is_in_all_parts_and_neighbours_are_together():
    names = [f"tests/test_a.py::test_{i}" for i in range(NUM_TOGETHER * NUM_PARTS)]
    parts = part_of_each(names)
    assert len({parts[name] for name in names}) == NUM_PARTS
    assert len({parts[name] for name in names[:NUM_TOGETHER]}) == 1


def test_a_new_file_moves_no_test_to_another_part():
    before = part_of_each(NAMES)
    after = part_of_each(["tests/test_a_new_one.py::test", *NAMES])
    assert {name: after[name] for name in NAMES} == before


def test_the_newest_part_runs_before_the_others_and_changed_files_before_all():
    changed = next(n for n in NAMES if part_of_each(NAMES)[n] not in parts_of(5))
    selected = select(NAMES, 5, [changed.partition("::")[0]])
    assert selected[changed] is False
    parts = [part_of_each(NAMES)[name] for name, is_due in selected.items() if is_due]
    assert list(dict.fromkeys(parts)) == parts_of(5)
    assert list(selected.values()) == sorted(selected.values())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tests/hosts/test_runs.py::test_x", "tests/hosts/test_runs.py"),
        ("tests/hosts/test_runs.py::test_x", "sebulba/hosts/runs.py"),
        ("tests/hosts/test_runs_again.py::test_x", "sebulba/hosts/runs.py"),
        ("tests/test_export.py::test_x", "sebulba/export.py"),
        ("tests/agents/test_ppo_lag.py::test_x[1]", "agents/sebulba_agents/ppo.py"),
        ("tests/benchmarks/test_rings.py::test_x", "benchmarks/rings.py"),
        ("tests/docs/test_blocks.py::test_x[docs/lag.md:12]", "docs/lag.md"),
        ("tests/check/test_shipped.py::test_x[ppo_catch]", "configs/ppo_catch.yaml"),
    ],
)
def test_a_slow_test_belongs_to_a_file(name, path):
    assert belongs(name, path)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tests/hosts/test_runs.py::test_x", "tests/run/test_runs.py"),
        ("tests/hosts/test_runs.py::test_x", "sebulba/run/runs.py"),
        ("tests/hosts/test_runs.py::test_x", "sebulba/hosts/run.py"),
        ("tests/hosts/test_runs.py::test_x", "pyproject.toml"),
        ("tests/hosts/test_runs.py::test_x", "docs/runs.md"),
        ("tests/check/test_shipped.py::test_x[ppo_catch_pixels]", "configs/ppo_catch.yaml"),
    ],
)
def test_a_slow_test_does_not_belong_to_another_file(name, path):
    assert not belongs(name, path)


def test_tests_that_only_belong_to_changed_files_leave_time_for_the_others():
    limits = {"until": 1000.0, "budget": 500.0}
    assert not is_over(False, now=700.0, **limits) and is_over(False, now=701.0, **limits)
    assert not is_over(True, now=1000.0, **limits) and is_over(True, now=1001.0, **limits)


@pytest.fixture
def some(tmp_path, monkeypatch):
    """Makes a project with three slow tests; returns a function that runs the part of a sitting."""
    text = "import pytest\n" + "".join(
        f"@pytest.mark.slow\ndef test_{i}(): print('ran {i}')\n" for i in range(3)
    )
    (tmp_path / "test_some.py").write_text(text + "def test_fast(): assert False\n")

    def run(sitting, until):
        monkeypatch.setattr(
            slow_part, "commits", lambda: [(str(i), i * 4000) for i in range(sitting)]
        )
        monkeypatch.setattr(slow_part, "changed_files", lambda groups: [])
        monkeypatch.setenv("SEBULBA_SLOW_UNTIL", until)
        monkeypatch.setenv("SEBULBA_SLOW_BUDGET", "1")
        flags = ["--rootdir", str(tmp_path), "-c", "/dev/null", "-q", "-p", "no:cacheprovider"]
        return pytest.main([*flags, str(tmp_path)], plugins=[slow_part])

    return run


def test_the_plugin_runs_the_part_and_says_what_was_left(some, capsys):
    due = [
        n
        for n in range(1, 11)
        if part_of_each(["test_some.py::x"])["test_some.py::x"] in parts_of(n)
    ]
    assert some(due[0], "inf") == pytest.ExitCode.OK
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("3 passed, 1 deselected")
    assert f"slow tests of sitting {due[0]}: parts " in said
    assert some(due[0], "0") == pytest.ExitCode.OK
    assert (
        "left for another landing, since the time was over: 3 of test_some.py"
        in capsys.readouterr().out
    )


def test_ci_runs_a_part_after_the_other_tests():
    lines = (ROOT / ".ci" / "run").read_text().strip().splitlines()
    assert lines[-2].endswith(" -m pytest")
    # A slow test that fails is named, and does not hold back the landing, nor does one that hangs.
    limit = "timeout --kill-after 60 3600"
    assert lines[-1].startswith(f"{limit} .venv/bin/python -m tests.slow_part || echo ")
