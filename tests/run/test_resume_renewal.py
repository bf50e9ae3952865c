"""Runs whose environments are recreated: at fixed cycles, and where they cannot be stored."""

import dataclasses

import chex
import numpy as np
import pytest

from sebulba.config import (
    ActorConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearnerConfig,
    RunConfig,
)
from sebulba.config.validation import validate
from sebulba.errors import ConfigError
from sebulba.run import training
from sebulba.storage.checkpoints.restore import steps_in
from sebulba_agents.config import ImpalaConfig
from tests.ring_parts import info_of, trajectory_of
from tests.rings import (
    act,
    actor_cycles,
    close,
    episode_window,
    episodes_interrupted,
    make_ring,
    resume,
    run_config,
)
from tests.run.resuming import comparable, rows_in
from tests.toys import ToyConfig

ENVPOOL = EnvConfig(suite="envpool", id="CartPole-v1")
GYMNASIUM = EnvConfig(suite="gymnasium", id="CartPole-v1")
CATCH = EnvConfig(suite="jax", id="Catch-v0")
IMPALA = ImpalaConfig(hidden_sizes=(8,), lstm_size=8)


def make_config(env=ENVPOOL, agent=None, *, every=3, lag=0, per_cycle=1, mode="threads", **changes):
    return Config(
        env=env,
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(
            threads_per_device=2,
            num_envs=4,
            trajectory_length=5,
            cycle=changes.pop("cycle", "auto"),
        ),
        learner=LearnerConfig(policy_lag=lag, trajectories_per_cycle=per_cycle),
        run=RunConfig(total_env_steps=350, log_interval_env_steps=70, mode=mode),
        checkpoint=CheckpointConfig(interval_s=None, exact_reset_cycles=every),
        agent=agent or ToyConfig(),
        **changes,
    )


@pytest.mark.parametrize(
    ("config", "stop_at", "resumed_at"),
    [
        # Of 2 actors with 3 cycles between two renewals, every 6th learner cycle lies on one.
        pytest.param(make_config(), 8, 6, id="envpool-fused", marks=pytest.mark.slow),
        pytest.param(
            make_config(agent=IMPALA), 8, 6, id="envpool-fused-impala", marks=pytest.mark.slow
        ),
        pytest.param(make_config(GYMNASIUM, mode="serial"), 13, 12, id="gymnasium-serial"),
        # 3 trajectories a cycle of 2 actors with 2 cycles: 4 divides 3 · 4.
        pytest.param(
            make_config(GYMNASIUM, every=2, per_cycle=3, mode="serial"),
            5,
            4,
            id="3-a-cycle",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            make_config(GYMNASIUM), 4, 0, id="before-the-first-renewal", marks=pytest.mark.slow
        ),
    ],
)
def test_lock_step_run_with_renewals_in_parts_is_bitwise_the_uninterrupted_run(
    config, stop_at, resumed_at, tmp_path
):
    expected, expected_rows, _ = run_config(config)
    first, first_rows, _ = run_config(config, tmp_path, stop_at_cycle=stop_at)
    assert first.learner.num_cycles == stop_at
    ring, rows, resumed = run_config(config, tmp_path, which="latest")
    assert (resumed.level, resumed.num_cycles) == ("exact-reset", resumed_at)
    chex.assert_trees_all_equal(ring.learner.state, expected.learner.state)
    kept = [row for row in first_rows if row["env_steps"] <= resumed.env_steps]
    assert comparable(kept + rows) == comparable(expected_rows)
    assert episode_window(ring) == episode_window(expected)
    assert ring.progress.episodes_cut == expected.progress.episodes_cut > 0


def test_every_renewal_begins_other_episodes():
    first_rows = []
    ring = make_ring(make_config(GYMNASIUM, every=2))
    for cycle in range(5):
        env_steps = trajectory_of(act(ring)).env_steps
        assert bool(env_steps.is_first[0].all()) == (cycle % 2 == 0)
        if cycle % 2 == 0:
            first_rows.append(np.asarray(env_steps.observation[0]))
    close(ring)
    assert not np.array_equal(first_rows[0], first_rows[1])
    assert not np.array_equal(first_rows[1], first_rows[2])


def test_episodes_over_a_renewal_are_cut_or_finished_but_never_both():
    """Every episode of the actor's rows is in the statistics once, or counted as cut."""
    ring = make_ring(make_config(GYMNASIUM, every=2))
    *items, last = [act(ring) for _ in range(41)]  # the last reports how the stream before it ended
    close(ring)
    finished = sum(len(info_of(item).episodes) for item in [*items, last])
    finished -= int(np.asarray(trajectory_of(last).env_steps.done[:-1]).sum())
    cut = sum(info_of(item).episodes_cut for item in [*items, last])
    ends = starts = 0
    for item in items:
        rows = trajectory_of(item).env_steps
        # The last row is the next trajectory's first, unless the stream ends with it.
        is_last = info_of(item).sequence_number % 2 == 1
        done = np.asarray(rows.done if is_last else rows.done[:-1])
        is_first = np.asarray(rows.is_first[:-1])
        ends, starts = ends + done.sum(), starts + is_first.sum()
    assert finished == ends > 0
    # All that began ended or was cut, and what began with a stream's last row had no step.
    assert starts - ends == cut > 0


