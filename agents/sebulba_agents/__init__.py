"""The agents that come with Sebulba, one file each. Start reading at `impala.py`.

To add an agent, write its file, add its settings to `config` or `replay_config`, and add a line to
`AGENTS`. The command line reads this table and the settings, so neither imports jax.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentEntry:
    """Where to find an agent and its settings, as `module:Name`."""

    factory: str  # (config, run_spec) -> Agent
    config: str  # a frozen dataclass


def _entry(factory: str, config: str) -> AgentEntry:
    return AgentEntry(factory=f"{__name__}.{factory}", config=f"{__name__}.{config}")


AGENTS: dict[str, AgentEntry] = {
    "impala": _entry("impala:make_impala", "config:ImpalaConfig"),
    "r2d2": _entry("r2d2:R2D2", "replay_config:R2D2Config"),
    "ppo": _entry("ppo:PPO", "config:PPOConfig"),
    "a2c": _entry("a2c:make_a2c", "config:A2CConfig"),
    "policy_gradient": _entry(
        "policy_gradient:make_policy_gradient", "config:PolicyGradientConfig"
    ),
    "random": _entry("random:RandomAgent", "config:RandomConfig"),
    "ddqn": _entry("ddqn:DDQN", "replay_config:DDQNConfig"),
    "rainbow": _entry("rainbow:make_rainbow", "replay_config:RainbowConfig"),
    "pqn": _entry("pqn:PQN", "config:PQNConfig"),
    "sac": _entry("sac:SAC", "replay_config:SACConfig"),
    "gumbel_muzero": _entry("gumbel_muzero:GumbelMuZero", "replay_config:GumbelMuZeroConfig"),
    "skills": _entry("skills:SkillsAgent", "config:SkillsConfig"),
}
"""Agents by the value of `agent.name` in a config."""
