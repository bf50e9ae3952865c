"""Measuring another program beside ours."""

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.pairs import PAIRS
from sebulba.config.loading import load_config


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_every_pair_says_how_to_repeat_it_and_has_its_files(pair):
    text = pair.describe()
    assert f"python -m benchmarks.peers {pair.name} --python" in text and "not equal:" in text
    for name in (pair.program, f"{pair.own}.py", pair.config):
        assert (peers._PROGRAMS / name).is_file()
    load_config(peers._PROGRAMS / pair.config, pair.own_flags)  # raises if a setting is unknown
