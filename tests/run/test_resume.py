"""Runs that are stopped and resumed: what comes out is what would have, had they not been."""

import dataclasses
import json
import re
import shlex
import shutil
import threading

import chex
import numpy as np
import pytest

from sebulba.config import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
    RunConfig,
)
from sebulba.config.loading import load_config
from sebulba.references import CORES
from sebulba.run import autosave, training
from sebulba.storage.checkpoints.checkpointer import Checkpointer, SaveError
from sebulba.storage.checkpoints.restore import read_meta, steps_in
from sebulba.storage.checksums import checksums_of
from sebulba.toolkit.schedules import Schedule
from sebulba_agents.config import ImpalaConfig, PPOConfig
from sebulba_agents.replay_config import GumbelMuZeroConfig, R2D2Config
from tests.disturbances import before
from tests.extras import needs_search
from tests.ring_parts import published
from tests.rings import episode_window, num_taken, run_config, total_of
from tests.run.resuming import comparable, rows_in
from tests.toys import ToyConfig

pytestmark = [pytest.mark.usefixtures("no_thread_is_left"), pytest.mark.shares_programs]

CATCH = EnvConfig(suite="jax", id="Catch-v0")
RECALL = EnvConfig(suite="jax", id="Recall-v0")
CARTPOLE = EnvConfig(suite="envpool", id="CartPole-v1")
FALLING = Schedule(schedule="linear", start=1e-3, end=0.0)
IMPALA = ImpalaConfig(hidden_sizes=(8,), lstm_size=8, learning_rate=FALLING)
R2D2 = R2D2Config(
    hidden_sizes=(8,),
    lstm_size=8,
    dueling_size=8,
    burn_in=5,
    learn_length=5,
    batch_size=8,
    replay_capacity=400,
    min_replay_rows=100,
    replay_ratio=4.0,
    target_period=5,
    importance_exponent=Schedule(schedule="linear", start=0.4, end=1.0),
)
MUZERO = GumbelMuZeroConfig(
    hidden_sizes=(8,),
    latent_size=8,
    model_sizes=(8,),
    num_simulations=4,
    unroll_length=3,
    n_step=2,
    batch_size=8,
    replay_capacity=400,
    min_replay_rows=100,
    replay_ratio=4.0,
    target_period=5,
    reanalyse_fraction=0.5,
    priority_exponent=0.6,
    importance_exponent=Schedule(schedule="linear", start=0.4, end=1.0),
)


def make_config(
    env=CATCH,
    agent=None,
    *,
    learner_devices=(0,),
    threads=2,
    lag=0,
    per_cycle=1,
    env_steps=600,
    mode="threads",
    interval_s=None,
    run_dir=None,
):
    return Config(
        env=env,
        devices=DevicesConfig(actor=(0,), learner=learner_devices),
        actor=ActorConfig(threads_per_device=threads, num_envs=4, trajectory_length=5),
        learner=LearnerConfig(policy_lag=lag, trajectories_per_cycle=per_cycle),
        # Rows that no cycle ends with: what is in them has to be carried over.
        run=RunConfig(total_env_steps=env_steps, log_interval_env_steps=170, mode=mode),
        checkpoint=CheckpointConfig(interval_s=interval_s),
        agent=agent or ToyConfig(updates_per_cycle=2),
        run_dir=None if run_dir is None else str(run_dir),
    )


@pytest.fixture
def saves_that_are_waited_for(monkeypatch):
    """However slow the disk is, a run that saves all the time leaves as many checkpoints."""
    save = Checkpointer.save

    def save_and_wait(self, *args, **kwargs):
        save(self, *args, **kwargs)
        self.wait()

    monkeypatch.setattr(Checkpointer, "save", save_and_wait)


def resuming(config, **changes):
    return dataclasses.replace(config, resume="latest", **changes)


def run_in_parts(config, directory, cycles):
    """Runs to each of the cycles in turn, and to the end, every part from the last one's end."""
    rows, which = [], None
    for cycle in (*cycles, None):
        ring, new_rows, resumed = run_config(config, directory, which=which, stop_at_cycle=cycle)
        rows += new_rows
        if which is not None:
            assert resumed.level == "exact"
        if cycle is not None:
            assert ring.learner.num_cycles == cycle
        which = "latest"
    return ring, rows


