"""The algorithms that come with Sebulba, each in a file of its own.

To add one, write its file here, put its settings into `sebulba_agents.config`, and add a line to
`AGENTS`. The command line reads this table, so it imports no jax.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentEntry:
    """Where an agent and its settings live, as `module:Name` below `sebulba_agents`."""

    factory: str  # (config, run_spec) -> Agent
    config: str  # a frozen dataclass


def _entry(factory: str, config: str) -> AgentEntry:
    return AgentEntry(factory=f"{__name__}.{factory}", config=f"{__name__}.config:{config}")


AGENTS: dict[str, AgentEntry] = {
    "impala": _entry("impala:make_impala", "ImpalaConfig"),
    "r2d2": _entry("r2d2:R2D2", "R2D2Config"),
    "ppo": _entry("ppo:make_ppo", "PPOConfig"),
    "a2c": _entry("a2c:make_a2c", "A2CConfig"),
    "policy_gradient": _entry("policy_gradient:make_policy_gradient", "PolicyGradientConfig"),
    "random": _entry("random:RandomAgent", "RandomConfig"),
    "ddqn": _entry("ddqn:DDQN", "DDQNConfig"),
    "sac": _entry("sac:SAC", "SACConfig"),
    "skills": _entry("skills:SkillsAgent", "SkillsConfig"),
}
"""Agents by the name that `agent.name` takes in a config."""
