"""Evaluation beside training: the same training, the same figures as afterwards, no harm done."""

import json
import shutil
import signal

import jax
import pytest

from sebulba.config import EnvConfig, EvaluationConfig, RunConfig
from sebulba.evaluation.episodes import EvaluationPlan, Evaluator
from sebulba.evaluation.statistics import summarize
from sebulba.evaluation.stored import load_stored_policy
from sebulba.ring.run_end import RunEnd
from sebulba.run import training
from sebulba.run.periodic_evaluation import PeriodicEvaluation
from sebulba.storage.checkpoints.restore import steps_in
from sebulba.storage.metrics.base import REQUIRED_KEYS
from tests.evaluation.runs import tiny_config
from tests.rings import close, make_ring
from tests.run.resuming import comparable, rows_in


def evaluations_of(path):
    return [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]


def state_of(path):
    directory = path / "checkpoints" / str(steps_in(path / "checkpoints")[-1])
    manifest = json.loads((directory / "manifest.json").read_text())
    return {leaf: value["crc32"] for leaf, value in manifest["leaves"].items()}


def test_training_in_lock_step_is_bitwise_the_same_with_evaluation_and_without(run_of):
    evaluated, alone = run_of("impala evaluated"), run_of("impala")
    assert len(evaluations_of(evaluated)) > 0
    assert state_of(evaluated) == state_of(alone)
    rows = rows_in(evaluated)
    assert comparable(filter(is_of_training, rows)) == comparable(rows_in(alone))
    logged = [row for row in rows if not is_of_training(row)]
    assert [row["env_steps"] for row in logged] == [
        row["env_steps"] for row in evaluations_of(evaluated)
    ]
    for row, evaluation in zip(logged, evaluations_of(evaluated), strict=True):
        assert row["evaluation/return_mean"] == evaluation["return_mean"]
        assert set(REQUIRED_KEYS) <= set(row)


def test_videos_of_evaluations_are_in_the_run_directory_and_in_every_logger(tmp_path):
    evaluation = EvaluationConfig(interval_env_steps=1000, episodes=2, video="gif")
    path = tmp_path / "run"
    assert training.train_to_exit_code(tiny_config("impala", path, evaluation=evaluation)) == 0
    (row,) = evaluations_of(path)
    assert (path / row["video"]).read_bytes().startswith(b"GIF89a")
    assert [each["evaluation/video"] for each in rows_in(path) if not is_of_training(each)] == [
        row["video"]
    ]
    (events,) = path.glob("events.out.tfevents.*")
    data = events.read_bytes()
    assert (path / row["video"]).read_bytes() in data
    assert b"evaluation/return_mean" in data


def is_of_training(row):
    return "evaluation/episodes" not in row


def test_the_last_networks_are_evaluated_as_they_are_afterwards(run_of):
    row = evaluations_of(run_of("impala evaluated"))[-1]
    stored = load_stored_policy(run_of("impala evaluated"), "latest")
    assert (row["learner_cycle"], row["env_steps"]) == (stored.learner_cycle, stored.env_steps)
    plan = make_plan(seed=stored.config.seed)
    evaluator = Evaluator(
        stored.agent, plan, device=stored.device, num_training_envs=stored.num_training_envs
    )
    evaluation = evaluator.start(stored.networks, env_steps=stored.env_steps)
    while not evaluation.is_done:
        evaluation.advance()
    evaluation.close()
    expected = summarize(evaluation.result().records, seed=plan.seed)
    assert {key: row[key] for key in expected} == expected
    assert row["protocol"]["settings"]["rows"] == 10


def failing(*args, **kwargs):
    raise RuntimeError("no environment today")


def test_a_failing_evaluation_ends_the_run_if_asked_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Evaluator, "start", failing)
    evaluation = EvaluationConfig(interval_env_steps=60, stop_on_error=True)
    run = RunConfig(total_env_steps=200, mode="serial")
    config = tiny_config("never_ending", tmp_path / "run", evaluation=evaluation, run=run)
    assert training.train_to_exit_code(config) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "no environment today" in last
    assert "in the evaluation of cycle" in last


