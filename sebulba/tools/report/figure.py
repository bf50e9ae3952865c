"""Draw a set of runs: returns, speed, time by activity, policy lag.

Uses matplotlib's objects, without pyplot's global state or a display.
"""

from collections.abc import Sequence
from typing import Any, BinaryIO

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sebulba.tools.report.bands import band, curve
from sebulba.tools.report.groups import Group
from sebulba.tools.report.panels import NO_DATA, Styles, draw_lags, draw_legend, draw_time_shares

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), distinct for colour-blind readers.
# With more groups than colours, the line style changes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#8C6D31")
_LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")

_PANEL_WIDTH, _PANEL_HEIGHT = 4.6, 3.2  # inches
_GROUP_HEIGHT = 0.6  # inches, two bars
_CURVES = (
    ("env_steps", "episode_return_mean", "env steps", "mean episode return"),
    ("wall_time_s", "episode_return_mean", "wall time with start-up [s]", "mean episode return"),
    ("env_steps", "steps_per_second", "env steps", "env steps per second"),
)
_NOTE = (
    "Thick line: mean over seeds. Band: minimum to maximum over seeds. Both end where a seed has no"
    " more data. Thin line: one seed."
)


def draw(groups: Sequence[Group]) -> Figure:
    """Draw the groups: a row of curves for each environment, then time, policy lag and legend.

    The returns are the logged means over the last `run.return_window` episodes. With several seeds,
    a thick line is their mean, a band their range, and a thin line one seed.
    """
    environments = list(dict.fromkeys(group.environment for group in groups))
    heights = [_PANEL_HEIGHT] * len(environments)
    heights += [max(_PANEL_HEIGHT, 1.0 + _GROUP_HEIGHT * len(groups))]
    figure = Figure(figsize=(3 * _PANEL_WIDTH, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(heights), 3, squeeze=False, height_ratios=heights)
    styles = _styles(groups)
    for row, environment in zip(panels, environments, strict=False):
        here = [group for group in groups if group.environment == environment]
        for axes, (x, y, x_label, y_label) in zip(row, _CURVES, strict=True):
            _draw_curves(axes, here, x, y, styles)
            _label(axes, title=environment, x_label=x_label, y_label=y_label)
        row[2].set_ylim(bottom=0)
    draw_time_shares(panels[-1][0], groups)
    draw_lags(panels[-1][1], groups, styles)
    draw_legend(panels[-1][2], groups, styles)
    if any(len(group.runs) > 1 for group in groups):
        figure.supxlabel(_NOTE, fontsize=9)
    return figure


def _styles(groups: Sequence[Group]) -> Styles:
    return {
        group.label: {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _LINE_STYLES[number // len(_COLOURS) % len(_LINE_STYLES)],
        }
        for number, group in enumerate(groups)
    }


def save(figure: Figure, path: str) -> None:
    """Write the figure in the format of the path's suffix: .png, .svg or .pdf.

    Raises:
        OSError: the file cannot be written.
    """
    if path.endswith(".svg"):
        with open(path, "wb") as file:
            write_svg(figure, file)
    else:
        figure.savefig(path, dpi=120)


def write_svg(figure: Figure, file: BinaryIO) -> None:
    """Write the figure as SVG, without date and random ids: equal figures give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "sebulba"}):
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_curves(axes: Axes, groups: Sequence[Group], x: str, y: str, styles: Styles) -> None:
    is_empty = True
    for group in groups:
        style = styles[group.label]
        curves = [curve(run, x, y) for run in group.runs]
        is_empty = is_empty and not any(len(xs) for xs, _ in curves)
        spread = band(curves)
        if spread is not None:
            axes.fill_between(
                spread.x, spread.low, spread.high, color=style["color"], alpha=0.2, linewidth=0
            )
            axes.plot(spread.x, spread.mean, linewidth=2, **style)
        for xs, ys in curves:
            thin: dict[str, Any] = (
                {"linewidth": 0.7, "alpha": 0.5} if len(curves) > 1 else {"linewidth": 1.6}
            )
            # A single point draws no line.
            axes.plot(xs, ys, marker="o" if len(xs) == 1 else None, **thin, **style)
    if is_empty:
        axes.text(0.5, 0.5, NO_DATA, ha="center", va="center", transform=axes.transAxes)
        # The ticks of empty axes are meaningless.
        axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)


def _label(axes: Axes, *, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def format_count(value: float) -> str:
    """Return a tick's label: 150k, 2.5M, 0.02."""
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale:
            return f"{value / (1e3 if suffix == 'k' else scale):g}{suffix}"
    return f"{round(value, 6):g}"
