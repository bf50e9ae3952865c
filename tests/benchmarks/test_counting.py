"""Programs that print the env steps they have learned from."""

import pathlib
import sys
import time

import pytest

from benchmarks.counting import bytecode_variables, started

COUNTING = "import itertools\nfor i in itertools.count(): print('env steps:', 8 * i, flush=True)"
FAILING = "import sys\nprint('env steps: 0')\nsys.exit('no such environment')"


def program(text):
    return started([sys.executable, "-c", text])


def test_a_program_is_counted_after_its_warm_up_and_then_killed():
    with program(COUNTING) as counting:
        timed = counting.measure(0.01, 0.0)
        assert counting.process.poll() is None
    assert counting.process.poll() is not None
    assert timed.amount >= 16 and timed.amount % 8 == 0 and timed.seconds > 0.0


def test_the_first_count_that_is_not_0_ends_a_start():
    with program(
        "print('env steps: 0', flush=True)\nimport time\ntime.sleep(0.2)\n" + COUNTING
    ) as it:
        begin = time.perf_counter()
        next(it.counts())
        assert it.wait_for_count() - begin > 0.2


def test_a_program_is_started_without_the_xla_flags_of_this_one(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_flag_that_no_version_knows")
    with program("import os\nassert 'XLA_FLAGS' not in os.environ\n" + COUNTING) as counting:
        assert counting.measure(0.0, 0.0).amount > 0


def test_what_a_running_program_writes_to_stderr_can_be_read():
    text = "import sys\nfor each in 'ab': print(each, file=sys.stderr, flush=True)\n"
    with program(text + COUNTING) as counting:
        counting.wait_for_count()
        assert counting.error_output() == counting.error_output() == "a\nb\n"


def measure(text):
    with program(text) as counting:
        counting.measure(0.0, 0.0)


def test_the_error_output_of_a_program_that_fails_is_shown():
    with pytest.raises(SystemExit, match=r"(?s)no such environment.*expected at least 3 counts"):
        measure(FAILING)


def test_the_error_output_of_a_start_that_fails_is_shown():
    expected = pytest.raises(SystemExit, match=r"(?s)no such environment.*expected a count")
    with expected, program(FAILING) as failing:
        failing.wait_for_count()


def test_a_program_that_ends_early_is_named():
    with pytest.raises(SystemExit, match=r"got 1: .*env steps: 5"):
        measure("print('env steps: 5')")


def test_a_program_that_is_killed_leaves_no_temporary_directory():
    with program("import tempfile\nprint(tempfile.mkdtemp(), flush=True)\n" + COUNTING) as counting:
        assert counting.process.stdout is not None
        made = pathlib.Path(counting.process.stdout.readline().strip())
        assert made.is_dir()
    assert not made.exists() and not made.parent.exists()


def test_a_start_reads_the_bytecode_that_an_earlier_one_wrote(tmp_path):
    (tmp_path / "module.py").write_text("x = 1\n")
    cached = "import module, os\nprint(int(os.path.exists(module.__cached__)), flush=True)"
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{cached}"]
    variables = {"PYTHONDONTWRITEBYTECODE": "1"} | bytecode_variables(str(tmp_path / "bytecode"))
    with started(command, variables) as starting:
        assert starting.process.stdout is not None
        assert starting.process.stdout.read() == "1\n"
    assert not (tmp_path / "__pycache__").exists()
