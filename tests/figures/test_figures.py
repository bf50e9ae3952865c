"""The figure of runs: its panels, lines, colours and legend."""

import itertools
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from sebulba.config import LearnerConfig, RunConfig
from sebulba.figures.axes import tick_label
from sebulba.figures.curves import group_runs
from sebulba.figures.drawing import (
    ALL_PANELS,
    COLOURS,
    PANELS,
    draw,
    save,
)
from sebulba.figures.matches import draw_matches
from sebulba.figures.panels import ACTIVITY_COLOURS
from sebulba.storage.run_files import read_runs
from sebulba_agents.config import PPOConfig
from tests.run_directories import make_run

RETURNS = [PANELS["returns"]]


def draw_runs(*paths, panels=ALL_PANELS, **options):
    return draw(group_runs(read_runs(paths)), panels, **options)


def panels_of(figure, title):
    return [axes for axes in figure.axes if axes.get_title() == title]


def legend_of(figure):
    (legend,) = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    return [text.get_text().replace("\u00a0", " ") for text in legend.get_texts()]


def make_seeds(folder, *finals, **changes):
    return [
        make_run(folder / str(seed), seed=seed, returns=(0.0, final), **changes)
        for seed, final in enumerate(finals)
    ]


def by_width(axes):
    lines = {}
    for line in axes.lines:
        lines.setdefault(line.get_linewidth(), []).append(line)
    return lines


def test_three_seeds_are_a_thick_line_with_a_band_and_thin_lines(tmp_path):
    (panel,) = draw_runs(*make_seeds(tmp_path, 1.0, 2.0, 6.0), panels=RETURNS).axes
    lines = by_width(panel)
    (thick,) = lines[2.0]
    np.testing.assert_allclose(thick.get_ydata(), [0, 3])
    assert sorted(line.get_ydata()[-1] for line in lines[0.7]) == [1, 2, 6]
    assert len(panel.collections) == 1


def test_two_seeds_have_no_band(tmp_path):
    figure = draw_runs(*make_seeds(tmp_path, 1.0, 2.0), panels=RETURNS)
    (panel,) = figure.axes
    assert set(by_width(panel)) == {2.0, 0.7}
    assert len(panel.collections) == 0
    assert legend_of(figure) == ["impala (2 seeds)", "interquartile mean over seeds", "one seed"]


def test_a_seed_without_data_has_no_line(tmp_path):
    empty = make_run(tmp_path / "empty", seed=9, returns=(), status=None)
    figure = draw_runs(*make_seeds(tmp_path, 1.0), empty, panels=RETURNS)
    (panel,) = figure.axes
    assert [len(line.get_xdata()) for line in panel.lines] == [2]
    assert legend_of(figure) == ["impala (2 seeds)"]


def test_seeds_are_not_drawn_where_several_algorithms_have_bands(tmp_path):
    figure = draw_runs(
        *make_seeds(tmp_path / "impala", 1.0, 2.0, 6.0),
        *make_seeds(tmp_path / "ppo", 1.0, 2.0, 6.0, agent=PPOConfig()),
        panels=RETURNS,
        use_mean=True,
    )
    (panel,) = figure.axes
    assert {width: len(lines) for width, lines in by_width(panel).items()} == {2.0: 2}
    algorithms = ["impala (3 seeds)", "ppo (3 seeds)"]
    assert legend_of(figure) == [*algorithms, "mean over seeds", "its 95 % bootstrap interval"]


def test_among_several_algorithms_seeds_begin_where_their_band_ends(tmp_path):
    longer = [
        make_run(tmp_path / f"long{seed}", seed=seed, returns=(0.0, 1.0, 2.0)) for seed in (0, 1)
    ]
    short = make_run(tmp_path / "short", seed=2, returns=(0.0, 1.0))
    other = make_seeds(tmp_path / "ppo", 1.0, 2.0, 6.0, agent=PPOConfig())
    (panel,) = draw_runs(*longer, short, *other, panels=RETURNS).axes
    ends = panel.lines[0].get_xdata()[-1]
    thin = by_width(panel)[0.7]
    assert [line.get_xdata().tolist() for line in thin] == [[ends, 1.5 * ends]] * 2


def test_panels_do_not_repeat_the_label_of_their_neighbour(tmp_path):
    paths = [make_run(tmp_path / name, env_id=name) for name in ("Catch-v0", "Recall-v0")]
    panels = draw_runs(*paths, panels=ALL_PANELS[:2]).axes  # two rows
    assert [panel.get_ylabel() for panel in panels] == ["mean episode return", ""] * 2
    assert [panel.get_xlabel() for panel in panels] == [
        *("", ""),
        *("env steps", "wall time with start-up [s]"),
    ]


def test_seeds_without_common_values_of_x_are_full_lines(tmp_path):
    first, second = make_seeds(tmp_path, 1.0, 2.0, status=None)
    text = (second / "metrics.jsonl").read_text()
    later = text.replace('"wall_time_s": ', '"wall_time_s": 10')
    (second / "metrics.jsonl").write_text(later)
    (panel,) = draw_runs(first, second, panels=[PANELS["returns_over_time"]]).axes
    (lines,) = by_width(panel).values()
    assert [line.get_xdata().tolist() for line in lines] == [[2, 4], [102, 104]]
    assert {line.get_alpha() for line in lines} == {None}


