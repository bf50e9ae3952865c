"""What two runs were made of."""

import dataclasses
import json

import pytest

from sebulba.comparison.starts import (
    describe_change_of_start,
    describe_start,
    differences,
    mapped_seeds,
)
from sebulba.config.agents import agent_config_class
from sebulba.storage.run_files import Run

PROCESS = {
    "python": "3.11.9",
    "versions": {"jax": "0.10.2", "numpy": "2.4.6"},
    "cpu": {"model": "Fast 9", "features": "avx2 avx512f fma"},
    "threads": 2,
    "devices": ["cpu: cpu"],
    "xla_flags": "--a=1 --b=2",
    "environment": {"XLA_FLAGS": "--a=1 --b=2", "JAX_ENABLE_X64": "0", "XLA_PYTHON_CLIENT_X": "1"},
    "jax": {"jax_enable_x64": False, "jax_default_matmul_precision": None},
    "kernels": None,
    "code": {
        "commit": "a" * 40,
        "changed": [],
        "sources": {"sebulba": "01", "sebulba_agents": "02"},
    },
}


def run(config=None, **process):
    config = {"agent.learning_rate": 0.1, "run_dir": "a"} | (config or {})
    return Run(path=None, config=config, rows=[], summary=None, process=PROCESS | process)


def found(second):
    return [(each.kind, str(each)) for each in differences(run(), second)]


def test_a_run_does_not_differ_from_itself():
    assert found(run()) == []


CHANGES = {
    "a setting": (
        run({"agent.learning_rate": 0.2, "run_dir": "b"}),
        ("settings", "agent.learning_rate: 0.1 and 0.2"),
    ),
    "a setting of another version": (
        run({"run.total_learner_cycles": 3}),
        ("settings", "run.total_learner_cycles: None and 3"),
    ),
    "python": (run(python="3.12.1"), ("versions", "Python: 3.11.9 and 3.12.1")),
    "a package": (
        run(versions={"jax": "0.11.0", "numpy": "2.4.6"}),
        ("versions", "jax: 0.10.2 and 0.11.0"),
    ),
    "features": (
        run(cpu={"model": "Fast 9", "features": "avx2 fma"}),
        ("machine", "CPU features: also avx512f and no others"),
    ),
    "threads": (run(threads=1), ("machine", "threads: 2 and 1")),
    "a flag": (run(xla_flags="--b=2 --a=7"), ("flags", "XLA_FLAGS: --a=1 and --a=7")),
    "a variable": (
        run(environment=PROCESS["environment"] | {"JAX_NEW": "1"}),
        ("flags", "JAX_NEW: none and 1"),
    ),
    "a setting of jax": (
        run(jax=PROCESS["jax"] | {"jax_enable_x64": True}),
        ("flags", "jax_enable_x64: False and True"),
    ),
    "code": (
        run(code={"commit": "b" * 40, "changed": ["x.py"], "sources": {"sebulba": "03"}}),
        (
            "code",
            "sebulba: 01 (commit aaaaaaaaaaaa) and 03 (commit bbbbbbbbbbbb, changes in 1 files)",
        ),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_found_alone(what):
    second, expected = CHANGES[what]
    assert found(second)[0] == expected
    assert len(found(second)) == (2 if what == "code" else 1)


def test_variables_without_effect_on_bits_and_equal_sources_of_other_commits_are_no_difference():
    environment = {"XLA_FLAGS": "--a=1 --b=2", "JAX_COMPILATION_CACHE_DIR": "/a", "PJRT_NPROC": "2"}
    assert found(run(environment=environment)) == []
    assert found(run(xla_flags="--b=2 --a=1")) == []
    assert found(run(code=PROCESS["code"] | {"commit": "b" * 40})) == []
    assert found(run({"run.total_learner_cycles": None})) == []


def of_settings(first, second):
    runs = (
        Run(path=None, config=each, rows=[], summary=None, process={}) for each in (first, second)
    )
    return [str(each) for each in differences(*runs)]


@pytest.mark.parametrize("name", ["ppo", "sac", "impala"])
def test_a_setting_that_an_earlier_version_did_not_write_had_the_default_of_its_agent(name):
    settings = json.loads(json.dumps(dataclasses.asdict(agent_config_class(name)())))
    written = {f"agent.{key}": value for key, value in settings.items()}
    assert of_settings(written, {"agent.name": name}) == []
    (change,) = of_settings({"agent.name": name}, written | {"agent.learning_rate": 9.0})
    assert change.startswith("agent.learning_rate: ") and "none" not in change


def test_the_defaults_of_an_agent_that_is_not_installed_are_not_known():
    gone = {"agent.name": "gone_package:Agent"}
    assert of_settings(gone | {"agent.width": 3}, gone) == ["agent.width: 3 and none"]


def test_what_an_earlier_version_did_not_record_is_not_compared():
    process = {"versions": {"jax": "0.10.2"}}
    old = Run(path=None, config=run().config, rows=[], summary=None, process=process)
    assert differences(run(), old) == []
    assert describe_start(old) == "a CPU that is not recorded, jax 0.10.2"
    assert describe_start(run()) == "Fast 9, 2 threads, jax 0.10.2, commit aaaaaaaaaaaa"


def test_a_resume_with_other_versions_or_code_is_told_and_an_equal_one_is_not():
    newer = PROCESS | {"versions": {"jax": "0.11.0", "numpy": "2.4.6"}}
    assert describe_change_of_start(PROCESS) is None
    assert describe_change_of_start(PROCESS | {"resumed": [PROCESS]}) is None
    warning = describe_change_of_start(PROCESS | {"resumed": [newer]})
    assert "may change from here on" in warning and "jax (before 0.10.2, now 0.11.0)" in warning
    assert describe_change_of_start(PROCESS | {"resumed": [newer, newer]}) is None
    for damaged in (3, [3], [{}]):
        assert describe_change_of_start(PROCESS | {"resumed": damaged}) is None


@pytest.mark.parametrize(
    ("first", "resumes", "expected"),
    [
        ({}, [], []),
        ({"mapped_seeds": [0, 1]}, [], [0, 1]),
        ({"mapped_seeds": [0, 1]}, [{"at": 5, "mapped_seeds": [0, 1]}], [0, 1]),
        ({"mapped_seeds": [0, 1]}, [{"at": 5, "mapped_seeds": []}, {}], [0, 1]),
        ({"mapped_seeds": []}, [{"at": 5, "mapped_seeds": [0, 1]}], []),
        # Earlier versions recorded the seeds of the last start only, and null for none.
        ({}, [{"at": 5}], []),
        ({"mapped_seeds": [0, 1]}, [{"at": 5}], None),
        ({"mapped_seeds": None}, [{"at": 5}], None),
    ],
)
def test_the_seeds_of_the_first_start_are_known_after_a_resume(first, resumes, expected):
    assert mapped_seeds(first | {"resumed": resumes}) == expected


def test_other_seeds_of_the_same_program_are_a_difference():
    seeds = [{"mapped_seeds": each} for each in ([0, 1], [])]
    assert "seeds of its program (before [0, 1], now [])" in describe_change_of_start(
        PROCESS | seeds[0] | {"resumed": [PROCESS | seeds[1]]}
    )
    assert describe_change_of_start(PROCESS | seeds[0] | {"resumed": [PROCESS | seeds[0]]}) is None
