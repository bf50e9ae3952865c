"""One HTML page about a set of runs: self-contained, without scripts."""

import base64
import importlib.resources
import io
from collections.abc import Sequence

from sebulba.tools.report.figure import draw, write_svg
from sebulba.tools.report.groups import Group
from sebulba.tools.report.html import Markup, element, folded, image, join, table
from sebulba.tools.report.numbers import count, number, seconds
from sebulba.tools.report.sections import describe_config, describe_run

# Second line of defence after escaping: injected HTML could load and run nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_OVERVIEW = (
    "run",
    "seed",
    "status",
    "env steps",
    "wall time",
    "env steps/s",
    "final return",
    "best return",
)


def page(groups: Sequence[Group]) -> str:
    """Return the page: an overview, the curves, then each group's config and runs."""
    title = ", ".join(dict.fromkeys(group.label for group in groups))
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", title),
        element("style", Markup(_style())),
    )
    body = element(
        "body",
        element("h1", title),
        _overview(groups),
        element("h2", "Curves", id="curves"),
        _curves(groups),
        *(_group(group) for group in groups),
    )
    return "<!DOCTYPE html>\n" + element("html", head, body, lang="en") + "\n"


def _overview(groups: Sequence[Group]) -> Markup:
    rows = []
    for group in groups:
        for run in group.runs:
            # A run without a summary is described by its latest row.
            last, summary = (run.rows or [{}])[-1], run.summary or {}
            get = {**last, **summary}.get
            rows.append(
                (
                    str(run.path),
                    run.config.get("seed"),
                    element("span", run.status, class_="" if run.status == "done" else "bad"),
                    count(get("env_steps")),
                    seconds(get("wall_time_s")),
                    count(get("steps_per_second")),
                    number(get("final_episode_return_mean", last.get("episode_return_mean"))),
                    number(get("best_episode_return_mean")),
                )
            )
    note = (
        "Env steps are agent decisions, without resets and frame skips. Speed excludes start-up and"
        " compilation. Returns are means over the last run.return_window training episodes, with"
        " exploration."
    )
    return join([table(_OVERVIEW, rows), element("p", note, class_="note")])


def _curves(groups: Sequence[Group]) -> Markup:
    drawing = io.BytesIO()
    write_svg(draw(groups), drawing)
    encoded = base64.b64encode(drawing.getvalue()).decode()
    return image(
        f"data:image/svg+xml;base64,{encoded}",
        description="Returns over env steps and wall time, speed, time by activity, policy lag",
    )


def _group(group: Group) -> Markup:
    config = describe_config(group.runs[0])
    runs = [element("section", describe_run(run)) for run in group.runs]
    if len(runs) > 1:
        runs = [
            folded(f"seed {run.config.get('seed')}: {run.status}", each)
            for run, each in zip(group.runs, runs, strict=True)
        ]
    return element("article", element("h2", f"{group.label}, {group.seeds}"), config, *runs)


def _style() -> str:
    return (importlib.resources.files(__package__) / "page.css").read_text(encoding="utf-8")
