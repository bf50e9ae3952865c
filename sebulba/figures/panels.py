"""The panels of a figure that show no curves of a metric. Imports no jax."""

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sebulba.figures.axes import label_axes, say_no_data, set_scales, wrap
from sebulba.figures.curves import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_MIN_SHARE = 0.005  # less is not visible, and left out of the legend
_BAR_LABEL_WIDTH = 22  # characters
_ACTOR_WIDTH, _EXTREME_WIDTH = 1.2, 0.9  # points, of lines
_LAG_WIDTH = 0.8  # learner cycles, all bars of one lag together


def draw_time_shares(axes: "Axes", groups: Sequence[Group]) -> None:
    """Draw a stacked bar for each group and kind of thread: the mean of its runs' shares."""
    bars = [
        (group, kind, shares) for group in groups for kind, shares in _mean_shares(group).items()
    ]
    axes.set_title("time of the threads by activity", fontsize=10)
    if not bars:
        say_no_data(axes)
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
        text = f"{wrap(name, _BAR_LABEL_WIDTH)}\n{kind}" if len(groups) > 1 else kind
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


def draw_lags(axes: "Axes", groups: Sequence[Group], styles: Mapping[str, dict[str, Any]]) -> None:
    """Draw the distribution of policy lag over each algorithm's trajectories."""
    axes.set_title("policy lag", fontsize=10)
    label_axes(axes, "learner cycles between acting and learning", "share of trajectories")
    measured: dict[str, collections.Counter[int]] = {}
    for group in groups:
        lags = sum((run.policy_lags() for run in group.runs), collections.Counter())
        if lags:
            measured.setdefault(group.algorithm, collections.Counter()).update(lags)
    if not measured:
        say_no_data(axes)
        return
    width = _LAG_WIDTH / len(measured)
    for number, (algorithm, lags) in enumerate(measured.items()):
        shares = np.array(list(lags.values())) / lags.total()
        left = np.array(list(lags)) - _LAG_WIDTH / 2 + number * width
        axes.bar(left, shares, width=width, align="edge", color=styles[algorithm]["color"])
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(-0.5, max(2, *(max(lags) for lags in measured.values())) + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def draw_win_rates(
    axes: "Axes", groups: Sequence[Group], styles: Mapping[str, dict[str, Any]]
) -> None:
    """Draw each run's win rate against the pool: the mean over its places, and the extremes."""
    axes.set_title("win rate against the pool; dotted: least, greatest", fontsize=10)
    runs = [(group, run) for group in groups for run in group.runs if run.win_rates]
    if not runs:
        say_no_data(axes)
        return
    for group, run in runs:
        color = styles[group.algorithm]["color"]
        rates = np.array([run.column(name) for name in run.win_rates])  # [places, rows]
        is_row = np.isfinite(rates).all(axis=0)  # Rows of evaluations have none.
        xs, rates = np.array(run.column("env_steps"))[is_row], rates[:, is_row]
        axes.plot(xs, rates.mean(axis=0), linewidth=_ACTOR_WIDTH, **styles[group.algorithm])
        for extreme in (rates.min(axis=0), rates.max(axis=0)):
            axes.plot(xs, extreme, linewidth=_EXTREME_WIDTH, linestyle="dotted", color=color)
    label_axes(axes, "env_steps", "share of games won")
    set_scales(axes)
    axes.set_ylim(0.0, 1.0)


def draw_remote_actors(
    axes: "Axes", groups: Sequence[Group], styles: Mapping[str, dict[str, Any]]
) -> None:
    """Draw the speed of each remote actor, with a dot where a process replaced another."""
    axes.set_title("remote actors; a dot: a process replaced another", fontsize=10)
    runs = [(group, run) for group in groups for run in group.runs if run.remote_actors]
    if not runs:
        say_no_data(axes)
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
    label_axes(axes, "env_steps", "steps_per_second")
    set_scales(axes)
    axes.set_ylim(bottom=0)