def learned(ring):
    return [account["learned"] for account in ring.ledger.balance()]


@pytest.mark.parametrize(
    ("config", "cycles"),
    [
        pytest.param(make_config(), (1, 7), id="toy"),
        pytest.param(make_config(), (2, 7, 20), id="toy-thrice", marks=pytest.mark.slow),
        pytest.param(make_config(mode="serial"), (5,), id="serial", marks=pytest.mark.slow),
        pytest.param(
            make_config(learner_devices=(1, 2)), (7,), id="2-devices", marks=pytest.mark.slow
        ),
        pytest.param(make_config(per_cycle=3), (1, 6), id="3-a-cycle", marks=pytest.mark.slow),
        pytest.param(make_config(lag=1), (7,), id="lag-1"),
        pytest.param(
            make_config(lag=3, threads=3, per_cycle=2), (2, 6), id="lag-3", marks=pytest.mark.slow
        ),
        pytest.param(
            make_config(RECALL, R2D2, lag=2, env_steps=500),
            (20,),
            id="lag-2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            make_config(learner_devices=(1, 2), per_cycle=3),
            (5,),
            id="2-devices-3",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            make_config(RECALL, IMPALA, env_steps=400), (8,), id="impala", marks=pytest.mark.slow
        ),
        pytest.param(
            make_config(RECALL, IMPALA, learner_devices=(1, 2), per_cycle=3, env_steps=500),
            (4,),
            id="impala-2-devices-3",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            make_config(CATCH, MUZERO, env_steps=500),
            (20,),
            id="gumbel_muzero",
            marks=[pytest.mark.slow, needs_search],
        ),
        # Before there is a replay to learn from, and after; it has been full once by then.
        pytest.param(
            make_config(RECALL, R2D2, env_steps=500), (3, 20), id="r2d2", marks=pytest.mark.slow
        ),
        *(
            pytest.param(
                make_config(
                    RECALL,
                    dataclasses.replace(agent, core=core),
                    learner_devices=(1, 2),
                    env_steps=500,
                ),
                (8,),
                id=f"{agent.name}-{core}-2-devices",
                marks=pytest.mark.slow,
            )
            for core in CORES
            for agent in (IMPALA, R2D2)
        ),
    ],
)
def test_run_in_parts_is_bitwise_the_uninterrupted_run(config, cycles, tmp_path):
    expected, expected_rows, _ = run_config(config)
    ring, rows = run_in_parts(config, tmp_path, cycles)
    chex.assert_trees_all_equal(ring.learner.state, expected.learner.state)
    chex.assert_trees_all_equal(published(ring.learner), published(expected.learner))
    assert comparable(rows) == comparable(expected_rows)
    assert learned(ring) == learned(expected)
    assert ring.learner.num_updates == expected.learner.num_updates > 0
    assert episode_window(ring) == episode_window(expected)


def test_a_window_of_an_earlier_version_does_not_keep_a_run_from_resuming(tmp_path, monkeypatch):
    """The next cycle replaces it, so a run resumes exactly although it had other parts."""
    agent = PPOConfig(hidden_sizes=(8,), num_epochs=2, num_minibatches=2)
    config = make_config(agent=agent, per_cycle=2, env_steps=400)
    uninterrupted, *_ = run_config(config)
    state_of = autosave.state_of

    def without_orders(ring):
        arrays, meta = state_of(ring)
        window = dataclasses.replace(arrays["learner"].experience, order=None, moments=None)
        learner = dataclasses.replace(arrays["learner"], experience=window)
        return arrays | {"learner": learner}, meta

    monkeypatch.setattr(autosave, "state_of", without_orders)
    run_config(config, directory=tmp_path, stop_at_cycle=4)
    stored = np.load(next(tmp_path.rglob("*.npz")))
    assert not [name for name in stored if name.startswith("learner.experience.order")]
    resumed, *_ = run_config(config, directory=tmp_path, which="latest")
    chex.assert_trees_all_equal(published(resumed.learner), published(uninterrupted.learner))


