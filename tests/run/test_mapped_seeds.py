"""Seeds as one program: the files and the numbers of each are those of its run in turn."""

import dataclasses
import json
import os
import pathlib
import signal

import jax
import numpy as np
import pytest

from sebulba.comparison.starts import mapped_seeds
from sebulba.config import DevicesConfig, LearnerConfig
from sebulba.config.loading import load_config
from sebulba.devices.memory import check_memory
from sebulba.errors import ConfigError
from sebulba.process import EXIT_CONFIG, EXIT_DONE, EXIT_FAILED, EXIT_NON_FINITE
from sebulba.processes import seeds
from sebulba.ring.anakin import Anakin
from sebulba.ring.ring import Observer
from sebulba.run import preparation, training
from sebulba.run.mapped_runs import train_mapped
from sebulba.storage.checkpoints.restore import steps_in
from tests import rings
from tests.run.runs import make_config
from tests.run.test_in_turn import TracedAgent

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def configs_of(directory, numbers, *, lag=0, run=None, **changes):
    first = make_config(directory, learner=LearnerConfig(policy_lag=lag), **changes)
    first = dataclasses.replace(
        first,
        run=dataclasses.replace(first.run, mode="anakin", seeds="mapped", **(run or {})),
        actor=dataclasses.replace(first.actor, threads_per_device=1),
    )
    return [
        dataclasses.replace(first, seed=seed, run_dir=str(directory / f"seed-{seed}"))
        for seed in numbers
    ]


def train(configs):
    """Train as one program; return the exit code of each run."""
    codes = {}
    train_mapped(*configs, on_end=codes.__setitem__)
    return [codes[number] for number in range(len(configs))]


def summary_of(config):
    return json.loads((pathlib.Path(config.run_dir) / "summary.json").read_text())


