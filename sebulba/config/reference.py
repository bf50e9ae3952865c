"""The configuration reference, generated from the schema."""

import inspect
from collections.abc import Iterator
from typing import Any

from sebulba.config.agents import agent_config_class
from sebulba.config.flags import describe_keys
from sebulba.config.schema import SECTIONS, Config
from sebulba_agents import AGENTS

_INTRODUCTION = """\
# Configuration

Every key of a config, with its type, default and explanation. Set a key in the YAML file, or by the
flag of the same dotted name, which replaces the file's value: `--actor.num-envs 32`. A longer
name sets one entry of a mapping and keeps the others: `--env.options.max_episode_steps 200`.
`python -m sebulba.train CONFIG --help` prints the same list with the values of `CONFIG`.

Some defaults depend on the task, such as the network and the settings for continuous actions: the
start of a run says which, and its `config.yaml` has all values. See
[choose settings](choose_settings.md).

A type says the range of its numbers: `int ≥ 1`, `float > 0`, `float in [0, 1]`, or
`float in [0, 1)`, which is less than 1. A value outside of the range is an error before anything
starts.

A number of type `float | {schedule: ..., ...}` can change during the run:
`agent.learning_rate: {schedule: linear, start: 1e-3, end: 0}` falls to 0 at `run.total_env_steps`.
Schedules are constant, linear, cosine and piecewise, all with `warm_up`:
[examples](write_an_agent.md#settings-that-change-during-a-run).

`python -m sebulba.config > docs/configuration.md` generates this page from the schema; do not edit
it.
"""


def reference() -> str:
    """Return the reference as Markdown: the keys of each section, then those of each agent."""
    config = Config()
    lines = [_INTRODUCTION]
    for section in SECTIONS:
        if section != "agent":
            lines += [f"## {section}\n", *_section(section, getattr(config, section))]
    lines += ["## Top level\n", *_table("", config)]
    lines += ["## agent\n", "`agent.name` selects the agent, which defines the other keys.\n"]
    for name in AGENTS:
        lines += [f"### {name}\n", agent_section(name)]
    return "\n".join(lines)


def agent_section(name: str) -> str:
    """Return what an agent is, and the table of its settings, as Markdown."""
    return "\n".join(_section("agent", agent_config_class(name)()))


def _section(section: str, values: Any) -> Iterator[str]:
    yield f"{inspect.getdoc(values)}\n"
    yield from _table(section, values)


def _table(section: str, values: Any) -> Iterator[str]:
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    for key, type_name, value, doc in describe_keys(section, values):
        cells = (f"`{key}`", type_name, f"`{value}`", doc)
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
