"""Acting and learning as one program: the same run as with threads or in one thread."""

import dataclasses
import json
import pathlib

import chex
import jax
import numpy as np
import pytest

from sebulba.config import CheckpointConfig
from sebulba.config.loading import load_config
from sebulba.process import EXIT_CONFIG, EXIT_NON_FINITE
from sebulba.pytree import without_key
from sebulba.ring.calls import Calls
from sebulba.ring.ring import Ring
from sebulba.run import training
from tests import disturbances, rings
from tests.extras import needs_search
from tests.faults import runs as faulty_runs
from tests.rings import make_ring, run_ring

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
TIMES = ("wall_time_s", "steps_per_second", "time/", "all_reduce/", "queue_depth")


def make_config(name, *flags, mode, lag=0, run_dir=None, devices="[0]"):
    flags = [
        *("--learner.policy-lag", str(lag), "--actor.threads-per-device", "1", "--run.mode", mode),
        *("--devices.actor", devices, "--devices.learner", devices),
        *("--run.stop-at-return", "null", "--seed", "3", *flags),
    ]
    config = load_config(str(CONFIGS / f"{name}.yaml"), flags)
    return dataclasses.replace(config, run_dir=run_dir and str(run_dir))


def run_config(config):
    ring = make_ring(config)
    rows = run_ring(ring, mode=config.run.mode)
    return ring, [without_times(row) for row in rows]


def without_times(row):
    return {key: value for key, value in row.items() if not key.startswith(TIMES)}


def as_numbers(state):
    return jax.tree.map(lambda leaf: np.asarray(without_key(leaf)), state)


def assert_same_runs(config, *, as_mode="serial"):
    learners = []
    for mode in ("anakin", as_mode):
        run_changed = dataclasses.replace(config.run, mode=mode)
        ring, rows = run_config(dataclasses.replace(config, run=run_changed))
        # Threads act ahead of the end.
        learned = [account["learned"] for account in ring.ledger.balance()]
        learners.append((ring.learner, rows, learned, ring.progress.updates))
    (anakin, rows, learned, updates), (serial, expected_rows, *expected) = learners
    assert [learned, updates] == expected
    assert (anakin.num_cycles, anakin.num_updates) == (serial.num_cycles, serial.num_updates)
    assert len(rows) == len(expected_rows) > 1
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-5, nan_ok=True)
    chex.assert_trees_all_close(
        as_numbers(anakin.state), as_numbers(serial.state), rtol=1e-5, atol=1e-6
    )


STEPS = ("--run.total-env-steps", "3000", "--run.log-interval-env-steps", "1000")
# An agent that is traced and compiled fast, and takes two updates in a learner cycle.
SMALL = ("--agent.hidden-sizes", "[8]", "--agent.num-epochs", "1", "--agent.num-minibatches", "2")
SMALL = (*SMALL, *STEPS)


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_run_is_the_same_as_in_one_thread(lag):
    assert_same_runs(make_config("ppo_bandit", *SMALL, mode="anakin", lag=lag))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 4, 16])
@pytest.mark.parametrize("name", ["impala_catch", "ppo_recall", "pqn_bandit"])
def test_a_run_with_a_lag_is_the_same_as_with_threads(name, lag):
    config = make_config(name, mode="anakin", lag=lag)
    env_steps = 20 * config.actor.num_envs * config.actor.trajectory_length
    run_changed = dataclasses.replace(
        config.run, total_env_steps=env_steps, log_interval_env_steps=env_steps // 4
    )
    config = dataclasses.replace(config, run=run_changed)
    assert config.learner.trajectories_per_cycle == 1
    assert_same_runs(config, as_mode="threads")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impala_catch", "ppo_recall", "sac_bandit", "r2d2_recall"])
def test_shipped_agents_learn_the_same_as_in_lock_step(name):
    flags = ["--run.total-env-steps", "20000", "--run.log-interval-env-steps", "4000"]
    assert_same_runs(make_config(name, *flags, mode="anakin"))