def rows_of(config):
    text = (pathlib.Path(config.run_dir) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def counts_of(config):
    """Return what a run has counted, which does not depend on the last bits of its networks."""
    summary = summary_of(config)
    kept = ("status", "env_steps", "updates", "learner_cycles", "episodes", "ledger")
    counted = ("env_steps", "updates", "episodes")
    rows = [[row[key] for key in counted] for row in rows_of(config)]
    return {key: summary[key] for key in kept}, rows


def networks_of(config):
    """Return the networks of a run's last checkpoint."""
    ring = rings.make_ring(config)
    rings.resume(ring, pathlib.Path(config.run_dir) / "checkpoints")
    networks = jax.tree.map(np.asarray, ring.learner.state.networks)
    rings.close(ring)
    return networks


def assert_same_networks(config, expected):
    for leaf, other in zip(
        jax.tree.leaves(networks_of(config)), jax.tree.leaves(networks_of(expected)), strict=True
    ):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


def files_of(config):
    directory = pathlib.Path(config.run_dir)
    return sorted(
        path.name.split(".")[0] if "tfevents" in path.name else str(path.relative_to(directory))
        for path in directory.rglob("*")
    )


def observed_by(monkeypatch, observer, *, seed):
    """Have an observer look at the runs of a seed, before their own."""
    make_observers = preparation.make_observers

    def observers_of(ring, config, **options):
        observers = make_observers(ring, config, **options)
        first = (observer,) if config.seed == seed else ()
        return dataclasses.replace(observers, in_order=(*first, *observers.in_order))

    monkeypatch.setattr(preparation, "make_observers", observers_of)


class AtCycle(Observer):
    """Calls a function once a learner cycle has been reached."""

    def __init__(self, cycle, call):
        self._cycle, self._call = cycle, call

    def on_cycle(self, report):
        if report.num_cycles >= self._cycle:
            self._call()


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_each_seed_has_the_files_and_numbers_of_its_run_alone(tmp_path, lag):
    mapped = configs_of(tmp_path / "mapped", [0, 3], lag=lag)
    alone = configs_of(tmp_path / "alone", [0, 3], lag=lag)
    assert train(mapped) == [EXIT_DONE, EXIT_DONE]
    assert training.train_to_exit_code(*alone) == EXIT_DONE
    for one, other in zip(mapped, alone, strict=True):
        assert files_of(one) == files_of(other)
        assert counts_of(one) == counts_of(other)
        rows, expected = rows_of(one), rows_of(other)
        assert [sorted(row) for row in rows] == [sorted(row) for row in expected]
        returns = [row["episode_return_mean"] for row in rows]
        assert returns == pytest.approx([row["episode_return_mean"] for row in expected], abs=0.1)
        assert_same_networks(one, other)
    run_json = json.loads((tmp_path / "mapped" / "seed-3" / "run.json").read_text())
    assert run_json["mapped_seeds"] == [0, 3]
    run_json = json.loads((tmp_path / "alone" / "seed-3" / "run.json").read_text())
    assert run_json["mapped_seeds"] == []


def test_a_seed_that_reaches_its_goal_is_saved_as_of_it_and_the_others_continue(tmp_path):
    goal = {"stop_at_return": -0.45}
    mapped = configs_of(tmp_path / "mapped", [0, 2], run=goal)
    alone = configs_of(tmp_path / "alone", [0, 2], run=goal)
    assert train(mapped) == [EXIT_DONE] * 2
    assert training.train_to_exit_code(*alone) == EXIT_DONE
    cycles = [summary_of(config)["learner_cycles"] for config in mapped]
    assert 1 < cycles[1] < cycles[0]
    for one, other in zip(mapped, alone, strict=True):
        assert counts_of(one) == counts_of(other)
        assert_same_networks(one, other)


def test_a_signal_ends_all_seeds_and_they_are_resumed_together_to_the_same_bits(
    tmp_path, monkeypatch
):
    parts = configs_of(tmp_path / "parts", [0, 1])
    whole = configs_of(tmp_path / "whole", [0, 1])
    with monkeypatch.context() as patch:
        stop = AtCycle(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        observed_by(patch, stop, seed=0)
        assert train(parts) == [128 + signal.SIGTERM] * 2
    assert {summary_of(config)["status"] for config in parts} == {"interrupted"}
    assert summary_of(parts[0])["learner_cycles"] < 30
    assert train([dataclasses.replace(each, resume="latest") for each in parts]) == [EXIT_DONE] * 2
    run_json = json.loads((tmp_path / "parts/seed-1/run.json").read_text())
    assert mapped_seeds(run_json) == [0, 1], "with them, verify can repeat its first part"
    assert train(whole) == [EXIT_DONE] * 2
    for one, other in zip(parts, whole, strict=True):
        assert counts_of(one) == counts_of(other)
        assert summary_of(one)["networks_crc32"] == summary_of(other)["networks_crc32"]


@pytest.mark.slow
def test_a_seed_is_resumed_alone_with_a_warning(tmp_path, monkeypatch, capfd):
    (first, second), (whole,) = (
        configs_of(tmp_path / "mapped", [0, 1]),
        configs_of(tmp_path / "whole", [1]),
    )
    with monkeypatch.context() as patch:
        observed_by(patch, AtCycle(3, lambda: os.kill(os.getpid(), signal.SIGTERM)), seed=0)
        train([first, second])
    capfd.readouterr()
    assert training.train_to_exit_code(dataclasses.replace(second, resume="latest")) == EXIT_DONE
    assert "seeds of its program (before [0, 1], now [])" in capfd.readouterr().err
    assert training.train_to_exit_code(whole) == EXIT_DONE
    assert counts_of(second) == counts_of(whole)
    assert_same_networks(second, whole)
    run_json = json.loads((tmp_path / "mapped/seed-1/run.json").read_text())
    assert (run_json["mapped_seeds"], run_json["resumed"][-1]["mapped_seeds"]) == ([0, 1], [])


def test_an_error_of_a_seed_ends_that_seed_only(tmp_path, monkeypatch, capfd):
    configs = configs_of(tmp_path, [0, 1, 2])

    def fail():
        raise OSError("no space")

    observed_by(monkeypatch, AtCycle(5, fail), seed=1)
    assert train(configs) == [EXIT_DONE, EXIT_FAILED, EXIT_DONE]
    assert [summary_of(each)["status"] for each in configs] == ["done", "failed", "done"]
    assert "OSError: no space" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("is_saved", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_seed_whose_arrays_do_not_fit_into_memory_fails_and_tries_again_to_be_saved(
    is_saved, tmp_path, monkeypatch
):
    configs, rings_of_seeds, failures = configs_of(tmp_path, [0, 1]), [], []
    make_observers, arrive = preparation.make_observers, Anakin.arrive

    def observers_of(ring, config, **options):
        rings_of_seeds.append(ring)
        return make_observers(ring, config, **options)

    def fail(anakin, end, networks):
        if anakin.ring is rings_of_seeds[1] and not (failures and is_saved):
            failures.append(anakin.ring.learner.num_cycles)
            raise RuntimeError("RESOURCE_EXHAUSTED")
        arrive(anakin, end, networks)

    monkeypatch.setattr(preparation, "make_observers", observers_of)
    monkeypatch.setattr(Anakin, "arrive", fail)
    assert train(configs) == [EXIT_DONE, EXIT_FAILED]
    assert [summary_of(each)["status"] for each in configs] == ["done", "failed"]
    assert summary_of(configs[1])["reason"].startswith("RuntimeError: RESOURCE_EXHAUSTED")
    steps = steps_in(tmp_path / "seed-1/checkpoints")
    assert steps == (failures if is_saved else [])


def test_an_update_that_is_not_finite_ends_its_seed_as_in_turn(tmp_path, monkeypatch):
    def with_broken_seed(directory):
        configs = configs_of(directory, [0, 1])
        make_observers = preparation.make_observers

        def observers_of(ring, config, **options):
            if config.seed == 1:
                state = ring.learner.state
                broken = jax.tree.map(lambda leaf: leaf * np.nan, state.networks)
                ring.learner.state = dataclasses.replace(state, networks=broken)
                ring.learner.published = ring.programs.learner.actor_networks(broken)
            return make_observers(ring, config, **options)

        monkeypatch.setattr(preparation, "make_observers", observers_of)
        return configs

    configs = with_broken_seed(tmp_path / "mapped")
    assert train(configs) == [EXIT_DONE, EXIT_NON_FINITE]
    _, alone = with_broken_seed(tmp_path / "alone")
    assert training.train_to_exit_code(alone) == EXIT_NON_FINITE
    assert counts_of(configs[1])[0] == counts_of(alone)[0]
    places = [
        json.loads((tmp_path / how / "seed-1" / "non_finite.json").read_text())
        for how in ("mapped", "alone")
    ]
    assert places[0] == places[1]


def test_a_seed_whose_directory_is_taken_is_refused_and_the_others_are_trained(tmp_path, capfd):
    first, second = configs_of(tmp_path, [0, 1])
    assert train([second]) == [EXIT_DONE]
    assert train([first, second]) == [EXIT_DONE, EXIT_CONFIG]
    assert "run_dir: expected a new or empty directory" in capfd.readouterr().err


def test_seeds_that_do_not_fit_into_memory_are_refused(tmp_path):
    (config,) = configs_of(tmp_path, [0])
    ring = rings.make_ring(config)
    plan, devices = ring.programs.memory_plan, ring.learner.learner_devices.devices
    rings.close(ring)
    roles = {"actor_devices": devices, "learner_devices": devices}
    check_memory(plan, **roles, num_seeds=2)
    with pytest.raises(ConfigError, match=r"1000000000 seeds as one program need .* in_turn"):
        check_memory(plan, **roles, num_seeds=10**9)


def test_seeds_whose_environments_step_with_other_functions_are_refused(
    tmp_path, monkeypatch, capfd
):
    configs = configs_of(tmp_path / "runs", [0, 1])
    monkeypatch.setattr("sebulba.ring.mapped_seeds.act_cycles_of", lambda ring: (ring,))
    assert train(configs) == [EXIT_DONE, EXIT_CONFIG]
    assert "run.seeds: mapped needs environments that step with" in capfd.readouterr().err
    assert not pathlib.Path(configs[1].run_dir).exists()


def test_later_seeds_of_one_program_trace_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(TracedAgent, "num_losses", 0)
    monkeypatch.setattr("sebulba.config.agents.agent_factory", lambda name: TracedAgent)
    traces = []
    for numbers in ([0, 1], [0, 1, 2]):
        before = TracedAgent.num_losses
        assert set(train(configs_of(tmp_path / str(len(numbers)), numbers))) == {EXIT_DONE}
        traces.append(TracedAgent.num_losses - before)
    assert traces[0] == traces[1] > 0


@pytest.mark.slow
def test_seeds_on_several_devices_are_those_of_runs_alone(tmp_path):
    changes = {
        "devices": DevicesConfig(actor=(0, 1), learner=(0, 1)),
        "learner": LearnerConfig(policy_lag=0, trajectories_per_cycle=2),
    }
    mapped = [
        dataclasses.replace(each, **changes) for each in configs_of(tmp_path / "mapped", [0, 1])
    ]
    alone = [
        dataclasses.replace(each, **changes) for each in configs_of(tmp_path / "alone", [0, 1])
    ]
    assert train(mapped) == [EXIT_DONE, EXIT_DONE]
    assert training.train_to_exit_code(*alone) == EXIT_DONE
    for one, other in zip(mapped, alone, strict=True):
        assert counts_of(one) == counts_of(other)
        assert_same_networks(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env_steps"),
    [
        ("a2c_bandit", 2_000),
        ("ddqn_bandit", 2_000),
        ("impala_recall", 2_000),
        ("pqn_bandit", 2_000),
        ("r2d2_recall", 2_000),
        ("rainbow_bandit", 2_000),
        # 12 updates: the difference by rounding was 1e-6, after 31 updates 7e-4, after 62 5e-3.
        ("sac_bandit", 700),
    ],
)
def test_shipped_agents_learn_with_other_seeds_as_alone(name, env_steps, tmp_path):
    flags = [
        *("--run.mode", "anakin", "--run.seeds", "mapped", "--actor.threads-per-device", "1"),
        *("--devices.actor", "[0]", "--devices.learner", "[0]", "--run.stop-at-return", "null"),
        *("--run.total-env-steps", str(env_steps), "--run.log-interval-env-steps", "1000"),
    ]
    config = load_config(name, flags)
    mapped, alone = (
        [dataclasses.replace(config, seed=i, run_dir=str(tmp_path / how / str(i))) for i in (0, 1)]
        for how in ("mapped", "alone")
    )
    assert train(mapped) == [EXIT_DONE, EXIT_DONE]
    assert training.train_to_exit_code(*alone) == EXIT_DONE
    for one, other in zip(mapped, alone, strict=True):
        assert counts_of(one) == counts_of(other)
        assert_same_networks(one, other)


FLAGS = ("--run.mode", "anakin", "--env.suite", "jax", "--env.id", "Catch-v0")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--run.mode", "threads"), "run.mode: expected anakin with run.seeds mapped, got threads"),
        (("--distributed", "auto"), "distributed.mode: expected off with run.seeds mapped"),
        (("--run.profile", "{}"), "run.profile: expected null with run.seeds mapped"),
        (("--run.wandb-project", "x"), "run.wandb_project: expected null with run.seeds mapped"),
    ],
)
def test_runs_that_cannot_be_mapped_are_refused_or_trained_in_turn(flags, message, monkeypatch):
    monkeypatch.setattr(seeds, "has_accelerator", lambda: True)
    config = load_config("impala_catch", [*FLAGS, *flags, "--run.seeds", "auto"])
    assert not seeds.are_mapped(config)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, seeds="mapped"))
    with pytest.raises(ConfigError, match=message):
        seeds.are_mapped(config)


@pytest.mark.parametrize(
    ("has_accelerator", "setting", "expected"),
    [
        (True, "auto", True),
        (False, "auto", False),
        (True, "in_turn", False),
        (False, "mapped", True),
    ],
)
def test_seeds_are_mapped_where_it_is_faster_or_where_the_user_says(
    has_accelerator, setting, expected, monkeypatch
):
    monkeypatch.setattr(seeds, "has_accelerator", lambda: has_accelerator)
    config = load_config("impala_catch", [*FLAGS, "--run.seeds", setting])
    assert seeds.are_mapped(config) is expected
