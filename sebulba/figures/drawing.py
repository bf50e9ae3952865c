"""The figure of runs: curves over env steps or time, time by activity, policy lag. Imports no jax.

Matplotlib is imported by the functions that draw, since it is an extra and takes half a second.
"""

import collections
import importlib.util
import io
import itertools
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sebulba.errors import ConfigError
from sebulba.figures.curves import (
    Curve,
    Group,
    band,
    check_columns,
    curve,
    extended_curves,
    group_runs,
    read_runs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

Panel = tuple[str, str] | str
"""Columns `x` and `y` of the metrics to draw curves of, or the name of another panel."""
TIME_SHARES, POLICY_LAG, WIN_RATES, REMOTE_ACTORS = "time", "lag", "win_rates", "remote_actors"
PANELS: dict[str, Panel] = {
    "returns": ("env_steps", "episode_return_mean"),
    "returns_over_time": ("wall_time_s", "episode_return_mean"),
    "speed": ("env_steps", "steps_per_second"),
    TIME_SHARES: TIME_SHARES,
    POLICY_LAG: POLICY_LAG,
    WIN_RATES: WIN_RATES,  # only if a run has them, like the next one
    REMOTE_ACTORS: REMOTE_ACTORS,
}
"""The panels of the figure, by the names that `--panels` takes."""
ALL_PANELS = tuple(PANELS.values())

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind readers can tell
# apart, without its yellow, which is too light for a line on white. The first colours differ most
# from each other, to colour-blind readers too: the light blue comes late, since a band of the dark
# blue looks like it. With more algorithms than colours, the line style changes.
COLOURS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#56B4E9", "#E69F00", "#CC79A7")
_LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")
# The activities of sebulba.ring.clocks: work is coloured, waiting is grey.
ACTIVITY_COLOURS = {
    "act": "#0072B2",
    "environment": "#56B4E9",
    "inference": "#303030",
    "update": "#D55E00",
    "transfer": "#E69F00",
    "publish": "#009E73",
    "metrics": "#F0E442",
    "checkpoint": "#CC79A7",
    "wait for networks": "#606060",
    "wait for queue": "#BFBFBF",
    "wait for trajectories": "#ECECEC",
}
_OTHER_COLOUR = "#000000"
_KEY_COLOUR = "#606060"
_AXIS_LABELS = {
    "env_steps": "env steps",
    "wall_time_s": "wall time with start-up",
    "steps_per_second": "env steps per second",
    "episode_return_mean": "mean episode return",
    "episode_length_mean": "mean episode length",
}
_TIME_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_MIN_UNITS_SHOWN = 3.0  # an axis of 170 s is in seconds, one of 200 s in minutes
_COUNT_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from, divisor, suffix
_MIN_DECIMAL = 1e-3  # ticks below are written as 2e-05
_GOAL = "goal: run.stop_at_return"
_NO_DATA = "no data yet"
_MAX_COLUMNS = 3
_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_WIDTH = 4.6, 3.2, 2.9  # inches
_DPI = 150
_GROUP_HEIGHT = 0.6  # inches, two bars
_MIN_TAIL = 0.02  # of the axis; seeds never end at exactly the same env step
_MIN_SHARE = 0.005  # less is not visible, and left out of the legend
_BAR_LABEL_WIDTH, _LEGEND_LABEL_WIDTH = 22, 34  # characters
_SUMMARY_WIDTH, _SEED_WIDTH = 2.0, 0.7  # points, of lines
_ACTOR_WIDTH, _EXTREME_WIDTH = 1.2, 0.9  # points, of lines
_LAG_WIDTH = 0.8  # learner cycles, all bars of one lag together


def plot_runs(
    run_dirs: Sequence[str | pathlib.Path],
    output: str | pathlib.Path,
    *,
    panels: Sequence[Panel] = ALL_PANELS,
    use_mean: bool = False,
) -> None:
    """Read runs and draw them to a file.

    Args:
        run_dirs: run directories, or directories of several.
        output: the file to write or overwrite, with a suffix of `FORMATS`.
        panels: what to draw.
        use_mean: draw means over seeds instead of interquartile means.

    Raises:
        ConfigError: matplotlib is not installed, the suffix is another, no run has a column of
            `panels`, or as `read_runs`.
        OSError: the file cannot be written.
    """
    check_matplotlib()
    if pathlib.Path(output).suffix not in FORMATS:
        raise ConfigError(f"-o: expected a file ending in {', '.join(FORMATS)}, got {output}")
    runs = read_runs(run_dirs)
    chosen = [panel for panel in panels if panel not in PANELS.values()]
    check_columns(runs, [column for panel in chosen for column in panel])
    save(draw(group_runs(runs), panels, use_mean=use_mean), output)


def check_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is not installed: pip install 'sebulba[plot]'")


def png_of(figure: "Figure") -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def save(figure: "Figure", path: str | pathlib.Path) -> None:
    """Write the figure in the format of the path's suffix; equal figures give the same SVG.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib

    is_svg = pathlib.Path(path).suffix == ".svg"
    # An SVG has neither date nor random ids. Journals refuse the fonts that a PDF has by default.
    with matplotlib.rc_context({"svg.hashsalt": "sebulba", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=_DPI, metadata={"Date": None} if is_svg else None)


def draw(
    groups: Sequence[Group],
    panels: Sequence[Panel] = ALL_PANELS,
    *,
    use_mean: bool = False,
    has_legend: bool = True,
) -> "Figure":
    """Draw panels of curves for each environment, the panels without curves, and a legend.

    Returns are the logged means over the last `run.return_window` episodes. An algorithm has the
    same colour everywhere. Uses matplotlib's objects, without pyplot's global state or a display.

    Args:
        groups: the runs of each config.
        panels: what to draw.
        use_mean: draw means over seeds instead of interquartile means.
        has_legend: False: draw no legend, for a page that says what the lines are.
    """
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(group.environment for group in groups))
    algorithms = list(dict.fromkeys(group.algorithm for group in groups))
    styles = {
        algorithm: {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": _LINE_STYLES[number // len(COLOURS) % len(_LINE_STYLES)],
        }
        for number, algorithm in enumerate(algorithms)
    }
    runs = [run for group in groups for run in group.runs]
    if not any(run.remote_actors for run in runs):
        panels = [panel for panel in panels if panel != REMOTE_ACTORS] or panels
    if not any(run.win_rates for run in runs):
        panels = [panel for panel in panels if panel != WIN_RATES] or panels
    curve_panels = [panel for panel in panels if isinstance(panel, tuple)]
    cells: list[tuple[Panel, str]] = [
        (each, name) for name in environments for each in curve_panels
    ]
    cells += [(panel, "") for panel in panels if isinstance(panel, str)]
    num_columns = 2 if len(cells) == 4 else min(len(cells), _MAX_COLUMNS)
    rows = [cells[start : start + num_columns] for start in range(0, len(cells), num_columns)]
    bars_height = max(_PANEL_HEIGHT, 1.0 + _GROUP_HEIGHT * len(groups))
    heights = [bars_height if (TIME_SHARES, "") in row else _PANEL_HEIGHT for row in rows]
    # The legend is in the first cell that no panel takes, or else to the right of all panels.
    has_free_cell = len(cells) < len(rows) * num_columns
    is_beside = has_legend and not has_free_cell
    width = num_columns * _PANEL_WIDTH + (_LEGEND_WIDTH if is_beside else 0.0)
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    grid = figure.subplots(len(rows), num_columns, squeeze=False, height_ratios=heights)
    for axes, (panel, environment) in zip(grid.flat, cells, strict=False):
        if isinstance(panel, tuple):
            here = [group for group in groups if group.environment == environment]
            _draw_curves(axes, here, panel, styles, use_mean)
            axes.set_title(environment, fontsize=10)
        elif panel == TIME_SHARES:
            _draw_time_shares(axes, groups)
        elif panel == REMOTE_ACTORS:
            _draw_remote_actors(axes, groups, styles)
        elif panel == WIN_RATES:
            _draw_win_rates(axes, groups, styles)
        else:
            _draw_lags(axes, groups, styles)
    _remove_repeated_labels(grid)
    free = list(grid.flat[len(cells) :])
    for axes in free:
        axes.set_axis_off()
    if not has_legend:
        return figure
    handles = _legend_handles(groups, styles, use_mean, list(grid.flat))
    place = {"loc": "upper left"} if free else {"loc": "outside right upper"}
    (free or [figure])[0].legend(handles=handles, frameon=False, fontsize=9, **place)
    return figure


def _draw_curves(
    axes: "Axes",
    groups: Sequence[Group],
    columns: tuple[str, str],
    styles: Mapping[str, dict[str, Any]],
    use_mean: bool,
) -> None:
    """Draw a line and its band for each group, and its seeds.

    If there are several groups, seeds would hide the lines, so they begin where the band ends: some
    seeds of the group have no values there.
    """
    x, y = columns
    measured = [
        [(xs, ys) for run in group.runs for xs, ys in [curve(run, x, y)] if len(xs)]
        for group in groups
    ]
    end = max((xs[-1] for curves in measured for xs, _ in curves), default=0.0)
    unit, scale = "", 1.0
    if x == "wall_time_s":
        units = (each for each in _TIME_UNITS if end >= _MIN_UNITS_SHOWN * each[1])
        unit, scale = next(units, _TIME_UNITS[-1])
    for group, curves in zip(groups, measured, strict=True):
        style = styles[group.algorithm]
        summary = band(extended_curves(group.runs, x, y), use_mean=use_mean)
        if summary is not None:
            axes.plot(summary.x / scale, summary.line, linewidth=_SUMMARY_WIDTH, **style)
            if summary.interval is not None:
                axes.fill_between(
                    summary.x / scale, *summary.interval, color=style["color"], alpha=0.2, lw=0
                )
                if len(groups) > 1:
                    tails = [_after(summary.x[-1], each) for each in curves]
                    curves = [each for each in tails if _length(each) >= _MIN_TAIL * end]
        thin: dict[str, Any] = {} if summary is None else {"linewidth": _SEED_WIDTH, "alpha": 0.5}
        for xs, ys in curves:
            # A single point draws no line.
            marker = "o" if len(xs) == 1 else None
            axes.plot(xs / scale, ys, marker=marker, **{"linewidth": 1.6, **thin}, **style)
    if y == "episode_return_mean":
        goals = [group.runs[0].config.get("run.stop_at_return") for group in groups]
        for goal in dict.fromkeys(each for each in goals if each is not None):
            axes.axhline(goal, color=_KEY_COLOUR, linestyle="dotted", linewidth=1, label=_GOAL)
    axes.set_xlabel(_AXIS_LABELS.get(x, x) + (f" [{unit}]" if unit else ""))
    axes.set_ylabel(_AXIS_LABELS.get(y, y))
    axes.spines[["top", "right"]].set_visible(False)
    if not any(measured):
        _say_no_data(axes)
        return
    set_scales(axes)
    if y == "steps_per_second":
        axes.set_ylim(bottom=0)


def set_scales(axes: "Axes") -> None:
    """Add a grid, and ticks such as 2.5M to an axis from 0."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: tick_label(value, _ticks_of(axes.xaxis)))
    axes.yaxis.set_major_formatter(lambda value, _: tick_label(value, _ticks_of(axes.yaxis)))


def _after(start: float, curve: Curve) -> Curve:
    """Return the part of a curve from `start` to its end; nothing if it ends before."""
    xs, ys = curve
    is_after = xs > start
    if not is_after.any():
        return xs[:0], ys[:0]
    first = np.interp(start, xs, ys)
    return np.append(start, xs[is_after]), np.append(first, ys[is_after])


def _length(curve: Curve) -> float:
    xs, _ = curve
    return float(xs[-1] - xs[0]) if len(xs) else 0.0


def _remove_repeated_labels(grid: np.ndarray) -> None:
    """Label an axis only where the panel to the left, or the panel below, has another label."""
    for row in grid:
        for left, axes in reversed(list(itertools.pairwise(row))):
            if axes.get_ylabel() == left.get_ylabel():
                axes.set_ylabel("")
    for column in grid.T:
        for axes, below in itertools.pairwise(column):
            if axes.get_xlabel() == below.get_xlabel():
                axes.set_xlabel("")


def _say_no_data(axes: "Axes") -> None:
    axes.text(0.5, 0.5, _NO_DATA, ha="center", va="center", transform=axes.transAxes)
    # The ticks of empty axes are meaningless.
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)


