"""The figure of runs: curves over env steps or time, time by activity, policy lag. Imports no jax.

Matplotlib is imported by the functions that draw, since it is an extra and takes half a second.
"""

import importlib.util
import io
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sebulba.errors import ConfigError
from sebulba.figures.axes import label_axes, say_no_data, set_scales, wrap
from sebulba.figures.curves import (
    Curve,
    Group,
    band,
    check_columns,
    curve,
    extended_curves,
    group_runs,
)
from sebulba.figures.panels import (
    draw_lags,
    draw_remote_actors,
    draw_time_shares,
    draw_win_rates,
)
from sebulba.storage.run_files import read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
_KEY_COLOUR = "#606060"
_TIME_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_MIN_UNITS_SHOWN = 3.0  # an axis of 170 s is in seconds, one of 200 s in minutes
_GOAL = "goal: run.stop_at_return"
_MAX_COLUMNS = 3
_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_WIDTH = 4.6, 3.2, 2.9  # inches
_DPI = 150
_GROUP_HEIGHT = 0.6  # inches, two bars
_MIN_TAIL = 0.02  # of the axis; seeds never end at exactly the same env step
_LEGEND_LABEL_WIDTH = 34  # characters
_SUMMARY_WIDTH, _SEED_WIDTH = 2.0, 0.7  # points, of lines


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
            draw_time_shares(axes, groups)
        elif panel == REMOTE_ACTORS:
            draw_remote_actors(axes, groups, styles)
        elif panel == WIN_RATES:
            draw_win_rates(axes, groups, styles)
        else:
            draw_lags(axes, groups, styles)
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
    label_axes(axes, x, y, unit=unit)
    if not any(measured):
        say_no_data(axes)
        return
    set_scales(axes)
    if y == "steps_per_second":
        axes.set_ylim(bottom=0)


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
        label = wrap(f"{algorithm} ({seeds})", _LEGEND_LABEL_WIDTH)
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
