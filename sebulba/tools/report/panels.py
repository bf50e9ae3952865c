"""The panels without curves: time by activity, policy lag, legend."""

import collections
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sebulba.tools.report.groups import Group

# The activities of sebulba.ring.timing: work is coloured, waiting is grey.
_ACTIVITY_COLOURS = {
    "act": "#0072B2",
    "environment": "#56B4E9",
    "inference": "#004C78",
    "update": "#D55E00",
    "transfer": "#E69F00",
    "publish": "#F0C987",
    "metrics": "#009E73",
    "checkpoint": "#CC79A7",
    "wait for networks": "#999999",
    "wait for queue": "#C4C4C4",
    "wait for trajectories": "#DDDDDD",
}
Styles = Mapping[str, dict[str, Any]]
"""Colour and line style of each group, by its label."""

NO_DATA = "no data yet"
_OTHER_COLOUR = "#8C6D31"
_MIN_SHARE = 0.005  # less is not visible, and left out of the legend
_LABEL_WIDTH = 22  # characters
_LEGEND_WIDTH = 48  # characters
_LAG_WIDTH = 0.8  # learner cycles, all groups' bars together


def draw_time_shares(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw a stacked bar for each group and kind of thread: the mean of its runs' shares."""
    bars = [
        (group.label, kind, shares)
        for group in groups
        for kind, shares in _mean_shares(group).items()
    ]
    axes.set_title("time of the threads by activity", fontsize=10)
    if not bars:
        axes.text(0.5, 0.5, NO_DATA, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    activities = [name for name in _ACTIVITY_COLOURS if any(name in bar[2] for bar in bars)]
    activities += sorted({name for bar in bars for name in bar[2]} - set(activities))
    left = np.zeros(len(bars))
    for name in activities:
        widths = np.array([shares.get(name, 0.0) for _, _, shares in bars])
        if widths.max() >= _MIN_SHARE:
            colour = _ACTIVITY_COLOURS.get(name, _OTHER_COLOUR)
            axes.barh(range(len(bars)), widths, left=left, color=colour, label=name, height=0.7)
        left += widths
    several = len(groups) > 1
    labels = [f"{_wrapped(label)}\n{kind}" if several else kind for label, kind, _ in bars]
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize=7.5, frameon=False
    )


def draw_lags(axes: Axes, groups: Sequence[Group], styles: Styles) -> None:
    """Draw the distribution of policy lag over each group's trajectories."""
    axes.set_title("policy lag", fontsize=10)
    axes.set_xlabel("learner cycles between acting and learning")
    axes.set_ylabel("share of trajectories")
    axes.spines[["top", "right"]].set_visible(False)
    measured = {
        group.label: lags
        for group in groups
        if (lags := sum((run.policy_lags() for run in group.runs), collections.Counter()))
    }
    if not measured:
        axes.text(0.5, 0.5, NO_DATA, ha="center", va="center", transform=axes.transAxes)
        return
    width = _LAG_WIDTH / len(measured)
    for number, (label, lags) in enumerate(measured.items()):
        shares = np.array(list(lags.values())) / lags.total()
        left = np.array(list(lags)) - _LAG_WIDTH / 2 + number * width
        axes.bar(left, shares, width=width, align="edge", color=styles[label]["color"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(-0.5, max(2, *(max(lags) for lags in measured.values())) + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def draw_legend(axes: Axes, groups: Sequence[Group], styles: Styles) -> None:
    """Draw the legend of the groups."""
    handles = [Line2D([], [], linewidth=2, **styles[group.label]) for group in groups]
    labels = [textwrap.fill(f"{group.label} ({group.seeds})", _LEGEND_WIDTH) for group in groups]
    axes.set_axis_off()
    axes.legend(handles, labels, loc="upper left", frameon=False, fontsize=9)


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


def _wrapped(label: str) -> str:
    return textwrap.fill(label, _LABEL_WIDTH)
