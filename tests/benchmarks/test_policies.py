"""The trained policies in the repository, and how they are kept."""

import json
import os
import platform

import jax
import numpy as np
import pytest

import sebulba
from benchmarks.policies import POLICIES, keep
from sebulba.devices.variables import is_read
from sebulba.process import EXIT_DONE, EXIT_ROUNDING
from sebulba.storage.checksums import checksums_of
from sebulba.storage.fingerprint import describe_cpu
from tests.subprocesses import run_python

KEPT = [path for path in sorted(POLICIES.iterdir()) if path.is_dir()]
VERIFIED = [path for path in KEPT if (path / "checksums.jsonl").exists()]
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
    assert VERIFIED
    for path in VERIFIED:
        (step,) = (path / "checkpoints").iterdir()
        manifest = json.loads((step / "manifest.json").read_text())
        last = checksums_of(path)[-1]
        assert last.num_cycles == manifest["step"]
        for name, leaf in manifest["leaves"].items():
            assert last.leaves[name.removeprefix("learner.")].crc32 == leaf["crc32"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", VERIFIED, ids=lambda path: path.name)
def test_the_code_computes_the_bits_of_a_kept_policy_where_the_machine_is_the_same(
    policy, tmp_path
):
    process = json.loads((policy / "run.json").read_text())
    same = {"cpu": describe_cpu(), "python": platform.python_version()}
    if any(process[name] != value for name, value in same.items()):
        pytest.skip("the policy was trained on another machine")
    variables = {name: text for name, text in os.environ.items() if not is_read(name)}
    again = run_python(
        "-m",
        "sebulba.verify",
        policy,
        "--cycles",
        "10",
        "--run-dir",
        tmp_path / "run",
        variables=variables,
    )
    assert again.returncode in (EXIT_DONE, EXIT_ROUNDING), (
        f"bits have changed: say so in the changelog, train {policy.name} with its config again,"
        f" and keep it with benchmarks.policies\n{again.stdout}{again.stderr}"
    )


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