@pytest.mark.slow
@needs_search
def test_an_agent_that_searches_learns_the_same_as_in_lock_step():
    flags = ["--run.total-env-steps", "2000", "--run.log-interval-env-steps", "500"]
    flags += ["--agent.num-simulations", "4", "--agent.replay-ratio", "16"]
    assert_same_runs(make_config("gumbel_muzero_catch", *flags, mode="anakin"))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_several_devices_and_actors_learn_the_same_as_in_one_thread(lag):
    flags = ["--learner.trajectories-per-cycle", "4", *STEPS]
    assert_same_runs(make_config("impala_bandit", *flags, mode="anakin", lag=lag, devices="[0, 1]"))


@pytest.mark.slow
def test_a_goal_within_a_call_ends_the_run_at_its_cycle():
    flags = ["--run.total-env-steps", "60000", "--run.log-interval-env-steps", "50000"]
    config = make_config("ppo_bandit", *flags, mode="anakin")
    goal = dataclasses.replace(config.run, stop_at_return=0.7)
    config = dataclasses.replace(config, run=goal)
    ring, _ = run_config(config)
    serial, _ = run_config(
        dataclasses.replace(config, run=dataclasses.replace(goal, mode="serial"))
    )
    assert ring.learner.num_cycles == serial.learner.num_cycles
    assert ring.progress.env_steps == serial.progress.env_steps < 50_000
    assert int(ring.learner.state.step) == int(serial.learner.state.step)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 4])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, lag):
    def train(steps, run_dir, resume=None):
        config = make_config(
            "ppo_bandit",
            *("--run.total-env-steps", steps, "--run.log-interval-env-steps", "500"),
            mode="anakin",
            lag=lag,
            run_dir=run_dir,
        )
        config = dataclasses.replace(
            config, resume=resume, checkpoint=CheckpointConfig(interval_s=None)
        )
        assert training.train_to_exit_code(config) == 0
        summary = json.loads((run_dir / "summary.json").read_text())
        rows = [json.loads(row) for row in (run_dir / "metrics.jsonl").read_text().splitlines()]
        return summary["networks_crc32"], [without_times(row) for row in rows]

    whole = train("3000", tmp_path / "whole")
    train("1500", tmp_path / "parts")
    assert train("3000", tmp_path / "parts", "latest") == whole


@pytest.mark.slow
@pytest.mark.parametrize("modes", [("anakin", "serial"), ("serial", "anakin")])
def test_a_run_with_a_lag_may_change_its_mode_at_a_resume(tmp_path, modes):
    config = make_config("ppo_bandit", *STEPS, mode="anakin", lag=4)
    expected, _ = run_config(config)

    def run_part(mode, **part):
        run_changed = dataclasses.replace(config.run, mode=mode, log_interval_env_steps=1500)
        config_of_part = dataclasses.replace(config, run=run_changed)
        return rings.run_config(config_of_part, tmp_path, **part)[0]

    first = run_part(modes[0], stop_at_cycle=2)
    assert first.learner.num_cycles == 2
    ring = run_part(modes[1], which="latest")
    assert ring.learner.num_cycles == expected.learner.num_cycles
    chex.assert_trees_all_close(
        as_numbers(ring.learner.state), as_numbers(expected.learner.state), rtol=1e-5, atol=1e-6
    )


def test_an_update_that_is_not_finite_ends_the_run_as_in_lock_step(tmp_path):
    outcomes = []
    for mode in ("anakin", "serial"):
        config = faulty_runs.make_config(
            tmp_path / mode,
            agent=f"{faulty_runs.BREAKING}:NanAgent",
            updates_per_cycle=2,
            actor={"threads_per_device": 1},
            run={"mode": mode, "log_interval_env_steps": 400},
        )
        code = training.train_to_exit_code(config)
        summary = faulty_runs.summary_of(tmp_path / mode)
        place = json.loads((tmp_path / mode / "non_finite.json").read_text())
        counts = [summary[key] for key in ("env_steps", "updates", "networks_crc32", "ledger")]
        outcomes.append((code, place, counts))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == EXIT_NON_FINITE


def calls_and_counts(ring, monkeypatch):
    """Run a ring as one program; return its calls and counted cycles, in their order.

    A call is `("call", cycles)`, a counted cycle `("count", cycles until then)`.
    """
    events = []
    disturbances.note_calls(
        lambda num_cycles: events.append(("call", num_cycles)), monkeypatch.setattr
    )

    def note_count(progress):
        events.append(("count", progress.cycles + 1))

    disturbances.before("count", note_count, setattr=monkeypatch.setattr)
    rows = run_ring(ring, mode="anakin")
    return events, [without_times(row) for row in rows]


