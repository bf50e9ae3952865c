"""The algorithms. A new one is one file here, its settings in `agents.config`, and a line below.

Imports no jax: the command line reads this table.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentEntry:
    """Where an agent and its settings live, as `module:Name`."""

    factory: str  # (config, run_spec) -> Agent
    config: str  # a frozen dataclass


AGENTS: dict[str, AgentEntry] = {
    "impala": AgentEntry(factory="agents.impala:make_impala", config="agents.config:ImpalaConfig"),
    "r2d2": AgentEntry(factory="agents.r2d2:R2D2", config="agents.config:R2D2Config"),
    "ppo": AgentEntry(factory="agents.ppo:make_ppo", config="agents.config:PPOConfig"),
    "a2c": AgentEntry(factory="agents.a2c:make_a2c", config="agents.config:A2CConfig"),
    "policy_gradient": AgentEntry(
        factory="agents.policy_gradient:make_policy_gradient",
        config="agents.config:PolicyGradientConfig",
    ),
    "random": AgentEntry(
        factory="agents.uniform:UniformAgent", config="agents.config:RandomConfig"
    ),
    "ddqn": AgentEntry(factory="agents.ddqn:DDQN", config="agents.config:DDQNConfig"),
    "sac": AgentEntry(factory="agents.sac:SAC", config="agents.config:SACConfig"),
    "skills": AgentEntry(
        factory="agents.skills:SkillsAgent", config="agents.skills_config:SkillsConfig"
    ),
}
"""Agents by the name that `agent.name` takes in a config."""
