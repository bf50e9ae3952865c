"""The test of the compiler at start-up, and the flags that the compiler gets."""

import importlib.util
import os
import types

import jax
import jaxlib.version
import numpy as np
import pytest

from sebulba.config import Config, DevicesConfig, RunConfig
from sebulba.devices import known_answers
from sebulba.devices.known_answers import (
    MiscompiledError,
    check_compiler,
    check_known_answers,
)
from sebulba.devices.xla_flags import (
    FLAGS,
    describe_xla_flags,
    has_accelerator,
    set_num_cpu_threads,
    set_xla_flags,
)
from sebulba.process import EXIT_FAILED
from sebulba.run import preparation, training
from tests.conftest import HASTE
from tests.evaluation.runs import tiny_config
from tests.subprocesses import environment, run_python


@pytest.fixture
def flags_of(monkeypatch):
    """Returns `XLA_FLAGS` after our own were added to what the user gave."""

    def flags_of_process(given, *, platforms="cpu", version=(0, 10, 2)):
        monkeypatch.setenv("XLA_FLAGS", given)
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        monkeypatch.setattr(jaxlib.version, "__version_info__", version)
        set_xla_flags()
        return os.environ["XLA_FLAGS"]

    return flags_of_process


def test_flags_are_added_to_those_of_the_user(flags_of):
    assert flags_of("--xla_dump_to=x") == f"--xla_dump_to=x {FLAGS[0]}"
    assert flags_of("") == str(FLAGS[0])
    assert str(FLAGS[0]) in describe_xla_flags()


def test_reductions_are_switched_off_where_they_are_wrong(flags_of):
    assert flags_of("", version=(0, 10, 2)).endswith("-reduce")
    assert flags_of("", version=(0, 11, 0)).endswith("=-individual_convolution")


def test_a_flag_that_the_user_has_set_stays(flags_of):
    assert flags_of(f"--{FLAGS[0].name}=") == f"--{FLAGS[0].name}="


@pytest.mark.parametrize("how", [{"version": (0, 9, 2)}, {"version": (0, 13, 0)}])
def test_no_flag_is_added_where_it_may_be_unknown(flags_of, how):
    assert flags_of("", **how) == ""


@pytest.mark.parametrize(
    ("installed", "is_set"),
    [
        ({"jax_plugins": ["xla_cuda12", "__pycache__"]}, True),
        ({"jax_plugins": ["xla_cuda13"]}, True),
        ({"jax_plugins": ["xla_cuda12", "xla_rocm7"]}, False),
        ({"jax_plugins": ["xla_cuda12"], "libtpu": []}, False),
        ({"libtpu": []}, False),
    ],
)
def test_actors_on_the_cpu_beside_a_gpu_have_its_flags(
    flags_of, installed, is_set, monkeypatch, tmp_path
):
    for name, plugins in installed.items():
        (tmp_path / name).mkdir()
        for plugin in plugins:
            (tmp_path / name / plugin).mkdir()

    def find_spec(name):
        place = str(tmp_path / name)
        found = name in installed
        return types.SimpleNamespace(submodule_search_locations=[place]) if found else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert flags_of("", platforms="") == (str(FLAGS[0]) if is_set else "")
    has_driver = False
    monkeypatch.setattr(os.path, "exists", lambda path: has_driver)
    assert has_accelerator() != is_set
    has_driver = True
    assert has_accelerator()


