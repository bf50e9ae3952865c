"""The check accuses no shipped config, no agent with a task's defaults, and no outside agent."""

import importlib.util

import pytest

from tests.check import survey

LIMIT_S = 1_800  # of a check beside other work
ROWS = survey.read_table(survey.TABLE.read_text())


def fits(row):
    """Return whether an agent was checked, for the page."""
    return row[0].isdecimal()


def test_the_page_has_no_accusation():
    assert {name: row[1] for name, row in ROWS.items() if fits(row) and row[1]} == {}


def test_the_page_has_every_kind_of_sound_agent():
    assert set(ROWS) <= set(survey.names())
    of_pages = {name.partition(":")[0] for name in ROWS if ":" in name}
    assert {"outside", *survey.AGENTS} <= of_pages


def test_the_shortest_configs_name_agent_and_task_alone():
    for agent in survey.AGENTS:
        for task in survey.TASKS:
            config = survey.make_config(f"{agent}: {task}")
            assert config.agent.name == agent
            assert config.env.id in survey.TASKS[task]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in survey.names() if name not in ROWS or fits(ROWS[name])]
)
def test_a_sound_agent_is_not_accused_with_its_own_settings(name):
    if "muzero" in name and importlib.util.find_spec("mctx") is None:
        pytest.skip("needs the extra search: mctx is missing")
    row = survey.examine(name, LIMIT_S)
    if "is not installed" in row.get("why", ""):
        pytest.skip(row["why"])
    assert (row["outcome"], row.get("accusations")) == ("passed", {})
    if not name.startswith("outside"):
        assert row["refused"] == [], "a question has to ask for settings that shipped agents accept"
