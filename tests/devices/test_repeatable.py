"""The kernels of a GPU that give the same bits in every run: flags, records, and warnings."""

import dataclasses
import json
import os

import jax
import jaxlib.version
import pytest
from jax._src import compiler

from sebulba.comparison.starts import describe_change_of_start
from sebulba.config.loading import load_config
from sebulba.devices import repeatable
from sebulba.devices.repeatable import FLAGS, kernels_of_gpu, use_repeatable_kernels
from sebulba.errors import ConfigError
from sebulba.evaluate import evaluate_to_exit_code, parse
from sebulba.run import preparation, training
from sebulba.storage import run_dir
from sebulba.storage.run_dir import describe_run, open_run_dir
from tests.evaluation.runs import tiny_config
from tests.storage.lines import Lines
from tests.subprocesses import environment, run_python

OURS = " ".join(map(str, FLAGS))
CACHES = "jax_persistent_cache_enable_xla_caches"


@pytest.fixture(autouse=True, scope="module")
def started_jax():
    """Starts JAX with the flags of this process, before a test changes them."""
    jax.local_devices()


@pytest.fixture
def flags_of(monkeypatch):
    """Returns the warning and `XLA_FLAGS` of a process that has what a test says."""
    before = jax.config.values[CACHES]

    def flags_of_process(
        setting, *, is_exact=True, given="", has_gpu=True, has_started=False, version=(0, 10, 2)
    ):
        monkeypatch.setenv("XLA_FLAGS", given)
        monkeypatch.setattr(repeatable, "_has_gpu", lambda: has_gpu)
        monkeypatch.setattr(repeatable, "backends_are_initialized", lambda: has_started)
        monkeypatch.setattr(jaxlib.version, "__version_info__", version)
        warning = use_repeatable_kernels(setting, is_exact=is_exact)
        return warning, os.environ["XLA_FLAGS"]

    yield flags_of_process
    jax.config.update(CACHES, before)


@pytest.mark.parametrize("setting", ["auto", "strict"])
def test_an_exact_run_on_a_gpu_gets_the_flags(flags_of, setting):
    assert flags_of(setting, given="--xla_dump_to=x") == ("", f"--xla_dump_to=x {OURS}")
    assert flags_of(setting, given=OURS, has_started=True) == ("", OURS)  # of the run before


@pytest.mark.parametrize(
    "how",
    [
        {"setting": "off"},
        {"setting": "auto", "is_exact": False},
        {"setting": "auto", "has_gpu": False},
        {"setting": "strict", "has_gpu": False},
    ],
)
def test_all_other_runs_keep_their_flags(flags_of, how):
    assert flags_of(**how) == ("", "")
    assert jax.config.values[CACHES] != "none"


def test_what_the_tuner_chose_for_other_runs_is_not_read(flags_of):
    flags_of("auto")
    assert jax.config.values[CACHES] == "none"


def test_a_flag_of_the_user_that_includes_ours_suffices(flags_of):
    given = "--xla_gpu_deterministic_ops=true"
    assert flags_of("strict", given=given) == ("", given)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"has_started": True}, "JAX has started already"),
        ({"version": (0, 13, 0)}, "jaxlib 0.13.0 was not tried"),
        ({"given": "--xla_gpu_autotune_level=4"}, "XLA_FLAGS is '--xla_gpu_autotune_level=4"),
    ],
)
def test_fastest_kernels_in_an_exact_run_are_a_warning_or_an_error(flags_of, how, reason):
    warning, _ = flags_of("auto", **how)
    assert warning.startswith("warning: run.repeatable auto: expected kernels")
    assert reason in warning and OURS in warning
    assert jax.config.values[CACHES] != "none"
    with pytest.raises(ConfigError, match=f"run.repeatable strict: .*{reason}"):
        flags_of("strict", **how)


def test_flags_are_not_added_after_jax_has_started(flags_of):
    # XLA would not read them, and JAX would cache programs under flags that they lack.
    assert flags_of("auto", has_started=True)[1] == ""


def test_this_jaxlib_knows_the_flags_and_computes_the_same_on_a_cpu():
    # XLA ends a process at a flag that it does not know.
    program = "import jax.numpy as jnp; x = jnp.arange(999.0); print((jnp.sin(x) ** 2).sum())"
    bits = {
        run_python("-c", program, variables=environment(XLA_FLAGS=flags)).stdout
        for flags in ("", OURS)
    }
    assert len(bits) == 1 and "" not in bits


