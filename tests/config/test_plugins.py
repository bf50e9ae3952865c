"""Agents and other code from outside of the project."""

import pytest

from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.loading import load_config, to_yaml
from sebulba.config.plugins import AGENTS_GROUP, plugin_package, plugins
from sebulba.errors import ConfigError
from sebulba.references import load

MODULE = """
import dataclasses

@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    name: str = "plugged"
    rate: float = 0.5
    \"\"\"How fast.\"\"\"

class PluggedAgent:
    Config = Config
"""


@pytest.fixture
def plugged(install, tmp_path):
    """Installs a package with the agent `plugged`."""
    install(
        "plugged-agents",
        modules={"plugged_agents": MODULE},
        entry_points={AGENTS_GROUP: {"plugged": "plugged_agents:PluggedAgent"}},
    )
    return tmp_path


def test_plugins_are_listed_without_being_imported(plugged):
    (plugged / "plugged_agents.py").write_text("raise RuntimeError('imported')")
    assert plugins(AGENTS_GROUP)["plugged"] == "plugged_agents:PluggedAgent"
    assert plugin_package(AGENTS_GROUP, "plugged") == ("plugged-agents", "1.5")
    assert plugin_package(AGENTS_GROUP, "other") is None


def test_a_config_may_name_an_agent_of_another_package(plugged, tmp_path):
    config = load_config(None, ["--agent.name", "plugged", "--agent.rate", "0.25"])
    assert (config.agent.name, config.agent.rate) == ("plugged", 0.25)
    assert agent_factory("plugged").__name__ == "PluggedAgent"
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config(str(tmp_path / "config.yaml")) == config


def test_error_for_an_unknown_agent_suggests_names_of_all_packages(plugged):
    with pytest.raises(ConfigError, match=r"unknown name pluged; did you mean plugged\?"):
        agent_config_class("pluged")


def test_entry_point_cannot_replace_an_agent_of_the_table(plugged):
    before = agent_config_class("impala")
    points = plugged / "plugged-agents-1.5.dist-info" / "entry_points.txt"
    points.write_text(f"[{AGENTS_GROUP}]\nimpala = plugged_agents:PluggedAgent\n")
    assert plugins(AGENTS_GROUP)["impala"] == "plugged_agents:PluggedAgent"
    assert agent_config_class("impala") is before


def test_error_for_a_name_conflict_names_both_packages(plugged, tmp_path, install):
    install(
        "second-agents",
        path=tmp_path / "second",
        modules={},
        entry_points={AGENTS_GROUP: {"plugged": "second_agents:Other"}},
    )
    with pytest.raises(ConfigError, match=r"plugged: name conflict .* and .*second_agents:Other"):
        agent_config_class("plugged")


def test_error_for_a_package_that_cannot_be_imported_names_it(install):
    install(
        "broken-agents",
        modules={"broken_agents": "import no_such_dependency"},
        entry_points={AGENTS_GROUP: {"broken": "broken_agents:Agent"}},
    )
    with pytest.raises(ConfigError, match=r"importing broken_agents raised .*no_such_dependency"):
        agent_config_class("broken")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("math:pi:", "env.id: math has no pi:; did you mean pi?"),
        ("math:", "env.id: expected module:Name, got 'math:'"),
        (":pi", "env.id: expected module:Name, got ':pi'"),
        ("maths.deep:pi", "env.id: there is no module 'maths'"),
    ],
)
def test_load_error_begins_with_the_key(reference, message):
    with pytest.raises(ConfigError) as caught:
        load(reference, key="env.id")
    assert str(caught.value).startswith(message)
