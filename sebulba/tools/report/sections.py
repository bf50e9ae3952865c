"""The sections of the page about one config or one run."""

import base64
import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

from sebulba.config.loading import default_settings
from sebulba.config.yaml_dialect import inline
from sebulba.errors import ConfigError
from sebulba.tools.report.html import Markup, code, element, folded, image, join, pairs, table
from sebulba.tools.report.numbers import UNKNOWN, count, number, seconds, share
from sebulba.tools.report.runs import CONFIG, Run, read_json, read_rows

_MAX_VIDEO_BYTES = 20_000_000


def describe_config(run: Run) -> Markup:
    """Return the settings that differ from the defaults, and the full config, folded."""
    try:
        defaults = default_settings(str(run.config.get("agent.name")))
    except (ConfigError, ImportError) as error:
        return element("p", f"Defaults unknown: {error}", class_="note")
    unknown = object()
    rows = [
        (element("code", key), element("code", inline(value)), _default(defaults, key))
        for key, value in run.config.items()
        if key not in ("run_dir", "seed") and _plain(defaults.get(key, unknown)) != _plain(value)
    ]
    full = (run.path / CONFIG).read_text(encoding="utf-8")
    return join(
        [
            element("h3", "Settings that differ from the defaults"),
            table(("key", "value", "default"), rows) if rows else element("p", "none"),
            folded("full config", code(full)),
        ]
    )


def describe_run(run: Run) -> Markup:
    """Return everything about one run except its curves."""
    parts = [
        ("Run", _process(run)),
        ("Speed", _speed(run)),
        ("Evaluation", _evaluation(run.path)),
        ("Video", _videos(run.path)),
        ("Ledger: env steps by stage", _ledger(run)),
        ("Command to resume", _resume(run)),
    ]
    return join(join([element("h3", title), part]) for title, part in parts if part is not None)


def _process(run: Run) -> Markup:
    process, summary = run.process, run.summary or {}
    versions = process.get("versions", {})
    facts = {
        "directory": run.path,
        "status": run.status,
        "started": process.get("started_at", UNKNOWN),
        "resumed": ", ".join(each.get("started_at", "?") for each in process.get("resumed", [])),
        "command": element("code", shlex.join(process.get("argv", []))),
        "devices": ", ".join(process.get("devices", [])),
        "machine": process.get("platform", UNKNOWN),
        "Python": process.get("python", UNKNOWN),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "env steps": count(summary.get("env_steps")),
        "updates": count(summary.get("updates")),
        "episodes": count(summary.get("episodes")),
        "wall time": seconds(summary.get("wall_time_s")),
    }
    return pairs({name: value for name, value in facts.items() if value != ""})


def _speed(run: Run) -> Markup:
    summary = run.summary or {}
    shares = [
        (kind, activity, share(each))
        for kind, activities in run.time_shares().items()
        for activity, each in sorted(activities.items(), key=lambda item: -item[1])
    ]
    facts = {
        "env steps per second": count(summary.get("steps_per_second")),
        "start-up and compilation": seconds(summary.get("startup_s")),
        "bottleneck, and what to change": summary.get("bound_by", UNKNOWN),
    }
    return join([pairs(facts), table(("thread", "activity", "share of time"), shares)])


def _evaluation(path: pathlib.Path) -> Markup | None:
    """Return tables of `evaluations.jsonl` and of each JSON file of `sebulba.evaluate`."""
    parts: list[Markup] = []
    periodic = path / "evaluations.jsonl"
    if periodic.is_file() and (rows := read_rows(periodic)):
        parts.append(_evaluations(periodic.name, rows))
        parts.append(
            folded("protocol of the last evaluation", pairs(_flat(rows[-1].get("protocol", {}))))
        )
    for file in sorted(path.glob("evaluation*.json")):
        evaluation = read_json(file) or {}
        protocol = evaluation.get("protocol", {})
        row = evaluation.get("statistics", {}) | {
            "env_steps": protocol.get("env_steps_trained"),
            "episodes_unfinished": evaluation.get("episodes_unfinished"),
        }
        parts.append(_evaluations(file.name, [row]))
        parts.append(folded("protocol", pairs(_flat(protocol))))
    return join(parts) if parts else None


def _evaluations(title: str, rows: list[dict[str, Any]]) -> Markup:
    header = (
        *("env steps", "episodes", "unfinished", "return: mean", "standard deviation"),
        *("minimum", "maximum", "interquartile mean [95 %]", "mean length"),
    )
    cells = [
        (
            *(count(row.get(key)) for key in ("env_steps", "episodes", "episodes_unfinished")),
            *(number(row.get(f"return_{key}")) for key in ("mean", "std", "min", "max")),
            f"{number(row.get('return_iqm'))} [{number(row.get('return_iqm_low'))},"
            f" {number(row.get('return_iqm_high'))}]",
            number(row.get("length_mean")),
        )
        for row in rows
    ]
    return join([element("p", element("code", title)), table(header, cells)])


def _videos(path: pathlib.Path) -> Markup | None:
    parts = []
    for file in sorted(path.glob("*.gif")):
        if file.stat().st_size > _MAX_VIDEO_BYTES:
            size, limit = (f"{n / 1e6:.0f} MB" for n in (file.stat().st_size, _MAX_VIDEO_BYTES))
            parts.append(
                element(
                    "p",
                    f"{file} is not embedded: {size} exceeds the limit of {limit}",
                    class_="note",
                )
            )
            continue
        encoded = base64.b64encode(file.read_bytes()).decode()
        parts.append(image(f"data:image/gif;base64,{encoded}", description=file.name))
    return join(parts) if parts else None


def _ledger(run: Run) -> Markup | None:
    accounts = (run.summary or {}).get("ledger")
    if not accounts:
        return None
    stages = list(accounts[0])
    rows = [
        [f"actor {actor_id}", *(count(account.get(stage)) for stage in stages)]
        for actor_id, account in enumerate(accounts)
    ]
    return table(["", *(stage.replace("_", " ") for stage in stages)], rows)


def _resume(run: Run) -> Markup | None:
    command = (run.summary or {}).get("resume_command")
    return code(command) if command else None


def _default(defaults: dict[str, Any], key: str) -> Markup | str:
    return element("code", inline(defaults[key])) if key in defaults else UNKNOWN


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Flatten nested mappings to one, with dotted names."""
    return dict(_leaves(value, prefix))


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        yield prefix, ", ".join(number(each) for each in value)
    else:
        yield prefix, number(value)


def _plain(value: Any) -> Any:
    """Return a value as YAML reads it, with lists for tuples."""
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
