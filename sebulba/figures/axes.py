"""Labels, ticks and scales of the axes of figures. Imports no jax."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_LABELS = {
    "env_steps": "env steps",
    "wall_time_s": "wall time with start-up",
    "steps_per_second": "env steps per second",
    "episode_return_mean": "mean episode return",
    "episode_length_mean": "mean episode length",
}
_COUNT_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from, divisor, suffix
_MIN_DECIMAL = 1e-3  # ticks below are written as 2e-05
_NO_DATA = "no data yet"


def label_axes(axes: "Axes", x: str, y: str, *, unit: str = "") -> None:
    """Label the axes with the names of columns of the metrics, or other text."""
    axes.set_xlabel(_LABELS.get(x, x) + (f" [{unit}]" if unit else ""))
    axes.set_ylabel(_LABELS.get(y, y))
    axes.spines[["top", "right"]].set_visible(False)


def set_scales(axes: "Axes") -> None:
    """Add a grid, and ticks such as 2.5M to an axis from 0."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: tick_label(value, _ticks_of(axes.xaxis)))
    axes.yaxis.set_major_formatter(lambda value, _: tick_label(value, _ticks_of(axes.yaxis)))


def say_no_data(axes: "Axes") -> None:
    """Write into empty axes that there is no data yet."""
    axes.text(0.5, 0.5, _NO_DATA, ha="center", va="center", transform=axes.transAxes)
    # The ticks of empty axes are meaningless.
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)


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


def wrap(text: str, width: int) -> str:
    """Return a label in lines of at most `width` characters, without broken words."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