def test_the_goal_is_a_line_with_a_legend(tmp_path):
    goal = RunConfig(stop_at_return=5.0)
    figure = draw_runs(make_run(tmp_path / "run", run=goal), panels=ALL_PANELS[:2])
    for panel in figure.axes:
        (line,) = by_width(panel)[1.0]
        assert set(line.get_ydata()) == {5.0}
    assert legend_of(figure) == ["impala (1 seed)", "goal: run.stop_at_return"]


def test_each_remote_actor_is_a_line_with_a_dot_where_a_process_replaced_another(tmp_path):
    path = make_run(tmp_path / "run", returns=(0.0, 1.0, 2.0))
    assert len(draw_runs(path).axes) == len(draw_runs(path, panels=ALL_PANELS[:-1]).axes)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    numbers = {"3": ([None, 40.0, 60.0], [0, 0, 1]), "12": ([None, 10.0, 20.0], [0, 0, 0])}
    for actor, (rates, restarts) in numbers.items():
        for row, rate, count in zip(rows, rates, restarts, strict=True):
            row[f"remote_actor/{actor}/steps_per_second"] = rate
            row[f"remote_actor/{actor}/restarts"] = count
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (panel,) = draw_runs(path, panels=[PANELS["remote_actors"]]).axes[:1]
    lines = [[*zip(line.get_xdata(), line.get_ydata(), strict=True)] for line in panel.lines]
    assert lines == [[(200, 40), (300, 60)], [(300, 60)], [(200, 10), (300, 20)], []]


def test_win_rates_against_the_pool_are_a_mean_and_its_extremes(tmp_path):
    path = make_run(tmp_path / "run", returns=(0.0, 1.0, 2.0))
    assert not any("win rate" in axes.get_title() for axes in draw_runs(path).axes)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row, rates in zip(rows, [(0.5, 0.5), None, (0.25, 0.75)], strict=True):
        row.update({f"win_rate_{place}": rate for place, rate in enumerate(rates or ())})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert any("win rate" in axes.get_title() for axes in draw_runs(path).axes)
    (panel,) = draw_runs(path, panels=[PANELS["win_rates"]]).axes[:1]
    lines = [[*zip(line.get_xdata(), line.get_ydata(), strict=True)] for line in panel.lines]
    assert lines == [
        [(100, 0.5), (300, 0.5)],
        [(100, 0.5), (300, 0.25)],
        [(100, 0.5), (300, 0.75)],
    ]


def test_ratings_of_checkpoints_are_a_line_over_env_steps_beside_the_scores_of_pairs():
    def rating(name, env_steps, elo):
        return {"run": name, "env_steps": env_steps, "elo": elo, "low": elo - 5, "high": elo + 9}

    results = {
        "elo": [rating("a@9", 200, 20.0), rating("a@3", 100, -30.0), rating("b", 50, 10.0)],
        "matches": [{"score": 0.9}, {"score": 0.6}, {"score": 0.3}],
    }
    ratings, payoffs = draw_matches(results).axes
    lines = [[*zip(*each.lines[0].get_data(), strict=True)] for each in ratings.containers]
    assert lines == [[(100, -30.0), (200, 20.0)], [(50, 10.0)]]
    assert [each.get_text() for each in ratings.get_legend().get_texts()] == ["a", "b"]
    scores = payoffs.images[0].get_array()
    np.testing.assert_allclose(scores.filled(-1), [[-1, 0.9, 0.6], [0.1, -1, 0.3], [0.4, 0.7, -1]])