def test_checkpoint_of_a_finished_run_is_its_end_and_resumes_at_restart(tmp_path, capsys):
    config = make_config(GYMNASIUM, every=4, mode="serial", run_dir=str(tmp_path))
    assert training.train_to_exit_code(config) == 0
    ring = make_ring(config)
    resumed = resume(ring, tmp_path / "checkpoints", "latest")
    assert resumed.level == "restart"
    assert resumed.env_steps == rows_in(tmp_path)[-1]["env_steps"] >= 350
    under_way = episodes_interrupted(ring)
    assert 0 < under_way <= 8
    cut = ring.progress.episodes_cut
    longer = dataclasses.replace(config.run, total_env_steps=500)
    close(ring)
    assert (
        training.train_to_exit_code(dataclasses.replace(config, run=longer, resume="latest")) == 0
    )
    assert rows_in(tmp_path)[-1]["episodes_cut"] >= cut + under_way
    assert "(restart: environments are recreated" in capsys.readouterr().err


def test_copies_are_only_taken_where_all_actors_have_new_environments(tmp_path):
    config = make_config(GYMNASIUM, mode="serial")
    config = dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, interval_s=0, keep=100)
    )
    ring, _, _ = run_config(config, tmp_path)
    *copies, last = steps_in(tmp_path)
    assert copies
    assert all(step % 6 == 0 for step in copies)
    assert last == ring.learner.num_cycles


@pytest.mark.parametrize("env", [pytest.param(ENVPOOL, marks=pytest.mark.slow), GYMNASIUM])
def test_resume_at_restart_begins_other_episodes_than_the_run_did(env, tmp_path):
    config = make_config(env, every=None, mode="serial")
    run_config(config, tmp_path, stop_at_cycle=4)
    begun, resumed_rows = [], []
    for rows, at_checkpoint in ((begun, False), (resumed_rows, True)):
        ring = make_ring(config)
        if at_checkpoint:
            assert resume(ring, tmp_path, "latest").level == "restart"
        for actor_id in range(len(ring.actors)):
            env_steps = trajectory_of(act(ring, actor_id)).env_steps
            rows.append(np.asarray(env_steps.observation[0]))
            assert env_steps.is_first[0].all()
        close(ring)
    assert not np.array_equal(begun, resumed_rows)


def test_jax_environments_that_are_stepped_resume_exactly(tmp_path):
    config = make_config(CATCH, every=None, cycle="stepped")
    expected, expected_rows, _ = run_config(config)
    _, first_rows, _ = run_config(config, tmp_path, stop_at_cycle=7)
    ring, rows, resumed = run_config(config, tmp_path, which="latest")
    assert (resumed.level, resumed.num_cycles) == ("exact", 7)
    chex.assert_trees_all_equal(ring.learner.state, expected.learner.state)
    assert comparable(first_rows + rows) == comparable(expected_rows)


def test_a_lag_keeps_checkpoints_on_renewals(tmp_path):
    config = make_config(GYMNASIUM, lag=1)
    run_config(config, tmp_path, stop_at_cycle=8)
    ring = make_ring(config)
    assert resume(ring, tmp_path, "latest").num_cycles == 6
    assert actor_cycles(ring) == [3, 3]
    close(ring)


def test_renewals_that_cannot_be_kept_are_refused():
    with pytest.raises(ConfigError, match=r"exact_reset_cycles: an exact resume needs"):
        validate(make_config(lag=None))
    with pytest.raises(ConfigError, match=r"exact_reset_cycles: .* checkpoints hold"):
        make_ring(make_config(CATCH))


def test_renewals_may_not_change_when_a_run_is_resumed(tmp_path, capsys):
    config = make_config(GYMNASIUM, mode="serial", run_dir=str(tmp_path))
    short = dataclasses.replace(config.run, total_env_steps=1)
    assert training.train_to_exit_code(dataclasses.replace(config, run=short)) == 0
    other = dataclasses.replace(config.checkpoint, exact_reset_cycles=5)
    assert (
        training.train_to_exit_code(dataclasses.replace(config, checkpoint=other, resume="latest"))
        == 2
    )
    assert "checkpoint.exact_reset_cycles (there 3, now 5)" in capsys.readouterr().err
