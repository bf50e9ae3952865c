"""The figure of runs, or checkpoints, that played each other: Elo ratings over env steps, payoffs.

Imports no jax, and matplotlib in the function that draws.
"""

import itertools
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sebulba.errors import ConfigError
from sebulba.figures.axes import set_scales
from sebulba.figures.drawing import COLOURS, save
from sebulba.storage.run_files import read_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 9.6, 4.0  # inches
_MAX_NUMBERS = 8  # players up to which each payoff is written as a number


def plot_matches(path: str | pathlib.Path, output: str | pathlib.Path) -> None:
    """Draw the matches that `sebulba.evaluate --json` has written, to a file.

    Args:
        path: the JSON file.
        output: the file to write or overwrite; see `sebulba.figures.drawing.save`.

    Raises:
        ConfigError: there is no such file, or it has no matches.
        OSError: the file cannot be written.
    """
    results = read_json(pathlib.Path(path))
    if results is None or not {"matches", "elo"} <= results.keys():
        got = "no such file" if results is None else "a file of something else"
        raise ConfigError(
            f"expected the JSON file of an evaluation of several runs or checkpoints, got {path},"
            f" {got}"
        )
    save(draw_matches(results), output)


def draw_matches(results: Mapping[str, Any]) -> "Figure":
    """Draw each run's ratings over env steps, with intervals, beside the score of each pair.

    Checkpoints of one run, `RUN_DIR@CYCLE`, are one line.

    Args:
        results: what `sebulba.evaluation.tables.matches_to_json` returns.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_ratings(left, results["elo"])
    _draw_payoffs(right, results)
    title = results.get("protocol", {})
    figure.suptitle(f"{title.get('suite', '')} {title.get('id', '')}".strip(), fontsize=10)
    return figure


def _draw_ratings(axes: "Axes", ratings: list[dict[str, Any]]) -> None:
    lines: dict[str, list[dict[str, Any]]] = {}
    for each in ratings:
        lines.setdefault(_run_of(each["run"]), []).append(each)
    for number, (run, points) in enumerate(lines.items()):
        points.sort(key=lambda each: each["env_steps"])
        x, elo, low, high = (
            np.array([each[key] for each in points]) for key in ("env_steps", "elo", "low", "high")
        )
        axes.errorbar(
            x,
            elo,
            yerr=(elo - low, high - elo),
            marker="o",
            markersize=4,
            capsize=2,
            color=COLOURS[number % len(COLOURS)],
            label=pathlib.PurePath(run).name,
        )
    axes.set_title("Elo and its 95 % interval; the mean is 0", fontsize=10)
    axes.set_xlabel("env steps")
    axes.set_ylabel("Elo")
    set_scales(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _draw_payoffs(axes: "Axes", results: Mapping[str, Any]) -> None:
    names = [each["run"] for each in results["elo"]]
    scores = np.full((len(names), len(names)), np.nan)
    pairs = itertools.combinations(range(len(names)), 2)
    for (i, j), match in zip(pairs, results["matches"], strict=True):
        scores[i, j], scores[j, i] = match["score"], 1.0 - match["score"]
    axes.imshow(scores, cmap="RdBu", vmin=0.0, vmax=1.0)
    if len(names) <= _MAX_NUMBERS:
        for i, j in itertools.product(range(len(names)), repeat=2):
            if i != j:
                axes.text(j, i, f"{scores[i, j]:.2f}", ha="center", va="center", fontsize=8)
    labels = [pathlib.PurePath(name).name for name in names]
    axes.set_title("score of the row against the column", fontsize=10)
    axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), labels, fontsize=7)


def _run_of(name: str) -> str:
    """Return the run of `RUN_DIR@CHECKPOINT`."""
    run, at, checkpoint = name.rpartition("@")
    return run if at and checkpoint.isdecimal() else name