@pytest.mark.parametrize(
    ("actor", "has_device", "is_kept"),
    [(None, False, True), (None, True, False), ("cpu", True, True)],
)
def test_memory_is_kept_where_a_cpu_acts_or_learns(actor, has_device, is_kept, monkeypatch):
    kept = []
    monkeypatch.setattr(preparation, "keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(preparation, "has_accelerator", lambda: has_device)
    for name in ("use_compilation_cache", "check_platforms", "check_compiler"):
        monkeypatch.setattr(preparation, name, lambda: None)
    config = Config(devices=DevicesConfig(actor=actor), run=RunConfig(keep_memory=True))
    preparation.prepare_process(config)
    assert bool(kept) == is_kept


def test_flags_are_set_by_importing_the_package():
    # Not by JAX: it has read them when a backend has started.
    program = "import os, sys, sebulba; print(os.environ['XLA_FLAGS'], 'jax' in sys.modules)"
    variables = environment(XLA_FLAGS="")  # Without those that this process may have set itself.
    version = jaxlib.version.__version_info__
    expected = [*(str(flag) for flag in FLAGS if flag.suits(version)), "False"]
    assert run_python("-c", program, variables=variables).stdout.split() == expected


@pytest.mark.parametrize(
    ("num_cores", "num_devices", "given", "platforms", "expected"),
    [
        (1, 1, None, "cpu", "2"),
        (2, 2, None, "cpu", "3"),
        (2, 1, None, "cpu", None),
        (1, 1, "5", "cpu", "5"),
        (1, 1, None, "cuda", None),
    ],
)
def test_xla_has_a_thread_more_than_devices(
    num_cores, num_devices, given, platforms, expected, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_cores)))
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("PJRT_NPROC", "")  # restored after the test
    monkeypatch.delenv("PJRT_NPROC")
    if given is not None:
        monkeypatch.setenv("PJRT_NPROC", given)
    set_num_cpu_threads(num_devices=num_devices)
    assert os.environ.get("PJRT_NPROC") == expected


def test_this_compiler_passes():
    check_known_answers()


def test_the_answers_of_numpy_are_exact_in_any_order():
    for answer in known_answers._expected(known_answers._operands()).values():
        assert np.abs(answer).max() < 2**24
        assert np.array_equal(answer, np.round(answer))


@pytest.mark.parametrize("name", sorted(known_answers._expected(known_answers._operands())))
def test_one_wrong_element_is_found(monkeypatch, name):
    right = known_answers._compute

    def planted(operands):
        answers = dict(right(operands))
        answers[name] = jax.numpy.ravel(answers[name]).at[-1].add(1.0).reshape(answers[name].shape)
        return answers

    monkeypatch.setattr(known_answers, "_compute", planted)
    with pytest.raises(MiscompiledError, match=f"{name}, 1 of .* XLA_FLAGS"):
        check_known_answers()


def test_a_compiler_that_passed_is_not_checked_again(monkeypatch, tmp_path):
    checks = []
    monkeypatch.setattr(known_answers, "_marker", lambda: tmp_path / "cache" / "passed")
    monkeypatch.setattr(known_answers, "check_known_answers", lambda: checks.append(1))
    check_compiler()
    check_compiler()
    assert len(checks) == 1


def test_other_flags_are_checked_again(monkeypatch):
    before = known_answers._marker()
    monkeypatch.setenv("XLA_FLAGS", "--other")
    assert known_answers._marker() not in (None, before)


def test_a_run_ends_before_its_start(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(known_answers, "_marker", lambda: tmp_path / "passed")
    right = known_answers._compute
    monkeypatch.setattr(
        known_answers,
        "_compute",
        lambda operands: jax.tree.map(lambda answer: answer + 1, right(operands)),
    )
    assert training.train_to_exit_code(tiny_config("impala", tmp_path / "run")) == EXIT_FAILED
    error = capsys.readouterr().err
    assert "XLA computes wrong numbers" in error and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # Two processes that compile as a user's do.
@pytest.mark.skipif(jax.lib.__version__ != "0.10.2", reason="the fault is fixed in later versions")
def test_our_flags_avoid_a_kernel_that_loses_rows():
    program = (
        "import sebulba\n"
        "from sebulba.devices import known_answers\n"
        "try:\n    known_answers.check_known_answers()\n"
        "except known_answers.MiscompiledError as error:\n    print(error)\n"
    )
    variables = {key: value for key, value in os.environ.items() if key not in HASTE}
    given = {"XLA_FLAGS": f"--{FLAGS[0].name}=-individual_convolution"}
    assert run_python("-c", program, variables=variables).stdout == ""
    assert "matrix-vector" in run_python("-c", program, variables=variables | given).stdout