@pytest.mark.parametrize("lag", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_run_ahead_resumes_without_a_gap(lag, tmp_path):
    config = make_config(lag=lag, threads=3)
    first, _, _ = run_config(config, tmp_path, stop_at_cycle=9)
    # The deque raises if a number is left out, and the ledger if a step is.
    ring, rows, resumed = run_config(config, tmp_path, which="latest")
    assert resumed.num_cycles == 9
    assert resumed.env_steps == first.progress.env_steps == sum(learned(first))
    assert sum(learned(ring)) == ring.progress.env_steps >= 600
    assert num_taken(ring) == ring.learner.num_cycles
    assert rows[-1]["env_steps"] == ring.progress.env_steps
    assert total_of(first, "discarded") > 0, "what was acted ahead of the learner"


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, None])
def test_environments_that_cannot_be_stored_start_anew_and_all_else_goes_on(lag, tmp_path):
    config = make_config(CARTPOLE, IMPALA, lag=lag)
    run_config(config, tmp_path, stop_at_cycle=9)
    ring, rows, resumed = run_config(config, tmp_path, which="latest")
    assert str(resumed) == (
        "resumes at cycle 9 (restart: environments are recreated, and their current episodes are"
        " dropped)"
    )
    assert ring.progress.env_steps >= 600
    assert sum(learned(ring)) == ring.progress.env_steps
    assert rows[0]["env_steps"] > resumed.env_steps


def test_best_checkpoint_and_any_other_can_be_resumed_from(tmp_path, saves_that_are_waited_for):
    config = make_config(interval_s=0, mode="serial")
    run_config(config, tmp_path)
    steps = steps_in(tmp_path)
    ring, _, resumed = run_config(make_config(env_steps=1), tmp_path, which=steps[0])
    assert resumed.num_cycles == ring.learner.num_cycles == steps[0]
    _, _, resumed = run_config(make_config(env_steps=1), tmp_path, which="best")
    assert resumed.num_cycles in steps


def test_copies_taken_at_work_are_as_good_as_those_taken_at_the_end(
    tmp_path, saves_that_are_waited_for
):
    """Every one of them leads to the same end."""
    config = make_config(interval_s=0, mode="serial", env_steps=200)
    expected, _, _ = run_config(config, tmp_path)
    steps = steps_in(tmp_path)
    assert steps[-1] == expected.learner.num_cycles
    assert len(steps) >= 3
    for step in steps[:-1]:
        ring, _, _ = run_config(
            config, shutil.copytree(tmp_path, tmp_path / f"of {step}"), which=step
        )
        chex.assert_trees_all_equal(ring.learner.state, expected.learner.state)


def test_the_last_copy_waits_for_the_save_before_it(tmp_path, monkeypatch):
    """Learner, saved copy and last copy of a large replay may not fit into memory together."""
    calls = []
    wait = Checkpointer.wait

    def logged_wait(self):
        calls.append("wait")
        wait(self)

    monkeypatch.setattr(Checkpointer, "wait", logged_wait)
    before("copy", lambda _: calls.append("copy"), setattr=monkeypatch.setattr)
    run_config(make_config(mode="serial"), tmp_path)
    assert calls[:2] == ["wait", "copy"]
    assert calls.count("copy") == 1


def test_metrics_files_go_on_without_double_or_missing_rows(tmp_path, monkeypatch, capsys):
    """An actor dies, then the learner: the rows after its last checkpoint are written again."""
    assert training.train_to_exit_code(make_config(run_dir=tmp_path / "whole")) == 0
    expected = rows_in(tmp_path / "whole")
    config = make_config(run_dir=tmp_path / "run")
    fail_at(monkeypatch, "act", 12)
    assert training.train_to_exit_code(config) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "broke at call 12" in last
    (step,) = steps_in(tmp_path / "run/checkpoints")
    assert f"The last checkpoint is of cycle {step}" in last
    command = json.loads((tmp_path / "run/summary.json").read_text())["resume_command"]
    assert last.endswith(command)
    fail_at(monkeypatch, "count", 15)
    assert training.train_to_exit_code(resuming(config)) == 3
    assert f"resumes at cycle {step} (exact: environments are restored)" in capsys.readouterr().err
    assert steps_in(tmp_path / "run/checkpoints") == [step], "of a broken learner there is none"
    monkeypatch.undo()
    assert training.train_to_exit_code(resuming(config)) == 0
    assert comparable(rows_in(tmp_path / "run")) == comparable(expected)
    table = (tmp_path / "run/metrics.csv").read_text().splitlines()
    assert [int(line.split(",")[0]) for line in table[1:]] == [row["env_steps"] for row in expected]
    assert load_config(str(tmp_path / "run/config.yaml")) == config
    resumed = json.loads((tmp_path / "run/run.json").read_text())["resumed"]
    assert [(each["at"], each["level"]) for each in resumed] == [(step, "exact")] * 2
    assert all(each["code"]["sources"] for each in resumed)


