"""Agents that other packages bring."""

import pytest

from sebulba.config.agents import agent_config_class, agent_factory
from sebulba.config.loading import load_config, to_yaml
from sebulba.config.plugins import AGENTS_GROUP, plugin_package, plugins
from sebulba.errors import ConfigError

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


def test_plugins_are_named_without_being_imported(plugged):
    (plugged / "plugged_agents.py").write_text("raise RuntimeError('imported')")
    assert plugins(AGENTS_GROUP)["plugged"] == "plugged_agents:PluggedAgent"
    assert plugin_package(AGENTS_GROUP, "plugged") == ("plugged-agents", "1.5")
    assert plugin_package(AGENTS_GROUP, "other") is None


def test_a_config_names_an_agent_of_another_package(plugged, tmp_path):
    config = load_config(None, ["--agent.name", "plugged", "--agent.rate", "0.25"])
    assert (config.agent.name, config.agent.rate) == ("plugged", 0.25)
    assert agent_factory("plugged").__name__ == "PluggedAgent"
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config(str(tmp_path / "config.yaml")) == config


def test_an_unknown_agent_is_answered_with_the_nearest_of_all_packages(plugged):
    with pytest.raises(ConfigError, match=r"unknown name pluged; did you mean plugged\?"):
        agent_config_class("pluged")


def test_an_agent_of_our_own_cannot_be_replaced(plugged):
    before = agent_config_class("impala")
    points = plugged / "plugged-agents-1.5.dist-info" / "entry_points.txt"
    points.write_text(f"[{AGENTS_GROUP}]\nimpala = plugged_agents:PluggedAgent\n")
    assert plugins(AGENTS_GROUP)["impala"] == "plugged_agents:PluggedAgent"
    assert agent_config_class("impala") is before


def test_two_packages_with_one_name_are_both_named(plugged, tmp_path, install):
    install(
        "second-agents",
        path=tmp_path / "second",
        modules={},
        entry_points={AGENTS_GROUP: {"plugged": "second_agents:Other"}},
    )
    with pytest.raises(ConfigError, match=r"plugged: name conflict .* and .*second_agents:Other"):
        agent_config_class("plugged")


def test_a_package_that_cannot_be_imported_is_named(install):
    install(
        "broken-agents",
        modules={"broken_agents": "import no_such_dependency"},
        entry_points={AGENTS_GROUP: {"broken": "broken_agents:Agent"}},
    )
    with pytest.raises(ConfigError, match=r"cannot import broken: .*no_such_dependency"):
        agent_config_class("broken")