def test_the_legend_covers_no_panel(tmp_path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", env_id="Recall-v0")]
    for panels in (RETURNS, ALL_PANELS[:2], ALL_PANELS):
        figure = draw_runs(*paths, panels=panels)
        FigureCanvasAgg(figure).draw()
        (legend,) = [
            *figure.legends,
            *(axes.get_legend() for axes in figure.axes if not axes.axison),
        ]
        for axes in figure.axes:
            if axes.axison:
                assert not legend.get_window_extent().overlaps(axes.get_tightbbox())
        assert figure.bbox.contains(*legend.get_window_extent().max)


def test_every_environment_has_panels_of_its_own_and_algorithms_have_one_colour(tmp_path):
    paths = [make_run(tmp_path / name, env_id=name) for name in ("Catch-v0", "Recall-v0")]
    figure = draw_runs(*paths)
    for environment in ("jax Catch-v0", "jax Recall-v0"):
        returns, over_time, _ = panels_of(figure, environment)
        assert len(returns.lines) == 1
        np.testing.assert_allclose(returns.lines[0].get_xdata(), [200, 300, 400])
        np.testing.assert_allclose(over_time.lines[0].get_xdata(), [4, 6, 8])
        assert returns.lines[0].get_color() == COLOURS[0]
    assert legend_of(draw_runs(*paths, panels=RETURNS)) == ["impala (1 seed)"]


@pytest.mark.parametrize(
    ("seconds", "label", "end"),
    [(40.0, "[s]", 160.0), (1000.0, "[min]", 4000 / 60), (1e4, "[h]", 40 / 3.6)],
)
def test_wall_time_has_the_unit_that_suits_it(tmp_path, seconds, label, end):
    path = make_run(tmp_path / "run", returns=())
    rows = ""
    for i in range(1, 5):
        rows += f'{{"wall_time_s": {i * seconds}, "loss": 1.0}}\n'
    (path / "metrics.jsonl").write_text(rows)
    (panel,) = draw_runs(path, panels=[("wall_time_s", "loss")]).axes
    assert panel.get_xlabel() == f"wall time with start-up {label}"
    assert panel.get_ylabel() == "loss"
    assert panel.lines[0].get_xdata()[-1] == pytest.approx(end)


@pytest.mark.parametrize("returns", [(), (None, None), (1.0,)])
def test_runs_with_little_or_no_data_can_be_drawn(tmp_path, returns):
    figure = draw_runs(make_run(tmp_path / "run", returns=returns, status=None))
    panel, _, _ = panels_of(figure, "jax Catch-v0")
    shown = [text.get_text() for text in panel.texts]
    assert shown == ([] if any(returns) else ["no data yet"])
    save(figure, tmp_path / "curves.svg")
    assert b"<svg" in (tmp_path / "curves.svg").read_bytes()


def test_a_single_row_is_a_visible_point(tmp_path):
    panel, _, _ = panels_of(draw_runs(make_run(tmp_path / "run", returns=(1.0,))), "jax Catch-v0")
    assert [line.get_marker() for line in panel.lines] == ["o"]


def test_shares_of_each_thread_fill_its_bar(tmp_path):
    (panel,) = panels_of(draw_runs(make_run(tmp_path / "run")), "time of the threads by activity")
    ends = {}
    for bar in panel.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([1.0, 1.0])


def test_policy_lags_are_shares_of_the_trajectories_of_a_group(tmp_path):
    seeds = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    lagging = make_run(tmp_path / "b", learner=LearnerConfig(policy_lag=2))
    (panel,) = panels_of(draw_runs(*seeds, lagging), "policy lag")
    shares = [(round(bar.get_x() + 0.2), bar.get_height()) for bar in panel.patches]
    assert shares == [(0, 0.25), (2, 0.75)] * 2


def test_more_groups_than_colours_still_look_different(tmp_path):
    paths = [
        make_run(tmp_path / f"{lag}", learner=LearnerConfig(policy_lag=lag)) for lag in range(9)
    ]
    panel, *_ = panels_of(draw_runs(*paths), "jax Catch-v0")
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.lines}) == 9


def test_the_same_runs_give_the_same_svg(tmp_path):
    path = make_run(tmp_path / "run")
    for name in ("one.svg", "other.svg"):
        save(draw_runs(path), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


# Linear RGB as colour-blind readers see it: Machado, Oliveira and Fernandes 2009, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", severity 1.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ_OF_RGB = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def lab_of(colour, vision):
    """Return CIELAB coordinates of an sRGB colour, as seen with a kind of vision."""
    encoded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    xyz = XYZ_OF_RGB @ np.clip(VISION[vision] @ linear, 0, 1) / XYZ_OF_RGB.sum(axis=1)
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_lab_of_white_and_red_are_the_published_coordinates():
    np.testing.assert_allclose(lab_of("#FFFFFF", "normal"), [100, 0, 0], atol=1e-3)
    np.testing.assert_allclose(lab_of("#FF0000", "normal"), [53.24, 80.09, 67.20], atol=0.02)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("colours", [COLOURS, tuple(ACTIVITY_COLOURS.values())])
def test_colours_differ_for_colour_blind_readers(colours, vision):
    """ΔE is the distance in CIELAB (CIE 1976)."""
    for one, other in itertools.combinations(colours, 2):
        distance = np.linalg.norm(lab_of(one, vision) - lab_of(other, vision))
        assert distance >= 15, (one, other)


@pytest.mark.parametrize("vision", VISION)
def test_lines_differ_from_the_background(vision):
    for colour in COLOURS:
        assert np.linalg.norm(lab_of(colour, vision) - lab_of("#FFFFFF", vision)) >= 30, colour


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 1e6, 2e6], ["0", "1M", "2M"]),
        ([0, 500, 1000], ["0", "500", "1000"]),
        ([5_000, 15_000], ["5k", "15k"]),
        ([0, 0.2e6, 1e6], ["0", "0.2M", "1.0M"]),
        ([-2e4, 0, 2e4], ["-20k", "0", "20k"]),
        ([0.25, 0.5, 1.0], ["0.25", "0.50", "1.00"]),
        ([0.1 + 0.2, 0.4], ["0.3", "0.4"]),
        ([0, 1e-7, 2e-7], ["0", "1e-07", "2e-07"]),
    ],
)
def test_tick_labels_have_one_unit_and_equally_many_decimals(ticks, labels):
    assert [tick_label(tick, ticks) for tick in ticks] == labels