def fail_at(monkeypatch, step, call):
    """Makes a step of the ring fail when it is taken for the `call`-th time."""
    monkeypatch.undo()
    calls = []

    def fail(_):
        calls.append(None)
        if len(calls) == call:
            raise RuntimeError(f"{step} broke at call {call}")

    before(step, fail, setattr=monkeypatch.setattr)


def test_finished_run_resumes_to_its_end_and_further_with_more_env_steps(tmp_path):
    config = make_config(run_dir=tmp_path)
    assert training.train_to_exit_code(config) == 0
    rows = rows_in(tmp_path)
    assert training.train_to_exit_code(resuming(config)) == 0
    assert rows_in(tmp_path) == rows
    longer = dataclasses.replace(config.run, total_env_steps=900)
    changes = {"run": longer, "evaluation": EvaluationConfig(interval_env_steps=10_000)}
    assert training.train_to_exit_code(resuming(config, **changes)) == 0
    assert rows_in(tmp_path)[: len(rows)] == rows
    assert rows_in(tmp_path)[-1]["env_steps"] >= 900
    command = json.loads((tmp_path / "summary.json").read_text())["resume_command"]
    again = load_config(str(tmp_path / "config.yaml"), shlex.split(command)[4:])
    assert again == resuming(config, **changes)


def test_existing_run_without_resume_ends_with_code_2_and_the_command(tmp_path, capsys):
    config = make_config(run_dir=tmp_path / "a run", env_steps=50)
    assert training.train_to_exit_code(config) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert training.train_to_exit_code(config) == 2
    path = tmp_path / "a run"
    command = f"python -m sebulba.train '{path}/config.yaml' --run-dir '{path}' --resume latest"
    assert capsys.readouterr().err.splitlines()[-1].endswith(command)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    arguments = shlex.split(command)[3:]
    assert training.train_to_exit_code(load_config(arguments[0], arguments[1:])) == 0


def test_resume_with_another_config_ends_with_code_2_and_the_keys(tmp_path, capsys):
    config = make_config(run_dir=tmp_path, env_steps=50)
    assert training.train_to_exit_code(config) == 0
    other = resuming(config, seed=4, agent=ToyConfig(learning_rate=0.5))
    assert training.train_to_exit_code(other) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "agent.learning_rate (there 0.1, now 0.5)" in last
    assert "seed (there 0, now 4)" in last
    assert "run.total_env_steps" in last.partition("may change")[0].rpartition(";")[2]


def test_resume_where_there_is_nothing_ends_with_a_code_and_leaves_nothing(tmp_path, capsys):
    config = make_config(run_dir=tmp_path / "none", env_steps=50)
    assert training.train_to_exit_code(resuming(config)) == 2
    assert "which has no config.yaml" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert training.train_to_exit_code(config) == 0
    shutil.rmtree(tmp_path / "none/checkpoints")
    rows = rows_in(tmp_path / "none")
    assert training.train_to_exit_code(resuming(config)) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert "nothing is saved yet in" in last
    assert rows_in(tmp_path / "none") == rows
    arguments = shlex.split(last.partition(": python -m sebulba.train ")[2])
    assert training.train_to_exit_code(load_config(arguments[0], arguments[1:])) == 0
    assert rows_in(tmp_path / "none")[-1]["env_steps"] == rows[-1]["env_steps"]


@pytest.mark.slow
def test_checkpoint_of_other_networks_ends_with_code_4_and_the_table(tmp_path, capsys):
    config = make_config(RECALL, IMPALA, run_dir=tmp_path, env_steps=50)
    assert training.train_to_exit_code(config) == 0
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("lstm_size: 8", "lstm_size: 6"))
    wider = resuming(config, agent=dataclasses.replace(IMPALA, lstm_size=6))
    assert training.train_to_exit_code(resuming(config)) == 2
    assert "agent.lstm_size (there 6, now 8)" in capsys.readouterr().err
    assert training.train_to_exit_code(wider) == 4
    error = capsys.readouterr().err
    assert re.search(r"learner\.networks\S*kernel\s+float32\[\S*\]\s+float32\[\S*\]", error)
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith("sebulba: CheckpointError: checkpoint ")


