"""Pages that list arguments, fields or columns have all of them, and no others."""

import csv
import dataclasses
import inspect
import itertools
import json
import re

import gymnasium
import jax
import numpy as np
import pytest

import sebulba
import sebulba.ring
from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.storage.metrics.tags import GROUPS
from sebulba.types import Clock
from sebulba_agents import AGENTS
from tests.docs.blocks import DOCUMENTS, ROOT, blocks_of, inline_commands
from tests.extras import needs_search
from tests.on_policy import make_run_spec

METRICS = (ROOT / "docs" / "metrics.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()


def first_column(text):
    """Return the names in the first column of all tables of a text, in order."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]*)`", cell)]


def part_of(text, begin):
    """Return the text from a heading or a sentence to the next heading or paragraph of its kind."""
    _, found, rest = text.partition(begin)
    assert found, begin
    return re.split(r"^## |^`sebulba\.|^\| field of ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_page_of_the_architecture_has_the_files_of_the_ring_in_reading_order():
    in_code = re.findall(r"^    (\w+) {2,}\S", sebulba.ring.__doc__, re.MULTILINE)
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert first_column(part_of(page, "\n## The ring\n")) == in_code


@pytest.mark.parametrize("name", ["load_config", "train", "load_policy", "evaluate"])
def test_the_page_of_python_has_every_argument(name):
    documented = first_column(part_of(PYTHON, f"\n`sebulba.{name}` "))
    assert documented == list(inspect.signature(getattr(sebulba, name)).parameters)


@pytest.mark.parametrize("name", ["Result", "EvaluationResult"])
def test_the_page_of_python_has_every_field(name):
    own = getattr(sebulba, name)
    properties = {key for key, value in vars(own).items() if isinstance(value, property)}
    fields = {field.name for field in dataclasses.fields(own)}
    documented = first_column(part_of(PYTHON, f"\n| field of `{name}` "))
    assert sorted(documented) == sorted(fields | properties)


def documented_columns(heading):
    return first_column(part_of(METRICS, f"\n## {heading}\n"))


def without_documented(names, heading):
    """Return the names that a section of the page of metrics lacks."""
    patterns = [re.escape(each).replace("…", ".+") for each in documented_columns(heading)]
    return [name for name in names if not any(re.fullmatch(each, name) for each in patterns)]


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_page_of_metrics_has_every_column_that_a_run_writes(run_of):
    path = run_of("impala evaluated")
    heading = "metrics.jsonl and metrics.csv"
    written = {key for row in rows_of(path / "metrics.jsonl") for key in row}
    assert without_documented(written, heading) == []
    common, _ = METRICS.split("The agent adds the metrics")
    columns = [each for each in first_column(common) if "." not in each and "…" not in each]
    assert set(columns) <= written, "none is listed that no run writes"
    with (path / "metrics.csv").open() as table:
        assert set(next(csv.reader(table))) == written
    evaluations = {key for row in rows_of(path / "evaluations.jsonl") for key in row}
    assert set(documented_columns("evaluations.jsonl")) == evaluations | {"video"}
    summary = json.loads((path / "summary.json").read_text())
    assert set(documented_columns("summary.json")) == set(summary)


def test_the_page_of_metrics_has_the_groups_of_tensorboard():
    table = part_of(METRICS, "| group | columns |\n")
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", table, re.MULTILINE)
    cells = [[re.findall(r"`([^`]*)`", cell) for cell in row] for row in rows]
    assert {name: tuple(columns) for (name,), columns in cells} == GROUPS
    documented = documented_columns("metrics.jsonl and metrics.csv")
    for column in itertools.chain.from_iterable(GROUPS.values()):
        assert any(each.startswith(column.rstrip("…")) for each in documented), column


_SLOW = {name: [pytest.mark.slow] for name in AGENTS if name not in ("ppo", "ddqn")}
_SLOW["gumbel_muzero"] += [needs_search]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_SLOW.get(name, [])) for name in AGENTS if name != "random"]
)
def test_the_page_of_metrics_lists_each_metric_of_an_agent_with_the_agent(name):
    run_spec = make_run_spec(trajectory_length=8)
    if name == "sac":
        space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        environment = dataclasses.replace(run_spec.environment, action_space=space)
        run_spec = dataclasses.replace(run_spec, environment=environment)
    agent = agent_factory(name)(agent_config_class(name)(), run_spec)
    key = jax.eval_shape(lambda: jax.random.key(0))
    networks = jax.eval_shape(agent.init_networks, key)
    num_envs = run_spec.num_streams_per_learner_device
    experience = jax.eval_shape(lambda x: agent.init_experience(x, num_envs), networks)
    _, (_, metrics) = jax.eval_shape(agent.loss, networks, experience, key, Clock.at())
    text = METRICS.split("The agent adds the metrics")[1].partition("\n## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    listed = {
        column
        for columns, agents, _ in rows
        if name in agents.split(", ")
        for column in re.findall("`(.*?)`", columns)
    }
    assert listed == set(metrics)


def test_pages_name_configs_as_a_user_without_the_repository_can():
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md" or document.parent == ROOT:
            continue
        commands = [*inline_commands(document)]
        commands += [each for block in blocks_of(document) for each in block.commands]
        assert [each for each in commands if "configs/" in each] == []
