"""The lines and texts of the figure."""

import io

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from sebulba.config import LearnerConfig
from sebulba.tools.report.figure import draw, format_count, write_svg
from sebulba.tools.report.groups import group_runs
from sebulba.tools.report.runs import read_runs
from tests.tools.report.directories import make_run


def draw_runs(*paths):
    return draw(group_runs(read_runs(paths)))


def panels(figure, title):
    return [axes for axes in figure.axes if axes.get_title() == title]


def texts(figure):
    drawing = io.BytesIO()
    write_svg(figure, drawing)
    return drawing.getvalue().decode()


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
    assert b"<svg" in texts(figure).encode()


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
    assert texts(draw_runs(path)) == texts(draw_runs(path))


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
