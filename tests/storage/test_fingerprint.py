"""What a run records of the machine, the variables, the versions and the code."""

import importlib
import json
import subprocess

import pytest

from sebulba.config import LearnerConfig
from sebulba.devices.variables import describe_variables
from sebulba.devices.xla_flags import num_cpu_threads, num_lapack_threads
from sebulba.run import training
from sebulba.storage import fingerprint
from sebulba.storage.fingerprint import (
    CodeReading,
    crc32_of_file,
    crc32_of_package,
    describe_cpu,
    describe_machine,
    describe_modules,
)
from sebulba.storage.run_dir import record_in_start
from tests.run.runs import make_config


def test_a_run_that_fails_in_its_first_learner_cycle_has_recorded_what_decides_its_bits(
    tmp_path, monkeypatch
):
    def fail(*arguments, **named):
        raise RuntimeError("before the first learner cycle")

    monkeypatch.setattr(training, "run", fail)
    config = make_config(tmp_path / "run", learner=LearnerConfig(policy_lag=1))
    assert training.train_to_exit_code(config) == 3
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["cpu"]["model"] and record["threads"] >= 1
    assert record["environment"]["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
    assert record["jax"]["jax_num_cpu_devices"] == 4
    assert {"jax", "jaxlib", "numpy", "ml_dtypes"} <= set(record["versions"])
    assert set(record["code"]["sources"]) == {"sebulba", "sebulba_agents"}


def test_variables_with_secrets_are_left_out():
    variables = {
        "XLA_FLAGS": "--a",
        "PJRT_NPROC": "2",
        "JAX_API_TOKEN": "x",
        "JAX_PRIVATE_KEY": "x",
        "HOME": "/home/a",
    }
    assert describe_variables(variables) == {"XLA_FLAGS": "--a", "PJRT_NPROC": "2"}


@pytest.mark.parametrize(
    ("text", "model", "features"),
    [
        ("model name\t: Fast 9\nflags\t\t: fpu avx2\n\nmodel name\t: Slow\n", "Fast 9", "fpu avx2"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nFeatures\t: fp\n", "0x41 0xd0c", "fp"),
    ],
)
def test_the_first_cpu_is_described(text, model, features, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(fingerprint, "_CPUINFO", tmp_path / "cpuinfo")
    assert describe_cpu.__wrapped__() == {"model": model, "features": features}


def test_a_machine_without_cpuinfo_has_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "_CPUINFO", tmp_path / "none")
    assert describe_cpu.__wrapped__()["model"]


def test_the_variable_that_xla_reads_decides_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("PJRT_NPROC", "7")
    assert num_cpu_threads() == describe_machine()["threads"] == 7
    monkeypatch.setenv("PJRT_NPROC", "many")
    monkeypatch.setenv("NPROC", "3")
    assert num_cpu_threads() == 3


def test_the_threads_of_lapack_are_at_most_the_cores(monkeypatch):
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    cores = num_lapack_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert num_lapack_threads() == describe_machine()["lapack_threads"] == 1
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1000")
    assert num_lapack_threads() == cores


def test_modules_of_the_user_are_recorded_and_no_others(tmp_path, monkeypatch):
    (tmp_path / "my_coefficients.py").write_text("COEFFICIENT = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_coefficients")
    found = describe_modules()
    assert found["my_coefficients"] == crc32_of_file(str(tmp_path / "my_coefficients.py"))
    assert not {"json", "numpy", "jax", "sebulba", "sebulba.errors", "sebulba_agents"} & {*found}


def test_a_changed_line_or_name_of_a_source_changes_its_checksum(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text("x = 1.0\n")
    first = crc32_of_package(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert crc32_of_package(tmp_path) == first
    (tmp_path / "inner" / "a.py").rename(tmp_path / "inner" / "b.py")
    renamed = crc32_of_package(tmp_path)
    (tmp_path / "inner" / "b.py").write_text("x = 1.000001\n")
    assert len({first, renamed, crc32_of_package(tmp_path)}) == 3


def test_the_code_is_described_with_and_without_git(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text("x = 1\n")
    sources = {"agent:Mine": str(tmp_path / "agent.py"), "gone:Mine": str(tmp_path / "gone.py")}
    code = CodeReading(sources).wait()
    assert code["files"]["agent:Mine"] != code["files"]["gone:Mine"] is None

    def fail(*arguments, **named):
        raise subprocess.TimeoutExpired("git", 5)

    monkeypatch.setattr(fingerprint.subprocess, "run", fail)
    without = fingerprint.describe_code.__wrapped__()
    assert (without["commit"], without["changed"]) == (None, None)
    assert without["sources"] == code["sources"]


def test_a_resume_records_its_own_code(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"code": 1, "resumed": [{}, {}]}))
    record_in_start(tmp_path, {"code": 2})
    assert json.loads(path.read_text()) == {"code": 1, "resumed": [{}, {"code": 2}]}
    path.write_text("{damaged")
    record_in_start(tmp_path, {"code": 2})
    assert json.loads(path.read_text()) == {"code": 2}
