"""Grouping runs, and the lines through the curves of their seeds."""

import json
import subprocess
import sys

import numpy as np
import pytest

from sebulba.config import ActorConfig, LearnerConfig, RunConfig
from sebulba.errors import ConfigError
from sebulba.evaluation.statistics import bootstrap_interval, interquartile_mean, mean
from sebulba.figures.curves import band, check_columns, curve, extended_curves, group_runs, scores
from sebulba.storage.run_files import read_run, read_runs
from sebulba_agents.config import ImpalaConfig, PPOConfig
from tests.run_directories import make_run


def groups_of(tmp_path, *all_changes):
    paths = [make_run(tmp_path / str(i), **changes) for i, changes in enumerate(all_changes)]
    return group_runs(read_runs(paths))


def names_of(groups):
    return [(group.algorithm, group.environment) for group in groups]


def test_runs_that_differ_only_in_seed_and_directory_are_one_group(tmp_path):
    (group,) = groups_of(
        tmp_path, {"seed": 0}, {"seed": 4, "run_dir": "elsewhere"}, {"seed": 7, "resume": "latest"}
    )
    assert names_of([group]) == [("impala", "jax Catch-v0")]
    assert [run.config["seed"] for run in group.runs] == [0, 4, 7]


def test_an_algorithm_has_only_the_keys_that_differ(tmp_path):
    groups = groups_of(
        tmp_path,
        {"agent": ImpalaConfig(learning_rate=1e-3)},
        {"agent": ImpalaConfig(learning_rate=1e-4), "actor": ActorConfig(num_envs=32)},
        {"agent": PPOConfig()},
    )
    assert [group.algorithm for group in groups] == [
        "impala num_envs=16 learning_rate=0.001",
        "impala num_envs=32 learning_rate=0.0001",
        "ppo",
    ]


def test_a_key_has_its_section_where_two_sections_differ_in_a_field_of_that_name(tmp_path):
    groups = groups_of(
        tmp_path,
        {"actor": ActorConfig(cycle="stepped")},
        {"actor": ActorConfig(cycle="fused"), "learner": LearnerConfig(cycle="one_program")},
    )
    assert [group.algorithm for group in groups] == [
        "impala actor.cycle=stepped learner.cycle=auto",
        "impala actor.cycle=fused learner.cycle=one_program",
    ]


def test_an_algorithm_has_one_name_in_all_environments(tmp_path):
    groups = groups_of(
        tmp_path,
        {"env_id": "Catch-v0"},
        {"env_id": "Recall-v0", "actor": ActorConfig(num_envs=32)},
        {"env_id": "Recall-v0", "agent": PPOConfig()},
    )
    assert names_of(groups) == [
        ("impala", "jax Catch-v0"),
        ("impala", "jax Recall-v0"),
        ("ppo", "jax Recall-v0"),
    ]


def test_variants_of_an_algorithm_have_the_same_names_in_all_environments(tmp_path):
    rates = [ImpalaConfig(learning_rate=rate) for rate in (1e-3, 1e-4)]
    groups = groups_of(
        tmp_path,
        {"env_id": "Catch-v0", "agent": rates[0]},
        {"env_id": "Catch-v0", "agent": rates[1]},
        {"env_id": "Recall-v0", "agent": rates[1]},
    )
    assert names_of(groups) == [
        ("impala learning_rate=0.001", "jax Catch-v0"),
        ("impala learning_rate=0.0001", "jax Catch-v0"),
        ("impala learning_rate=0.0001", "jax Recall-v0"),
    ]


def test_a_key_that_an_older_run_lacks_counts_as_null(tmp_path):
    older, newer = (make_run(tmp_path / name) for name in ("older", "newer"))
    text = (older / "config.yaml").read_text()
    assert "  queue_slots_per_actor: null\n" in text
    (older / "config.yaml").write_text(text.replace("  queue_slots_per_actor: null\n", ""))
    with_slots = make_run(tmp_path / "slots", learner=LearnerConfig(queue_slots_per_actor=2))
    groups = group_runs(read_runs([older, newer, with_slots]))
    assert [(group.algorithm, len(group.runs)) for group in groups] == [
        ("impala queue_slots_per_actor=null", 2),
        ("impala queue_slots_per_actor=2", 1),
    ]


def make_curve(*points):
    xs, ys = zip(*points, strict=True)
    return np.array(xs, float), np.array(ys, float)


def test_band_is_the_mean_of_two_curves_between_their_points():
    result = band([make_curve((0, 0), (2, 4)), make_curve((0, 2), (1, 0), (2, 0))])
    np.testing.assert_allclose(result.x, [0, 1, 2])
    np.testing.assert_allclose(result.line, [1, 1, 2])
    assert result.interval is None


def test_band_is_the_interquartile_mean_with_its_interval_at_every_point():
    finals = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    result = band([make_curve((0, 0), (1, final)) for final in finals])
    np.testing.assert_allclose(result.line, [0, 3])
    low, high = bootstrap_interval(finals, seed=0)
    np.testing.assert_allclose(np.transpose(result.interval), [[0, 0], [low, high]])
    assert result.line[1] == interquartile_mean(finals)


def test_band_of_the_mean_has_the_interval_of_the_mean():
    finals = (1.0, 2.0, 3.0, 4.0, 100.0)
    curves = [make_curve((0, 0), (1, final)) for final in finals]
    result = band(curves, use_mean=True)
    np.testing.assert_allclose(result.line, [0, 22])
    low, high = bootstrap_interval(np.array(finals), seed=0, statistic=mean)
    np.testing.assert_allclose(np.transpose(result.interval)[1], [low, high])


