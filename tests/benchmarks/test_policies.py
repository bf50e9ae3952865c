"""The trained policies in the repository, and how they are kept."""

import json

import jax
import numpy as np
import pytest

import sebulba
from benchmarks.policies import POLICIES, keep
from sebulba.storage.checksums import checksums_of

KEPT = [path for path in sorted(POLICIES.iterdir()) if path.is_dir()]
MAX_BYTES = 2e6


@pytest.mark.parametrize("policy", KEPT, ids=lambda path: path.name)
def test_a_kept_policy_is_small_and_names_no_place_of_its_machine(policy):
    files = [path for path in policy.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    assert "run_dir: null" in (policy / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "bar"), [("impala_cartpole", 475.0), ("impala_catch", 0.95), ("impala_recall", 0.95)]
)
def test_evaluate_plays_a_kept_policy(name, bar):
    result = sebulba.evaluate(POLICIES / name, episodes=8)
    assert len(result.returns) == 8 and result.return_mean >= bar


def test_a_kept_policy_with_checksums_is_the_one_that_they_end_with():
    verified = [path for path in KEPT if (path / "checksums.jsonl").exists()]
    assert verified
    for path in verified:
        (step,) = (path / "checkpoints").iterdir()
        manifest = json.loads((step / "manifest.json").read_text())
        last = checksums_of(path)[-1]
        assert last.num_cycles == manifest["step"]
        for name, leaf in manifest["leaves"].items():
            assert last.leaves[name.removeprefix("learner.")].crc32 == leaf["crc32"]


def test_keeping_a_policy_keeps_its_checksums_and_no_place(run_of, tmp_path):
    run_dir = run_of("impala")
    keep(run_dir, tmp_path / "kept")
    assert checksums_of(tmp_path / "kept") == checksums_of(run_dir) != []
    process = json.loads((tmp_path / "kept" / "run.json").read_text())
    assert process["cpu"] and not process.keys() & {"argv", "sources"}


def test_keeping_a_policy_keeps_its_networks(run_of, tmp_path):
    run_dir = run_of("impala")
    keep(run_dir, tmp_path / "kept")
    stored, kept = (sebulba.load_policy(path).stored for path in (run_dir, tmp_path / "kept"))
    jax.tree.map(np.testing.assert_array_equal, stored.networks, kept.networks)
    assert (stored.env_steps, stored.updates) == (kept.env_steps, kept.updates)
