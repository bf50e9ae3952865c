"""Measuring another program beside ours."""

import sys

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.pairs import PAIRS
from sebulba.config.loading import load_config

COUNTING = "import itertools\nfor i in itertools.count(1): print('env steps:', 8 * i, flush=True)"


def test_a_program_is_counted_after_its_warm_up_and_then_killed():
    timed = peers._run([sys.executable, "-c", COUNTING], 0.01, 0.0)
    assert timed.amount >= 16 and timed.amount % 8 == 0 and timed.seconds > 0.0


def test_a_program_is_started_without_the_xla_flags_of_this_one(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_flag_that_no_version_knows")
    program = "import os\nassert 'XLA_FLAGS' not in os.environ\n" + COUNTING
    assert peers._run([sys.executable, "-c", program], 0.0, 0.0).amount > 0


def test_the_error_output_of_a_program_that_fails_is_shown():
    program = "import sys\nprint('env steps: 5')\nsys.exit('no such environment')"
    with pytest.raises(SystemExit, match=r"(?s)no such environment.*expected at least 3 counts"):
        peers._run([sys.executable, "-c", program], 0.0, 0.0)


def test_a_program_that_ends_early_is_named():
    with pytest.raises(SystemExit, match="expected at least 3 counts of env steps, got 1"):
        peers._run([sys.executable, "-c", "print('env steps: 5')"], 0.0, 0.0)


def test_a_start_ends_with_the_first_batch_that_has_been_learned_from():
    program = "import time\nprint('env steps: 0', flush=True)\ntime.sleep(0.2)\n" + COUNTING
    assert peers._start([sys.executable, "-c", program], "no cache") > 0.2


def test_the_error_output_of_a_start_that_fails_is_shown():
    program = "import sys\nprint('env steps: 0')\nsys.exit('no such environment')"
    with pytest.raises(SystemExit, match=r"(?s)no such environment.*expected a count"):
        peers._start([sys.executable, "-c", program], "no cache")


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_every_pair_says_how_to_repeat_it_and_has_its_files(pair):
    text = pair.describe()
    assert f"python -m benchmarks.peers {pair.name} --python" in text and "not equal:" in text
    for name in (pair.program, f"{pair.own}.py", pair.config):
        assert (peers._PROGRAMS / name).is_file()
    load_config(peers._PROGRAMS / pair.config, pair.own_flags)  # raises if a setting is unknown
