"""The curves of runs: read run directories, combine seeds, draw a figure. Imports no jax.

A run may have ended, be running or have been killed. Matplotlib is imported by the functions that
draw, since it is an extra and takes half a second.
"""

import collections
import dataclasses
import importlib.util
import json
import math
import pathlib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sebulba.config.file import read_config_file
from sebulba.config.yaml_dialect import inline
from sebulba.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
FORMATS = (".png", ".svg", ".pdf")

_POLICY_LAG = "policy_lag/"
_NO_SUMMARY = "running, or killed before it wrote a summary"
_IGNORED_KEYS = ("seed", "run_dir", "resume")
_MAX_SEEDS_LISTED = 8

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), distinct for colour-blind readers.
# With more groups than colours, the line style changes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#8C6D31")
_LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")
# The activities of sebulba.ring.clocks: work is coloured, waiting is grey.
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
_OTHER_COLOUR = "#8C6D31"
_CURVES = (
    ("env_steps", "episode_return_mean", "env steps", "mean episode return"),
    ("wall_time_s", "episode_return_mean", "wall time with start-up [s]", "mean episode return"),
    ("env_steps", "steps_per_second", "env steps", "env steps per second"),
)
_CAPTION = "Thick line: mean over seeds. Band: minimum to maximum. Thin line: one seed."
_NO_DATA = "no data yet"
_PANEL_WIDTH, _PANEL_HEIGHT = 4.6, 3.2  # inches
_GROUP_HEIGHT = 0.6  # inches, two bars
_MIN_SHARE = 0.005  # less is not visible, and left out of the legend
_LABEL_WIDTH, _LEGEND_WIDTH = 22, 48  # characters
_LAG_WIDTH = 0.8  # learner cycles, all groups' bars together


def plot_runs(run_dirs: Sequence[str | pathlib.Path], output: str | pathlib.Path) -> None:
    """Read runs and draw them to a file.

    Args:
        run_dirs: run directories, or directories of several.
        output: the file to write or overwrite, with a suffix of `FORMATS`.

    Raises:
        ConfigError: matplotlib is not installed, the suffix is another, or as `read_runs`.
        OSError: the file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is not installed: pip install 'sebulba[plot]'")
    if pathlib.Path(output).suffix not in FORMATS:
        raise ConfigError(f"-o: expected a file ending in {', '.join(FORMATS)}, got {output}")
    save(draw(group_runs(read_runs(run_dirs))), output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The contents of a run directory."""

    path: pathlib.Path
    config: dict[str, Any]  # keys are dotted: "actor.num_envs"
    rows: list[dict[str, Any]]  # metrics.jsonl; may be empty
    summary: dict[str, Any] | None  # summary.json; None: the run has not ended, or was killed
    process: dict[str, Any]  # run.json: versions, devices, command; may be empty

    @property
    def status(self) -> str:
        """The run's status, such as "done"."""
        return _NO_SUMMARY if self.summary is None else str(self.summary.get("status"))

    def column(self, key: str) -> list[float]:
        """Return a number for each row; NaN: the row has none."""
        return [_number(row.get(key)) for row in self.rows]

    def policy_lags(self) -> collections.Counter[int]:
        """Count the trajectories by their policy lag."""
        lags: collections.Counter[int] = collections.Counter()
        for row in self.rows:
            for key, count in row.items():
                if key.startswith(_POLICY_LAG):
                    lags[int(key.removeprefix(_POLICY_LAG))] += count
        return lags

    def time_shares(self) -> dict[str, dict[str, float]]:
        """Return shares of time by kind of thread and activity, between 0 and 1.

        The summary has them; without one, this returns the means of the rows' shares, weighted by
        wall time.
        """
        if self.summary is not None and self.summary.get("time_shares"):
            return self.summary["time_shares"]
        seconds: dict[str, dict[str, float]] = {}
        earlier = 0.0
        for row in self.rows:
            wall_time = _number(row.get("wall_time_s"))
            # A row of evaluation has no shares; the next row's cover its time.
            if math.isnan(wall_time) or not any(key.startswith("time/") for key in row):
                continue
            for key, share in row.items():
                if key.startswith("time/") and math.isfinite(_number(share)):
                    _, kind, activity = key.split("/", 2)
                    spent = seconds.setdefault(kind, {})
                    spent[activity] = spent.get(activity, 0.0) + share * (wall_time - earlier)
            earlier = wall_time
        return {
            kind: {key: each / total for key, each in spent.items()}
            for kind, spent in seconds.items()
            if (total := sum(spent.values())) > 0
        }


def read_runs(paths: Sequence[str | pathlib.Path]) -> list[Run]:
    """Read every run of the given directories: run directories, or directories of several.

    Raises:
        ConfigError: a directory does not exist or holds no run, or a file is missing or invalid.
    """
    directories = [each for path in paths for each in _run_directories(pathlib.Path(path))]
    return [read_run(each) for each in dict.fromkeys(directories)]