def test_band_covers_what_every_curve_covers():
    result = band([make_curve((0, 1), (9, 1)), make_curve((3, 1), (5, 1), (12, 1))])
    np.testing.assert_allclose(result.x, [3, 5, 9])


def test_band_of_long_curves_keeps_their_ends():
    curves = [make_curve(*((i + offset, 1.0) for i in range(500))) for offset in (0.0, 0.5)]
    result = band(curves)
    assert len(result.x) == 200
    assert (result.x[0], result.x[-1]) == (0.5, 499.0)


def test_band_needs_two_curves_that_overlap():
    line = make_curve((0, 1), (1, 1))
    assert band([line]) is None
    assert band([line, make_curve((2, 1), (3, 1))]) is None
    assert band([]) is None


def test_curve_leaves_out_rows_without_a_value(tmp_path):
    run = read_run(make_run(tmp_path / "run", returns=(None, 1.0, None, 3.0)))
    xs, ys = curve(run, "env_steps", "episode_return_mean")
    np.testing.assert_allclose(xs, [200, 400])
    np.testing.assert_allclose(ys, [1, 3])


def test_curve_over_a_column_that_falls_is_an_error(tmp_path):
    run = read_run(make_run(tmp_path / "run", returns=(2.0, 1.0)))
    with pytest.raises(ConfigError, match="values never fall, got episode_return_mean"):
        curve(run, "episode_return_mean", "env_steps")


def make_unequal_runs(tmp_path, *, status="done", goal=4.0):
    run = RunConfig(stop_at_return=goal)
    short = make_run(tmp_path / "short", seed=1, returns=(0.0, 4.0), status=status, run=run)
    empty = make_run(tmp_path / "empty", seed=2, returns=(), status=None, run=run)
    long = make_run(tmp_path / "long", seed=3, returns=(0.0, 1.0, 2.0), run=run)
    return read_runs([short, long, empty])


def test_a_run_that_reached_its_goal_keeps_its_return_until_the_longest_run_ends(tmp_path):
    curves = extended_curves(make_unequal_runs(tmp_path), "env_steps", "episode_return_mean")
    assert [(xs[-1], ys[-1]) for xs, ys in curves] == [(300, 4), (300, 2)]
    np.testing.assert_allclose(band(curves).line[-1], 3)


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("episode_return_mean", {"status": None}),
        ("episode_return_mean", {"status": "failed"}),
        ("episode_return_mean", {"goal": 5.0}),
        ("episode_return_mean", {"goal": None}),
        ("policy_lag_mean", {}),
    ],
)
def test_other_runs_and_columns_are_not_extended(tmp_path, column, changes):
    short, long = extended_curves(make_unequal_runs(tmp_path, **changes), "env_steps", column)
    assert (short[0][-1], long[0][-1]) == (200, 300)


def test_scores_hold_the_returns_of_runs_that_reached_their_goal(tmp_path):
    goal = RunConfig(stop_at_return=4.0)
    groups = groups_of(
        tmp_path,
        {"returns": (0.0, 4.0), "run": goal},
        {"returns": (0.0, 0.0, 4.0), "run": goal, "agent": PPOConfig()},
    )
    exported = scores(groups, x="env_steps", y="episode_return_mean")
    assert (exported["x"][0], exported["x"][-1]) == (100, 300)
    assert [exported["curves"][name][0][0][-1] for name in ("impala", "ppo")] == [4, 4]


def test_a_column_that_no_run_has_is_an_error_with_the_nearest(tmp_path):
    runs = read_runs([make_run(tmp_path / "run")])
    check_columns(runs, ["env_steps", "policy_lag/0"])
    with pytest.raises(ConfigError, match=r"got policy_lag_men; did you mean policy_lag_mean"):
        check_columns(runs, ["policy_lag_men"])
    check_columns(read_runs([make_run(tmp_path / "new", returns=(), status=None)]), ["anything"])


def test_scores_have_runs_tasks_and_points_as_axes(tmp_path):
    groups = groups_of(
        tmp_path,
        *(
            {"env_id": env_id, "seed": seed, "returns": (0.0, final)}
            for env_id, finals in (("Catch-v0", (1.0, 2.0, 3.0)), ("Recall-v0", (4.0, 5.0, 6.0)))
            for seed, final in enumerate(finals)
        ),
    )
    exported = json.loads(json.dumps(scores(groups, x="env_steps", y="episode_return_mean")))
    assert exported["tasks"] == ["jax Catch-v0", "jax Recall-v0"]
    assert exported["scores"] == {"impala": [[1, 4], [2, 5], [3, 6]]}
    curves = np.array(exported["curves"]["impala"])
    assert curves.shape == (3, 2, len(exported["x"]))
    np.testing.assert_allclose(curves[2, 1], np.interp(exported["x"], [100, 200], [0, 6]))


@pytest.mark.parametrize(
    ("seeds", "got"), [((0,), "2 in jax Catch-v0, 1 in jax Recall-v0"), ((), "ppo: .*, got 0 in")]
)
def test_scores_of_unequal_numbers_of_runs_are_an_error(tmp_path, seeds, got):
    groups = groups_of(
        tmp_path,
        *({"seed": seed} for seed in (0, 1)),
        *({"seed": seed, "env_id": "Recall-v0"} for seed in seeds),
        *(() if seeds else [{"env_id": "Recall-v0", "agent": PPOConfig()}]),
    )
    with pytest.raises(ConfigError, match=got if seeds else "impala: expected as many runs"):
        scores(groups, x="env_steps", y="episode_return_mean")


def test_curves_are_read_without_jax():
    command = (
        "import sys, sebulba.figures.curves, sebulba.figures.drawing; print('jax' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