def test_strict_needs_an_exact_lag():
    flags = ["--run.repeatable", "strict", "--learner.policy-lag", "null"]
    with pytest.raises(ConfigError, match=r"run.repeatable: .*Set learner.policy_lag"):
        load_config("impala_bandit", flags)
    assert load_config("impala_bandit", [*flags, "--run.mode", "serial"]).has_fixed_order


class Device:
    def __init__(self, platform):
        self.platform = self.device_kind = platform


def test_run_json_says_how_kernels_are_chosen(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", OURS)
    assert kernels_of_gpu() is None
    record = describe_run()
    assert (record["xla_flags"], record["kernels"]) == (OURS, None)
    monkeypatch.setattr(jax, "local_devices", lambda: [Device("gpu")])
    assert describe_run()["kernels"] == "repeatable"
    monkeypatch.setenv("XLA_FLAGS", "")
    assert describe_run()["kernels"] == "fastest"


@pytest.mark.parametrize(
    ("stored", "now", "is_told"),
    [
        ({"kernels": "fastest"}, "repeatable", True),
        ({"kernels": "repeatable"}, "fastest", True),
        ({"kernels": "repeatable"}, "repeatable", False),
        ({"kernels": "repeatable"}, None, False),
        ({"kernels": "fastest", "resumed": [{"kernels": "repeatable"}]}, "repeatable", False),
        ({"resumed": [{"kernels": "fastest"}, {"kernels": "repeatable"}]}, "repeatable", False),
        ({}, "repeatable", False),  # of an earlier version
        ({"resumed": [3]}, "repeatable", False),  # damaged
    ],
)
def test_a_resume_with_other_kernels_is_told(stored, now, is_told):
    resumed = [*stored.get("resumed", []), {"kernels": now}]
    line = describe_change_of_start({**stored, "resumed": resumed})
    assert (line is not None) == is_told
    if line is not None:
        assert f"kernels (before {stored['kernels']}, now {now})" in line


def test_a_resume_may_change_the_setting_and_records_its_kernels(monkeypatch, tmp_path):
    config = tiny_config("impala", tmp_path / "run")
    for kernels, setting in (("repeatable", "auto"), ("fastest", "off"), ("fastest", "off")):
        monkeypatch.setattr(run_dir, "kernels_of_gpu", lambda kernels=kernels: kernels)
        config = dataclasses.replace(
            config, run=dataclasses.replace(config.run, repeatable=setting)
        )
        _, lock = open_run_dir(config, on_message=pytest.fail)
        lock.release()
        config = dataclasses.replace(config, resume="latest")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [stored["kernels"], *(each["kernels"] for each in stored["resumed"])] == [
        "repeatable",
        "fastest",
        "fastest",
    ]


def test_a_run_asks_for_its_kernels_before_it_makes_an_environment(monkeypatch, tmp_path):
    order, warning = [], "warning: the fastest kernels"

    def ask(setting, *, is_exact):
        order.append((setting, is_exact))
        return warning

    def look_at_task(config):
        order.append("environment")
        return task_defaults(config)

    task_defaults = preparation.with_task_defaults
    monkeypatch.setattr(preparation, "use_repeatable_kernels", ask)
    monkeypatch.setattr(preparation, "with_task_defaults", look_at_task)
    monkeypatch.setattr(preparation, "make_ring", lambda config, **_: 1 / 0)
    display = Lines()
    with pytest.raises(ZeroDivisionError):
        training.train(tiny_config("impala", tmp_path / "run"), display=display)
    assert order == [("auto", True), "environment"]
    assert warning in display.lines


def test_what_the_tuner_chose_is_kept_beside_the_compilation_cache(flags_of):
    def kept_in():
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        debug_options = options.executable_build_options.debug_options
        return debug_options.xla_gpu_per_fusion_autotune_cache_dir

    assert kept_in().startswith(jax.config.values["jax_compilation_cache_dir"])
    flags_of("auto")
    assert kept_in() == ""


def test_an_evaluation_by_command_gets_the_flags_too(run_of, monkeypatch):
    asked = []

    def ask(setting, *, is_exact):
        asked.append((setting, is_exact))
        return ""

    monkeypatch.setattr(repeatable, "use_repeatable_kernels", ask)
    options = parse([str(run_of("impala")), "--episodes", "1"])
    assert evaluate_to_exit_code(options) == 0
    assert asked == [("auto", True)]