def test_save_that_fails_costs_one_warning_and_no_training(tmp_path, monkeypatch, capsys):
    calls = []

    def fail(self, step, *args, **kwargs):
        calls.append(step)
        self._failure = SaveError("the disk is full")

    monkeypatch.setattr(Checkpointer, "save", fail)
    config = make_config(run_dir=tmp_path, interval_s=0, mode="serial")
    assert training.train_to_exit_code(config) == 7
    assert len(calls) > 3, "it is tried again"
    *before, last = capsys.readouterr().err.splitlines()
    assert "\n".join(before).count("the disk is full") == 1
    assert "the last state is not saved: the disk is full" in last
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["resume_command"]) == ("unsaved", None)


def test_later_checkpoints_and_rows_are_set_aside_once_a_run_resumes_from_an_older_one(
    tmp_path, saves_that_are_waited_for, capsys
):
    config = make_config(run_dir=tmp_path, interval_s=0, mode="serial")
    assert training.train_to_exit_code(config) == 0
    steps = steps_in(tmp_path / "checkpoints")
    assert len(steps) >= 3
    names = ("config.yaml", "metrics.jsonl", "metrics.csv", "checksums.jsonl", "summary.json")
    files = {name: (tmp_path / name).read_bytes() for name in names}
    stop = dataclasses.replace(config.run, total_env_steps=1)
    older = dataclasses.replace(config, run=stop, resume=str(steps[0]))
    for _ in range(2):
        assert training.train_to_exit_code(older) == 0
        assert steps_in(tmp_path / "checkpoints") == steps[:1]
    assert all(row["env_steps"] < 600 for row in rows_in(tmp_path))
    aside = tmp_path / "earlier/1"
    assert steps_in(aside / "checkpoints") == steps[1:]
    assert {name: (aside / name).read_bytes() for name in names} == files
    assert not (tmp_path / "earlier/2").exists(), "there was nothing more to set aside"
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "later learner" in each]
    assert f"({', '.join(map(str, steps[1:]))}) and copies of all rows are now in {aside}" in line
    _, _, resumed = run_config(make_config(env_steps=1), aside / "checkpoints", which="latest")
    assert resumed.num_cycles == steps[-1]


def test_a_resume_that_is_refused_removes_nothing_and_leaves_no_thread(
    tmp_path, saves_that_are_waited_for, capsys
):
    bandit = EnvConfig(suite="jax", id="Bandit-v0")
    config = make_config(bandit, run_dir=tmp_path, interval_s=0, mode="serial")
    assert training.train_to_exit_code(config) == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    del files[tmp_path / "run.json"]  # which records the attempt
    first = str(steps_in(tmp_path / "checkpoints")[0])
    recorded = EvaluationConfig(interval_env_steps=200, video="gif")
    refused = dataclasses.replace(config, resume=first, evaluation=recorded)
    assert training.train_to_exit_code(refused) == 2
    assert "cannot be rendered" in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_bytes() for path in files} == files
    assert not (tmp_path / "earlier").exists()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("writer")]


def test_rows_of_checksums_and_evaluations_end_at_a_resume_that_writes_none(
    tmp_path, saves_that_are_waited_for
):
    """Rows of networks that the run no longer has would accuse its new checkpoints."""
    config = make_config(run_dir=tmp_path, interval_s=0, mode="serial")
    evaluated = EvaluationConfig(interval_env_steps=200, episodes=1)
    assert training.train_to_exit_code(dataclasses.replace(config, evaluation=evaluated)) == 0
    steps = steps_in(tmp_path / "checkpoints")
    env_steps = read_meta(tmp_path / "checkpoints", steps[0])["progress"]["env_steps"]
    changes = {"run": dataclasses.replace(config.run, checksums=False), "resume": str(steps[0])}
    assert training.train_to_exit_code(dataclasses.replace(config, **changes)) == 0
    cycles = [row.num_cycles for row in checksums_of(tmp_path)]
    assert cycles and max(cycles) <= steps[0] < max(steps)
    evaluations = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    assert all(json.loads(line)["env_steps"] <= env_steps for line in evaluations)