def _legend_handles(
    groups: Sequence[Group],
    styles: Mapping[str, dict[str, Any]],
    use_mean: bool,
    panels: Sequence["Axes"],
) -> list[Any]:
    """Return an entry for each algorithm, then one for each kind of line that the panels have."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for algorithm, style in styles.items():
        counts = [len(each.runs) for each in groups if each.algorithm == algorithm]
        counts = sorted({min(counts), max(counts)})
        seeds = "1\u00a0seed" if counts == [1] else f"{'–'.join(map(str, counts))}\u00a0seeds"
        label = _wrap(f"{algorithm} ({seeds})", _LEGEND_LABEL_WIDTH)
        handles.append(Line2D([], [], linewidth=_SUMMARY_WIDTH, label=label, **style))
    widths = {line.get_linewidth() for axes in panels for line in axes.lines}
    grey: dict[str, Any] = {"color": _KEY_COLOUR}
    if _SUMMARY_WIDTH in widths:
        label = f"{'mean' if use_mean else 'interquartile mean'} over seeds"
        handles.append(Line2D([], [], linewidth=_SUMMARY_WIDTH, label=label, **grey))
    if any(axes.collections for axes in panels):
        handles.append(Patch(alpha=0.3, linewidth=0, label="its 95 % bootstrap interval", **grey))
    if _SEED_WIDTH in widths:
        handles.append(Line2D([], [], linewidth=_SEED_WIDTH, label="one seed", **grey))
    goals = [line for axes in panels for line in axes.lines if line.get_label() == _GOAL]
    return handles + goals[:1]


def _wrap(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def tick_label(value: float, ticks: Sequence[float]) -> str:
    """Return a tick's label, such as 150k, 2.5M or 0.02.

    All ticks of an axis have the unit of the largest value, and equally many decimals.
    """
    if not value:
        return "0"
    largest = max(map(abs, ticks))
    if largest < _MIN_DECIMAL:
        return f"{value:.3g}"
    units = (each for each in _COUNT_UNITS if largest >= each[0])
    _, scale, suffix = next(units, (0.0, 1.0, ""))
    shortest = [f"{round(tick / scale, 6):.6f}".rstrip("0") for tick in ticks]
    decimals = max(len(text.partition(".")[2]) for text in shortest)
    return f"{value / scale:.{decimals}f}{suffix}"


def _ticks_of(axis: "Axis") -> list[float]:
    """Return the ticks within the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    return [tick for tick in axis.get_majorticklocs() if low <= tick <= high] or [high]