def read_run(path: pathlib.Path) -> Run:
    """Read a run directory: `config.yaml`, `metrics.jsonl`, and the optional JSON files.

    Raises:
        ConfigError: one of the first two is missing, or a file is invalid.
    """
    for name in (CONFIG, METRICS):
        if not (path / name).is_file():
            raise ConfigError(f"{path}: expected a run directory with a {name}, got none")
    rows = _read_rows(path / METRICS)
    summary = _read_json(path / "summary.json")
    if summary is not None and rows:
        has_resumed = _number(rows[-1].get("env_steps")) > _number(summary.get("env_steps"))
        summary = None if has_resumed else summary  # It is from before the run was resumed.
    return Run(
        path=path,
        config={key: each.value for key, each in read_config_file(str(path / CONFIG)).items()},
        rows=rows,
        summary=summary,
        process=_read_json(path / "run.json") or {},
    )


def _run_directories(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        got = "a file" if path.exists() else "no such directory"
        raise ConfigError(f"{path}: expected a run directory, got {got}")
    if (path / CONFIG).exists() or (path / METRICS).exists():
        return [path]
    inside = [each for each in path.iterdir() if (each / CONFIG).is_file()]
    if not inside:
        raise ConfigError(f"{path}: expected a {CONFIG} here or in a subdirectory, got none")
    return sorted(inside, key=_natural_order)


def _natural_order(path: pathlib.Path) -> tuple[str, int, str]:
    """Return a sort key that puts seed-10 after seed-9."""
    digits = path.name[len(path.name.rstrip("0123456789")) :]
    return (path.name.removesuffix(digits) if digits else path.name, int(digits or 0), path.name)


def _read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, without a last line that is still being written."""
    data = _read(path)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [_parse_object(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def _read_json(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the object of a JSON file; None: there is no such file."""
    return _parse_object(str(path), _read(path)) if path.is_file() else None


def _parse_object(where: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{where}: expected a JSON object, got {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a JSON object, got {str(value)[:40]}")
    return value


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one config, with one or more seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def environment(self) -> str:
        """The environment's suite and ID."""
        config = self.runs[0].config
        return f"{config.get('env.suite')} {config.get('env.id')}"

    @property
    def seeds(self) -> str:
        """The seeds of the runs, or their number if there are many."""
        if len(self.runs) == 1:
            return f"seed {self.runs[0].config.get('seed')}"
        if len(self.runs) > _MAX_SEEDS_LISTED:
            return f"{len(self.runs)} seeds"
        return f"seeds {', '.join(str(run.config.get('seed')) for run in self.runs)}"


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs whose configs differ only in seed and run directory, in order of appearance.

    A label has the agent and the environment (only the one that differs, if one does), then every
    key that differs between groups of the same agent and environment.
    """
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(repr(sorted(_experiment(run).items())), []).append(run)
    groups = list(by_config.values())
    return [Group(label=_label(group[0], groups), runs=tuple(group)) for group in groups]


def _label(run: Run, groups: list[list[Run]]) -> str:
    firsts = [group[0] for group in groups]
    differing_names = [key for key in ("agent.name", "env.id") if _differs(key, firsts)]
    parts = [str(run.config.get(key)) for key in differing_names or ["agent.name", "env.id"]]
    alike = [each for each in firsts if _names(each) == _names(run)]
    keys = dict.fromkeys(key for each in alike for key in _experiment(each))
    parts += [
        f"{key}={inline(run.config.get(key))}"
        for key in keys
        if key not in ("agent.name", "env.id") and _differs(key, alike)
    ]
    return " ".join(parts)


def _names(run: Run) -> tuple[Any, Any]:
    return run.config.get("agent.name"), run.config.get("env.id")


def _differs(key: str, runs: Sequence[Run]) -> bool:
    return any(run.config.get(key) != runs[0].config.get(key) for run in runs)


def _experiment(run: Run) -> dict[str, Any]:
    """Return the keys to compare; nulls are left out, since older runs lack newer keys."""
    return {
        key: value
        for key, value in run.config.items()
        if key not in _IGNORED_KEYS and value is not None
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """Mean and range over curves, at every `x` at which one of them has a point."""

    x: np.ndarray  # [N]
    mean: np.ndarray  # [N]
    low: np.ndarray  # [N]
    high: np.ndarray  # [N]


def curve(run: Run, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two columns of a run's metrics, `[N]` each, without the rows that lack either."""
    xs, ys = np.array(run.column(x)), np.array(run.column(y))
    measured = np.isfinite(xs) & np.isfinite(ys)
    return xs[measured], ys[measured]


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Band | None:
    """Return mean, minimum and maximum of curves, interpolated linearly between their points.

    They cover only the `x` that every curve covers; the mean would jump where a curve ends.

    Args:
        curves: `x` and `y` of each curve, `[N_i]`; `x` ascending.

    Returns:
        None if less than two curves have points, or if they have no `x` in common.
    """
    curves = [(xs, ys) for xs, ys in curves if len(xs)]
    if len(curves) < 2:
        return None
    first, last = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    points = np.unique(np.concatenate([xs for xs, _ in curves]))
    points = points[(points >= first) & (points <= last)]
    if not len(points):
        return None
    values = np.stack([np.interp(points, xs, ys) for xs, ys in curves])  # [curves, N]
    return Band(x=points, mean=values.mean(0), low=values.min(0), high=values.max(0))


def draw(groups: Sequence[Group]) -> "Figure":
    """Draw the groups: a row of curves for each environment, then time, policy lag and legend.

    The returns are the logged means over the last `run.return_window` episodes. With several seeds,
    a thick line is their mean, a band their range, and a thin line one seed. Uses matplotlib's
    objects, without pyplot's global state or a display.
    """
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(group.environment for group in groups))
    heights = [_PANEL_HEIGHT] * len(environments)
    heights += [max(_PANEL_HEIGHT, 1.0 + _GROUP_HEIGHT * len(groups))]
    figure = Figure(figsize=(3 * _PANEL_WIDTH, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(heights), 3, squeeze=False, height_ratios=heights)
    styles = {
        group.label: {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _LINE_STYLES[number // len(_COLOURS) % len(_LINE_STYLES)],
        }
        for number, group in enumerate(groups)
    }
    for row, environment in zip(panels, environments, strict=False):
        here = [group for group in groups if group.environment == environment]
        for axes, (x, y, x_label, y_label) in zip(row, _CURVES, strict=True):
            for group in here:
                curves = [curve(run, x, y) for run in group.runs]
                _draw_curves(axes, curves, styles[group.label])
            if not axes.lines:
                axes.text(0.5, 0.5, _NO_DATA, ha="center", va="center", transform=axes.transAxes)
                # The ticks of empty axes are meaningless.
                axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
            _label_axes(axes, title=environment, x_label=x_label, y_label=y_label)
        row[2].set_ylim(bottom=0)
    _draw_time_shares(panels[-1][0], groups)
    _draw_lags(panels[-1][1], groups, styles)
    legend = panels[-1][2]
    for group in groups:
        label = textwrap.fill(f"{group.label} ({group.seeds})", _LEGEND_WIDTH)
        legend.plot([], [], linewidth=2, label=label, **styles[group.label])
    legend.set_axis_off()
    legend.legend(loc="upper left", frameon=False, fontsize=9)
    if any(len(group.runs) > 1 for group in groups):
        figure.supxlabel(_CAPTION, fontsize=9)
    return figure


def save(figure: "Figure", path: str | pathlib.Path) -> None:
    """Write the figure in the format of the path's suffix; equal figures give the same SVG.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib

    is_svg = pathlib.Path(path).suffix == ".svg"
    # Without date and random ids.
    with matplotlib.rc_context({"svg.hashsalt": "sebulba"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if is_svg else None)


def _draw_curves(
    axes: "Axes", curves: Sequence[tuple[np.ndarray, np.ndarray]], style: dict[str, Any]
) -> None:
    spread = band(curves)
    if spread is not None:
        axes.fill_between(
            spread.x, spread.low, spread.high, color=style["color"], alpha=0.2, linewidth=0
        )
        axes.plot(spread.x, spread.mean, linewidth=2, **style)
    thin: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.5} if len(curves) > 1 else {}
    for xs, ys in curves:
        if len(xs):
            # A single point draws no line.
            marker = "o" if len(xs) == 1 else None
            axes.plot(xs, ys, marker=marker, **{"linewidth": 1.6, **thin}, **style)


def _label_axes(axes: "Axes", *, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: format_count(value))


def format_count(value: float) -> str:
    """Return a tick's label: 150k, 2.5M, 0.02."""
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale:
            return f"{value / (1e3 if suffix == 'k' else scale):g}{suffix}"
    return f"{round(value, 6):g}"


def _draw_time_shares(axes: "Axes", groups: Sequence[Group]) -> None:
    """Draw a stacked bar for each group and kind of thread: the mean of its runs' shares."""
    bars = [
        (group.label, kind, shares)
        for group in groups
        for kind, shares in _mean_shares(group).items()
    ]
    axes.set_title("time of the threads by activity", fontsize=10)
    if not bars:
        axes.text(0.5, 0.5, _NO_DATA, ha="center", va="center", transform=axes.transAxes)
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
    labels = [
        f"{textwrap.fill(label, _LABEL_WIDTH)}\n{kind}" if len(groups) > 1 else kind
        for label, kind, _ in bars
    ]
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


def _draw_lags(axes: "Axes", groups: Sequence[Group], styles: dict[str, dict[str, Any]]) -> None:
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
        axes.text(0.5, 0.5, _NO_DATA, ha="center", va="center", transform=axes.transAxes)
        return
    width = _LAG_WIDTH / len(measured)
    for number, (label, lags) in enumerate(measured.items()):
        shares = np.array(list(lags.values())) / lags.total()
        left = np.array(list(lags)) - _LAG_WIDTH / 2 + number * width
        axes.bar(left, shares, width=width, align="edge", color=styles[label]["color"])
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(-0.5, max(2, *(max(lags) for lags in measured.values())) + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