def test_a_resumed_run_evaluates_from_where_it_goes_on(run_of, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run_of("impala evaluated"), path)
    config = tiny_config(
        "impala",
        path,
        run=RunConfig(total_env_steps=300, log_interval_env_steps=100),
        evaluation=EvaluationConfig(interval_env_steps=1000, episodes=2),
        resume="latest",
    )
    assert training.train_to_exit_code(config) == 0
    steps = [row["env_steps"] for row in evaluations_of(path)]
    before = [row["env_steps"] for row in evaluations_of(run_of("impala evaluated"))]
    assert steps[:-1] == before
    assert steps[-1] >= 300


class ListWriter:
    """Keeps rows."""

    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append(row)

    def close(self):
        pass


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    config = tiny_config("impala", tmp_path_factory.mktemp("ring"))
    ring = make_ring(config)
    yield ring
    close(ring)


def make_plan(*, seed=0):
    return EvaluationPlan(
        env=EnvConfig(suite="jax", id="Catch-v0"),
        episodes=4,
        num_envs=2,
        max_episode_steps=1000,
        greedy=True,
        seed=seed,
    )


def stopped():
    end = RunEnd()
    end.signal = signal.SIGTERM
    return end


def make_evaluation(ring, *, now=lambda: 0.0, **changes):
    settings = {
        "interval_env_steps": 100,
        "stop_on_error": True,
        "file": ListWriter(),
        "on_message": [].append,
        "now": now,
    }
    evaluator = Evaluator(
        ring.programs.agent,
        make_plan(),
        device=jax.devices()[0],
        num_training_envs=len(ring.actors),
    )
    return PeriodicEvaluation(ring, evaluator, **settings | changes)


def fall_due(evaluation, ring, monkeypatch):
    monkeypatch.setattr(ring.progress, "env_steps", 1000)
    evaluation.on_cycle(None)


def test_a_poll_plays_no_longer_than_its_slice(ring, monkeypatch):
    # A clock on which everything takes a second: each poll plays as little as there is.
    ticks = iter(range(10_000))
    writer = ListWriter()
    evaluation = make_evaluation(ring, now=lambda: next(ticks), file=writer)
    fall_due(evaluation, ring, monkeypatch)
    polls = 0
    while not writer.rows:
        evaluation.on_poll()
        polls += 1
    assert polls > 1
    assert writer.rows[0]["episodes"] == 4
    evaluation.close(stopped())


def test_an_evaluation_gives_up_when_the_run_is_to_stop(ring, monkeypatch):
    writer, ticks = ListWriter(), iter(range(10_000))
    evaluation = make_evaluation(ring, now=lambda: next(ticks), file=writer)
    fall_due(evaluation, ring, monkeypatch)
    evaluation.close(stopped())
    assert writer.rows == []


def test_networks_that_fall_due_meanwhile_wait_and_the_newest_alone_is_taken(ring, monkeypatch):
    writer = ListWriter()
    evaluation = make_evaluation(ring, file=writer)
    for env_steps in (90, 110, 190, 250, 330):
        monkeypatch.setattr(ring.progress, "env_steps", env_steps)
        evaluation.on_cycle(None)
    while not writer.rows:
        evaluation.on_poll()
    for _ in range(10):
        evaluation.on_poll()
    assert [row["env_steps"] for row in writer.rows] == [330]
    evaluation.close(stopped())


def test_a_failing_evaluation_is_told_once_until_one_succeeds(ring, monkeypatch):
    messages = []
    evaluation = make_evaluation(ring, on_message=messages.append, stop_on_error=False)
    for env_steps, fails in ((110, True), (210, True), (310, False), (410, True)):
        monkeypatch.setattr(ring.progress, "env_steps", env_steps)
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(Evaluator, "start", failing)
            evaluation.on_cycle(None)
            evaluation.on_poll()
    assert [message.partition(":")[0] for message in messages] == [
        "evaluation at 110 env steps failed",
        "evaluation at 310 env steps",
        "evaluation at 410 env steps failed",
    ]
    evaluation.close(stopped())