def _draw_time_shares(axes: "Axes", groups: Sequence[Group]) -> None:
    """Draw a stacked bar for each group and kind of thread: the mean of its runs' shares."""
    bars = [
        (group, kind, shares) for group in groups for kind, shares in _mean_shares(group).items()
    ]
    axes.set_title("time of the threads by activity", fontsize=10)
    if not bars:
        _say_no_data(axes)
        return
    activities = [name for name in ACTIVITY_COLOURS if any(name in bar[2] for bar in bars)]
    activities += sorted({name for bar in bars for name in bar[2]} - set(activities))
    left = np.zeros(len(bars))
    for name in activities:
        widths = np.array([shares.get(name, 0.0) for _, _, shares in bars])
        if widths.max() >= _MIN_SHARE:
            colour = ACTIVITY_COLOURS.get(name, _OTHER_COLOUR)
            axes.barh(range(len(bars)), widths, left=left, color=colour, label=name, height=0.7)
        left += widths
    has_environments = len({group.environment for group in groups}) > 1
    labels = []
    for group, kind, _ in bars:
        name = f"{group.algorithm}, {group.environment}" if has_environments else group.algorithm
        text = f"{_wrap(name, _BAR_LABEL_WIDTH)}\n{kind}" if len(groups) > 1 else kind
        labels.append(text)
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize=7.5, frameon=False
    )


