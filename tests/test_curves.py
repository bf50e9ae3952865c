"""Reading runs, grouping seeds, and the lines and texts of the figure."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from sebulba.config import ActorConfig, LearnerConfig
from sebulba.curves import band, curve, draw, format_count, group_runs, read_run, read_runs, save
from sebulba.errors import ConfigError
from sebulba_agents.config import ImpalaConfig, PPOConfig
from tests.run_directories import SHARES, make_row, make_run


def test_read_run_gives_config_rows_and_status(tmp_path):
    run = read_run(make_run(tmp_path / "run", seed=3))
    assert run.config["env.id"] == "Catch-v0"
    assert run.config["seed"] == 3
    assert len(run.rows) == 4
    assert run.status == "done"


def test_column_is_nan_where_a_row_has_no_value(tmp_path):
    path = make_run(tmp_path / "run", returns=(None, 1.0, 2))
    column = read_run(path).column("episode_return_mean")
    assert [None if math.isnan(each) else each for each in column] == [None, 1.0, 2.0]


def test_read_run_ignores_a_line_that_is_being_written(tmp_path):
    path = make_run(tmp_path / "run", status=None)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 500, "upd')
    run = read_run(path)
    assert [row["env_steps"] for row in run.rows] == [100, 200, 300, 400]
    assert "running" in run.status


def test_read_run_ignores_a_summary_older_than_the_rows(tmp_path):
    path = make_run(tmp_path / "run", status="interrupted")
    assert read_run(path).status == "interrupted"
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(make_row(5, 5.0)) + "\n")
    assert "running" in read_run(path).status


def test_read_run_without_rows_has_empty_columns(tmp_path):
    run = read_run(make_run(tmp_path / "run", returns=(), status=None))
    assert run.column("env_steps") == []
    assert run.time_shares() == {}


def test_policy_lags_are_counted_over_all_rows(tmp_path):
    assert read_run(make_run(tmp_path / "run")).policy_lags() == {0: 4, 2: 12}


def test_time_shares_without_a_summary_weigh_rows_by_their_wall_time(tmp_path):
    path = make_run(tmp_path / "run", returns=(1.0,), status=None)
    waiting = make_row(4, 1.0) | {"time/actor/act": 0.0, "time/actor/wait for queue": 1.0}
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(waiting) + "\n")
    shares = read_run(path).time_shares()
    # 2 s of the first row with a share of 0.75, 6 s of the second with none.
    assert shares["actor"] == pytest.approx({"act": 0.1875, "wait for queue": 0.8125})


def test_time_shares_are_the_summarys_where_there_is_one(tmp_path):
    assert read_run(make_run(tmp_path / "run")).time_shares() == SHARES


def test_read_runs_finds_the_runs_below_a_directory_in_natural_order(tmp_path):
    for seed in (10, 9, 0):
        make_run(tmp_path / f"seed-{seed}", seed=seed)
    (tmp_path / "notes").mkdir()
    runs = read_runs([tmp_path, tmp_path / "seed-9"])
    assert [run.path.name for run in runs] == ["seed-0", "seed-9", "seed-10"]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_read_runs_names_the_missing_file(tmp_path, name):
    path = make_run(tmp_path / "run")
    (path / name).unlink()
    with pytest.raises(ConfigError, match=f"run: expected a run directory with a {name}"):
        read_runs([path])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", "{}\nnonsense\n{}\n", r"metrics\.jsonl:2: expected a JSON object"),
        ("metrics.jsonl", "[1]\n", r"metrics\.jsonl:1: expected a JSON object, got \[1\]"),
        ("metrics.jsonl", b"{}\n\xff\n", r"metrics\.jsonl:2: expected a JSON object"),
        ("summary.json", "{", r"summary\.json: expected a JSON object, got"),
        ("summary.json", "[]", r"summary\.json: expected a JSON object, got \[\]"),
        ("config.yaml", "env: [", r"config\.yaml:\d"),
    ],
)
def test_read_runs_names_the_broken_file(tmp_path, name, text, message):
    path = make_run(tmp_path / "run")
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_runs([path])


def test_read_runs_of_a_directory_without_a_run_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="got no such directory"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"expected a config\.yaml here or in a subdirectory"):
        read_runs([tmp_path])


def groups_of(tmp_path, *all_changes):
    paths = [make_run(tmp_path / str(i), **changes) for i, changes in enumerate(all_changes)]
    return group_runs(read_runs(paths))


def test_runs_that_differ_only_in_seed_and_directory_are_one_group(tmp_path):
    (group,) = groups_of(
        tmp_path, {"seed": 0}, {"seed": 4, "run_dir": "elsewhere"}, {"seed": 7, "resume": "latest"}
    )
    assert group.label == "impala Catch-v0"
    assert group.seeds == "seeds 0, 4, 7"
    assert group.environment == "jax Catch-v0"


def test_many_seeds_are_counted(tmp_path):
    (group,) = groups_of(tmp_path, *({"seed": seed} for seed in range(9)))
    assert group.seeds == "9 seeds"


def test_a_label_has_only_the_keys_that_differ(tmp_path):
    groups = groups_of(
        tmp_path,
        {"agent": ImpalaConfig(learning_rate=1e-3)},
        {"agent": ImpalaConfig(learning_rate=1e-4), "actor": ActorConfig(num_envs=32)},
        {"agent": PPOConfig()},
    )
    assert [group.label for group in groups] == [
        "impala actor.num_envs=16 agent.learning_rate=0.001",
        "impala actor.num_envs=32 agent.learning_rate=0.0001",
        "ppo",
    ]


def test_a_label_has_the_environment_where_it_differs(tmp_path):
    groups = groups_of(tmp_path, {"env_id": "Catch-v0"}, {"env_id": "Recall-v0"})
    assert [group.label for group in groups] == ["Catch-v0", "Recall-v0"]


def test_a_key_that_an_older_run_lacks_counts_as_null(tmp_path):
    older, newer = (make_run(tmp_path / name) for name in ("older", "newer"))
    text = (older / "config.yaml").read_text()
    assert "  policy_lag: null\n" in text
    (older / "config.yaml").write_text(text.replace("  policy_lag: null\n", ""))
    lagging = make_run(tmp_path / "lagging", learner=LearnerConfig(policy_lag=2))
    groups = group_runs(read_runs([older, newer, lagging]))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("impala Catch-v0 learner.policy_lag=null", 2),
        ("impala Catch-v0 learner.policy_lag=2", 1),
    ]


def make_curve(*points):
    xs, ys = zip(*points, strict=True)
    return np.array(xs, float), np.array(ys, float)


NOTHING = (np.array([]), np.array([]))


def test_band_is_mean_and_range_between_points_of_different_curves():
    result = band([make_curve((0, 0), (2, 4)), make_curve((0, 2), (1, 0), (2, 0))])
    np.testing.assert_allclose(result.x, [0, 1, 2])
    np.testing.assert_allclose(result.mean, [1, 1, 2])
    np.testing.assert_allclose(result.low, [0, 0, 0])
    np.testing.assert_allclose(result.high, [2, 2, 4])


def test_band_covers_what_every_curve_covers():
    result = band([make_curve((0, 1), (9, 1)), make_curve((3, 1), (5, 1), (12, 1))])
    np.testing.assert_allclose(result.x, [3, 5, 9])


def test_band_needs_two_curves_that_overlap():
    line = make_curve((0, 1), (1, 1))
    assert band([line, NOTHING]) is None
    assert band([line, make_curve((2, 1), (3, 1))]) is None
    assert band([]) is None


def test_curve_leaves_out_rows_without_a_value(tmp_path):
    run = read_run(make_run(tmp_path / "run", returns=(None, 1.0, None, 3.0)))
    xs, ys = curve(run, "env_steps", "episode_return_mean")
    np.testing.assert_allclose(xs, [200, 400])
    np.testing.assert_allclose(ys, [1, 3])


def draw_runs(*paths):
    return draw(group_runs(read_runs(paths)))


def panels(figure, title):
    return [axes for axes in figure.axes if axes.get_title() == title]


def test_seeds_are_a_thick_mean_with_a_band_and_thin_lines(tmp_path):
    paths = [make_run(tmp_path / f"{seed}", seed=seed, returns=(seed, 4.0)) for seed in (0, 2)]
    returns, _, _ = panels(draw_runs(*paths), "jax Catch-v0")
    mean, *single = sorted(returns.lines, key=lambda line: -line.get_linewidth())
    np.testing.assert_allclose(mean.get_ydata(), [1, 4])
    assert sorted(line.get_ydata()[0] for line in single) == [0, 2]
    assert len(returns.collections) == 1


def test_every_environment_has_a_row_of_its_own(tmp_path):
    paths = [make_run(tmp_path / name, env_id=name) for name in ("Catch-v0", "Recall-v0")]
    figure = draw_runs(*paths)
    for environment in ("jax Catch-v0", "jax Recall-v0"):
        returns, over_time, _ = panels(figure, environment)
        assert len(returns.lines) == 1
        np.testing.assert_allclose(returns.lines[0].get_xdata(), [200, 300, 400])
        np.testing.assert_allclose(over_time.lines[0].get_xdata(), [4, 6, 8])


@pytest.mark.parametrize("returns", [(), (None, None), (1.0,)])
def test_runs_with_little_or_no_data_can_be_drawn(tmp_path, returns):
    figure = draw_runs(make_run(tmp_path / "run", returns=returns, status=None))
    panel, _, _ = panels(figure, "jax Catch-v0")
    shown = [text.get_text() for text in panel.texts]
    assert shown == ([] if any(returns) else ["no data yet"])
    save(figure, tmp_path / "curves.svg")
    assert b"<svg" in (tmp_path / "curves.svg").read_bytes()


def test_a_single_row_is_a_visible_point(tmp_path):
    panel, _, _ = panels(draw_runs(make_run(tmp_path / "run", returns=(1.0,))), "jax Catch-v0")
    assert [line.get_marker() for line in panel.lines] == ["o"]


def test_shares_of_each_thread_fill_its_bar(tmp_path):
    (panel,) = panels(draw_runs(make_run(tmp_path / "run")), "time of the threads by activity")
    ends = {}
    for bar in panel.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([1.0, 1.0])


def test_policy_lags_are_shares_of_the_trajectories_of_a_group(tmp_path):
    seeds = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    lagging = make_run(tmp_path / "b", learner=LearnerConfig(policy_lag=2))
    (panel,) = panels(draw_runs(*seeds, lagging), "policy lag")
    shares = [(round(bar.get_x() + 0.2), bar.get_height()) for bar in panel.patches]
    assert shares == [(0, 0.25), (2, 0.75)] * 2


def test_more_groups_than_colours_still_look_different(tmp_path):
    paths = [
        make_run(tmp_path / f"{lag}", learner=LearnerConfig(policy_lag=lag)) for lag in range(9)
    ]
    panel, *_ = panels(draw_runs(*paths), "jax Catch-v0")
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.lines}) == 9


def test_the_same_runs_give_the_same_svg(tmp_path):
    path = make_run(tmp_path / "run")
    for name in ("one.svg", "other.svg"):
        save(draw_runs(path), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0, "0"),
        (500, "500"),
        (15_000, "15k"),
        (2_500_000, "2.5M"),
        (0.1 + 0.2, "0.3"),
        (-2e4, "-20k"),
    ],
)
def test_format_count_is_short(value, label):
    assert format_count(value) == label
