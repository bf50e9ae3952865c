"""A run is repeated, and the repetition is judged."""

import json
import shutil

import pytest

from sebulba.config import LearnerConfig
from sebulba.process import (
    EXIT_CONFIG,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_OTHER_RESULT,
    EXIT_ROUNDING,
)
from sebulba.run import training
from sebulba.storage.checksums import checksums_of
from sebulba.verify import variables_of, verify
from tests.run.runs import make_config
from tests.subprocesses import environment, run_python


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = make_config(path, learner=LearnerConfig(policy_lag=1))
    assert training.train_to_exit_code(config) == 0
    return path


@pytest.fixture
def copy(run_dir, tmp_path):
    return copied(run_dir, tmp_path / "copy")


def copied(run_dir, path):
    shutil.copytree(run_dir, path)
    return path


def edit(path, change):
    process = json.loads((path / "run.json").read_text())
    change(process)
    (path / "run.json").write_text(json.dumps(process))


def replace_in_config(path, old, new):
    text = (path / "config.yaml").read_text()
    assert old in text
    (path / "config.yaml").write_text(text.replace(old, new))


def test_a_run_is_repeated_with_the_same_bits(run_dir, tmp_path, capsys):
    before = sorted(each.name for each in run_dir.rglob("*"))
    assert verify(run_dir, cycles=30, into=tmp_path / "again") == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert "repeating learner cycles 1 to 20" in lines[-3], "there is no row from 21 to 41"
    assert lines[-2].startswith("the same bits up to learner cycle 20: networks")
    assert [row.num_cycles for row in checksums_of(tmp_path / "again")] == [0, 1, 2, 5, 10, 20]
    assert sorted(each.name for each in run_dir.rglob("*")) == before


def test_a_loss_that_is_changed_by_a_millionth_is_another_result(copy, tmp_path, capsys):
    replace_in_config(copy, "learning_rate: 0.1", "learning_rate: 0.1000001")
    assert verify(copy, cycles=3, into=tmp_path / "again") == EXIT_OTHER_RESULT
    out = capsys.readouterr().out
    assert "another result from learner cycle 1 on" in out
    assert "1 of" in out and "networks.weights, by" in out and "updates parted first" in out
    assert "the repetition: " in out


@pytest.mark.slow
def test_the_same_change_on_another_machine_cannot_be_told_from_rounding(copy, tmp_path, capsys):
    replace_in_config(copy, "learning_rate: 0.1", "learning_rate: 0.1000001")
    edit(copy, lambda process: process["cpu"].update(model="Other CPU"))
    assert verify(copy, cycles=3, into=tmp_path / "again") == EXIT_ROUNDING
    out = capsys.readouterr().out
    assert "other machine: CPU: there Other CPU, here " in out
    assert "consistent with rounding up to learner cycle 3: other CPU, and" in out


@pytest.mark.slow
def test_other_code_is_told_first(copy, capsys):
    edit(copy, lambda process: process["code"]["sources"].update(sebulba="0000"))
    assert verify(copy, cycles=1) == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("other code: sebulba: there ")
    assert lines[-1].startswith("the same bits up to learner cycle 1")


@pytest.mark.slow
def test_a_repetition_that_fails_shows_why(copy, capsys):
    edit(copy, lambda process: process["jax"].update(jax_platforms="nowhere"))
    assert verify(copy, cycles=1) == EXIT_FAILED
    assert "the repetition ended with exit code" in capsys.readouterr().err


@pytest.mark.slow
def test_another_instruction_set_is_consistent_with_rounding(tmp_path):
    """A machine without AVX-512 is emulated: its run has no record of the flag that does it."""
    variables = environment()
    variables.pop("JAX_DISABLE_MOST_OPTIMIZATIONS")
    narrow = f"{variables.get('XLA_FLAGS', '')} --xla_cpu_max_isa=SSE4_2"
    path = tmp_path / "run"
    arguments = ["impala_catch", "--run.total-learner-cycles", "10", "--run-dir", str(path)]
    trained = run_python(
        "-m", "sebulba.train", *arguments, variables=variables | {"XLA_FLAGS": narrow}
    )
    assert trained.returncode == 0, trained.stderr
    same = run_python("-m", "sebulba.verify", path, variables=variables)
    assert same.returncode == EXIT_DONE, same.stdout + same.stderr

    def forget(process):
        process["xla_flags"] = process["xla_flags"].replace("--xla_cpu_max_isa=SSE4_2", "")
        process["environment"]["XLA_FLAGS"] = process["xla_flags"]
        process["cpu"]["features"] = "sse4_2"

    edit(path, forget)
    other = run_python(
        "-m", "sebulba.verify", path, "--run-dir", tmp_path / "again", variables=variables
    )
    assert other.returncode == EXIT_ROUNDING, other.stdout + other.stderr
    assert "consistent with rounding up to learner cycle 10: other CPU features" in other.stdout


def refusal(path, capsys, **options):
    capsys.readouterr()
    assert verify(path, **options) == EXIT_CONFIG
    return capsys.readouterr().err


def test_what_cannot_be_repeated_is_refused(run_dir, copy, tmp_path, capsys):
    (copy / "checksums.jsonl").rename(copy / "away")
    assert "run.checksums was false, or an earlier version" in refusal(copy, capsys)
    (copy / "away").rename(copy / "checksums.jsonl")
    replace_in_config(copy, "policy_lag: 1", "policy_lag: null")
    assert "a free-running run is not repeatable" in refusal(copy, capsys)
    assert "expected a new directory" in refusal(run_dir, capsys, into=tmp_path)
    assert "no such file" in refusal(tmp_path / "none", capsys)


def test_a_resumed_run_is_repeated_up_to_its_resume(copy, capsys):
    edit(copy, lambda process: process.update(resumed=[{}, {"at": 0, "level": "restart"}]))
    assert "expected a learner cycle with a row" in refusal(copy, capsys)


def test_the_repetition_has_the_variables_of_the_run():
    process = {
        "environment": {
            "XLA_FLAGS": "--a",
            "JAX_COMPILATION_CACHE_DIR": "/old",
            "PATH": "/bad",
            "LIBTPU_INIT_ARGS": "--b",
        },
        "jax": {
            "jax_platforms": "cpu",
            "jax_enable_x64": True,
            "jax_num_cpu_devices": -1,
            "jax_default_matmul_precision": None,
        },
        "threads": 3,
    }
    own = {"PATH": "/bin", "XLA_FLAGS": "--own", "JAX_NUM_CPU_DEVICES": "4", "PJRT_NPROC": "1"}
    assert variables_of(process, own) == {
        "PATH": "/bin",
        "XLA_FLAGS": "--a",
        "LIBTPU_INIT_ARGS": "--b",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "PJRT_NPROC": "3",
    }
