"""`examples/ring_by_hand.py`, with which the architecture page begins."""

import ast
import dataclasses
import pathlib
import runpy

from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from tests.ring.test_collectors import assert_equal_bits
from tests.ring_parts import published
from tests.rings import make_ring, run_ring

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "ring_by_hand.py"


def test_the_ring_by_hand_learns_catch_to_the_bits_of_the_same_config(capsys):
    made = runpy.run_path(str(SCRIPT))
    assert made["ring"].progress.window.return_mean >= 0.95
    assert "mean return 0.9" in capsys.readouterr().out.splitlines()[-1]
    config = load_config("impala_catch")
    config = dataclasses.replace(
        config,
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        learner=dataclasses.replace(config.learner, policy_lag=1, trajectories_per_cycle=1),
    )
    ring = make_ring(config)
    run_ring(ring, mode="serial")
    assert ring.learner.num_cycles == made["learner"].num_cycles
    assert_equal_bits(published(made["learner"]), published(ring.learner))


def test_the_page_of_the_architecture_begins_with_the_ring_by_hand():
    page = (SCRIPT.parents[1] / "docs" / "architecture.md").read_text()
    block = page.split("```python\n")[1].split("```")[0]
    assert SCRIPT.read_text().endswith(block)


def test_the_ring_by_hand_needs_no_config_and_no_builder():
    imported = {
        node.module
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    assert not {name for name in imported if name.endswith((".make", ".programs", ".loading"))}