def num_counted_ahead(events):
    """Return how many cycles are counted while a call after theirs has been dispatched."""
    ends, num_ahead = [], 0
    for event, number in events:
        if event == "call":
            ends.append((ends[-1] if ends else 0) + number)
        else:
            end_of_call = next(end for end in ends if number <= end)
            num_ahead += end_of_call < ends[-1]
    return num_ahead


@pytest.mark.shares_programs
def test_the_next_call_is_dispatched_before_a_call_is_counted_unless_one_is_large_or_long(
    monkeypatch,
):
    config = make_config("ppo_bandit", *SMALL, mode="anakin")
    disturbances.set_most_ahead(monkeypatch)
    ring = make_ring(config)
    events, expected_rows = calls_and_counts(ring, monkeypatch)
    num_cycles = ring.learner.num_cycles
    assert events[:3] == [("call", 1), ("call", 1), ("count", 1)]
    # Close to the end, a call may be the last: every second row of this task is no env step.
    assert num_counted_ahead(events) >= num_cycles / 2
    assert sum(number for event, number in events if event == "call") == num_cycles
    assert len(expected_rows) == 3
    for limit in ("num_bytes", "seconds"):
        disturbances.set_most_ahead(monkeypatch, **{limit: 0})
        with monkeypatch.context() as patch:
            events, rows = calls_and_counts(make_ring(config, programs=ring.programs), patch)
        assert num_counted_ahead(events) == 0
        assert rows == expected_rows


@pytest.mark.shares_programs
def test_a_call_that_was_dispatched_before_the_goal_changes_nothing(monkeypatch):
    disturbances.set_most_ahead(monkeypatch)
    config = make_config("ppo_bandit", *SMALL, "--agent.learning-rate", "3e-3", mode="anakin")
    run_changed = dataclasses.replace(config.run, stop_at_return=0.3)
    config = dataclasses.replace(config, run=run_changed)
    ring = make_ring(config)
    events, rows = calls_and_counts(ring, monkeypatch)
    serial, expected = run_config(
        dataclasses.replace(config, run=dataclasses.replace(run_changed, mode="serial"))
    )
    assert ring.progress.env_steps == serial.progress.env_steps < 3000
    # The call with the goal is repeated up to it.
    dispatched = sum(number for event, number in events if event == "call")
    assert dispatched > ring.learner.num_cycles == events[-1][1] == serial.learner.num_cycles
    assert len(rows) == len(expected)
    chex.assert_trees_all_close(
        as_numbers(ring.learner.state), as_numbers(serial.learner.state), rtol=1e-5, atol=1e-6
    )


@pytest.mark.shares_programs
def test_a_goal_that_a_callback_sets_during_a_call_ends_the_run_after_a_cycle_of_it(monkeypatch):
    ring = make_ring(make_config("ppo_bandit", *SMALL, mode="anakin"))
    wait, cycles = Calls.next, []

    def set_goal(calls, of_ring):
        result = wait(calls, of_ring)
        cycles.append(ring.learner.num_cycles)
        ring.end.goal = len(cycles) == 2
        return result

    monkeypatch.setattr(Calls, "next", set_goal)
    monkeypatch.setattr(Ring, "learn", None)  # That would act and learn outside of the program.
    assert run_ring(ring, mode="anakin"), "there is a last row"
    assert ring.learner.num_cycles == cycles[-1] + 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--learner.policy-lag", "null"),
            "learner.policy_lag: expected a number with run.mode anakin, got null",
        ),
        (
            ("--env.suite", "envpool", "--env.id", "CartPole-v1"),
            "env.suite: expected JAX environments in a fused act cycle with run.mode anakin, got",
        ),
        (
            ("--actor.threads-per-device", "2", "--learner.trajectories-per-cycle", "1"),
            "learner.trajectories_per_cycle: expected a multiple of the 2 actors with run.mode"
            " anakin, got 1. Or set run.mode auto",
        ),
    ],
)
def test_a_run_that_cannot_be_one_program_is_refused(tmp_path, flags, message, capfd):
    config = make_config("ppo_bandit", *flags, mode="anakin", run_dir=tmp_path / "run")
    assert training.train_to_exit_code(config) == EXIT_CONFIG
    assert message in capfd.readouterr().err
