"""The configuration reference, written from the schema."""

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from typing import Any

from sebulba.config.agents import agent_config_class
from sebulba.config.coercion import describe_type
from sebulba.config.file import SECTIONS
from sebulba.config.flags import field_docs
from sebulba.config.schema import Config
from sebulba.config.yaml_dialect import inline
from sebulba_agents import AGENTS

_INTRODUCTION = """\
# Configuration

Every key of a config, with its type, its default and what it does. A flag of the same dotted name
(`--actor.num-envs 32`) takes a value's place; `python -m sebulba.train --help` shows the same list.
Written by `python -m sebulba.config` from the schema; do not edit.
"""


def reference() -> str:
    """Returns the reference as Markdown: each section's keys, then the settings of each agent."""
    declared = typing.get_type_hints(Config)
    lines = [_INTRODUCTION]
    for section in SECTIONS:
        if section != "agent":
            lines += _section(f"## {section}", section, declared[section])
    top_level = [name for name in declared if name not in SECTIONS]
    lines += ["## Top level\n", *_table("", Config, top_level)]
    lines += ["## agent\n", "`agent.name` says which agent; the other keys are that agent's own.\n"]
    for name in AGENTS:
        lines += _section(f"### {name}", "agent", agent_config_class(name))
    return "\n".join(lines)


def _section(heading: str, prefix: str, cls: type) -> Iterator[str]:
    names = [field.name for field in dataclasses.fields(cls)]
    yield f"{heading}\n"
    yield f"{inspect.getdoc(cls)}\n"
    yield from _table(f"{prefix}.", cls, names)


def _table(prefix: str, cls: type, names: list[str]) -> Iterator[str]:
    annotations, docs = typing.get_type_hints(cls), field_docs(cls)
    defaults = {field.name: _default(field) for field in dataclasses.fields(cls)}
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    for name in names:
        cells = (
            f"`{prefix}{name}`",
            describe_type(annotations[name]),
            f"`{inline(defaults[name])}`",
            docs.get(name, ""),
        )
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
    yield ""


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