def _mean_shares(group: Group) -> dict[str, dict[str, float]]:
    all_shares = [run.time_shares() for run in group.runs]
    kinds = dict.fromkeys(kind for shares in all_shares for kind in shares)
    means: dict[str, dict[str, float]] = {}
    for kind in kinds:
        measured = [shares[kind] for shares in all_shares if kind in shares]
        names = dict.fromkeys(name for shares in measured for name in shares)
        means[kind] = {
            name: sum(shares.get(name, 0.0) for shares in measured) / len(measured)
            for name in names
        }
    return means


def _draw_lags(axes: "Axes", groups: Sequence[Group], styles: Mapping[str, dict[str, Any]]) -> None:
    """Draw the distribution of policy lag over each algorithm's trajectories."""
    axes.set_title("policy lag", fontsize=10)
    axes.set_xlabel("learner cycles between acting and learning")
    axes.set_ylabel("share of trajectories")
    axes.spines[["top", "right"]].set_visible(False)
    measured: dict[str, collections.Counter[int]] = {}
    for group in groups:
        lags = sum((run.policy_lags() for run in group.runs), collections.Counter())
        if lags:
            measured.setdefault(group.algorithm, collections.Counter()).update(lags)
    if not measured:
        _say_no_data(axes)
        return
    width = _LAG_WIDTH / len(measured)
    for number, (algorithm, lags) in enumerate(measured.items()):
        shares = np.array(list(lags.values())) / lags.total()
        left = np.array(list(lags)) - _LAG_WIDTH / 2 + number * width
        axes.bar(left, shares, width=width, align="edge", color=styles[algorithm]["color"])
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(-0.5, max(2, *(max(lags) for lags in measured.values())) + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _draw_win_rates(
    axes: "Axes", groups: Sequence[Group], styles: Mapping[str, dict[str, Any]]
) -> None:
    """Draw each run's win rate against the pool: the mean over its places, and the extremes."""
    axes.set_title("win rate against the pool; dotted: least, greatest", fontsize=10)
    runs = [(group, run) for group in groups for run in group.runs if run.win_rates]
    if not runs:
        _say_no_data(axes)
        return
    for group, run in runs:
        color = styles[group.algorithm]["color"]
        rates = np.array([run.column(name) for name in run.win_rates])  # [places, rows]
        is_row = np.isfinite(rates).all(axis=0)  # Rows of evaluations have none.
        xs, rates = np.array(run.column("env_steps"))[is_row], rates[:, is_row]
        axes.plot(xs, rates.mean(axis=0), linewidth=_ACTOR_WIDTH, **styles[group.algorithm])
        for extreme in (rates.min(axis=0), rates.max(axis=0)):
            axes.plot(xs, extreme, linewidth=_EXTREME_WIDTH, linestyle="dotted", color=color)
    axes.set_xlabel(_AXIS_LABELS["env_steps"])
    axes.set_ylabel("share of games won")
    axes.spines[["top", "right"]].set_visible(False)
    set_scales(axes)
    axes.set_ylim(0.0, 1.0)


def _draw_remote_actors(
    axes: "Axes", groups: Sequence[Group], styles: Mapping[str, dict[str, Any]]
) -> None:
    """Draw the speed of each remote actor, with a dot where a process replaced another."""
    axes.set_title("remote actors; a dot: a process replaced another", fontsize=10)
    runs = [(group, run) for group in groups for run in group.runs if run.remote_actors]
    if not runs:
        _say_no_data(axes)
        return
    for group, run in runs:
        style = {"linewidth": _ACTOR_WIDTH, **styles[group.algorithm]}
        xs = np.array(run.column("env_steps"))
        for actor in run.remote_actors:
            rates = np.array(run.column(f"remote_actor/{actor}/steps_per_second"))
            restarts = np.array(run.column(f"remote_actor/{actor}/restarts"))
            # Rows of evaluations have no numbers of actors.
            is_row = np.isfinite(rates)
            axes.plot(xs[is_row], rates[is_row], **style)
            has_restarted = np.diff(restarts[is_row], prepend=0.0) > 0
            dots = xs[is_row][has_restarted], rates[is_row][has_restarted]
            axes.plot(*dots, "o", markersize=3.0, color=style["color"])
    axes.set_xlabel(_AXIS_LABELS["env_steps"])
    axes.set_ylabel(_AXIS_LABELS["steps_per_second"])
    axes.spines[["top", "right"]].set_visible(False)
    set_scales(axes)
    axes.set_ylim(bottom=0)
