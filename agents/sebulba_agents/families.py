"""The defaults of the shipped agents for families of tasks. Imports no jax.

The defaults in `config` and `replay_config` suit discrete actions and observations that are
vectors. A table here holds what differs for another family. `docs/choose_settings.md` has the
returns of all families, and the tasks that these numbers were chosen on.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sebulba.task import Task
from sebulba.toolkit.settings import NetworkConfig

Defaults = Mapping[str, Any]

# Rewards have any scale, and the parts of an observation different ones.
_NORMALIZED = {
    "agent.normalize_observations": True,
    "agent.normalize_rewards": True,
    "agent.reward_clip": 10.0,
}
_CONTINUOUS = {**_NORMALIZED, "agent.entropy_cost": 0.0}

DISCRETE: dict[str, Defaults] = {
    # Without, a value loss in the hundreds leaves no room for the policy in a clipped gradient.
    "ppo": _NORMALIZED,
    # The categorical distribution needs bounds of the returns, which differ from task to task.
    "rainbow": {"agent.distribution": "quantile"},
}
"""Discrete actions, and no images of a camera or a screen."""

CONTINUOUS: dict[str, Defaults] = {
    # CleanRL's ppo_continuous_action (Huang et al. 2022, JMLR 23 (274)), with 16 environments
    # instead of one, and three times the learning rate: short runs depend on it.
    "ppo": {
        **_CONTINUOUS,
        "actor.threads_per_device": 1,
        "actor.num_envs": 16,
        "actor.trajectory_length": 64,
        "agent.num_epochs": 10,
        "agent.num_minibatches": 16,
        "agent.learning_rate": {"schedule": "linear", "start": 1e-3, "end": 1e-4},
    },
    "impala": _CONTINUOUS,
    "a2c": _CONTINUOUS,
    "policy_gradient": _CONTINUOUS,
    # An update for each env step, as in the paper (Haarnoja et al. 2018, arXiv 1812.05905), with
    # half of its layers' width, half of its batch, and a higher rate: a quarter of a CPU's time.
    "sac": {
        "actor.threads_per_device": 1,
        "actor.num_envs": 4,
        "actor.trajectory_length": 4,
        "agent.hidden_sizes": (128, 128),
        "agent.replay_ratio": 128.0,
    },
}
"""Vectors of continuous actions."""

# Whole observations of four frames have 28 KB, so a replay of them is smaller.
_IMAGE_REPLAY = {"agent.replay_capacity": 50_000, "run.keep_memory": True}

# Learning rate and target period of RL Zoo's DQN for Atari.
_IMAGE_Q_LEARNING = {
    **_IMAGE_REPLAY,
    "actor.threads_per_device": 1,
    "actor.num_envs": 8,
    "actor.trajectory_length": 8,
    "agent.min_replay_rows": 5_000,
    "agent.target_period": 1_000,
    "agent.learning_rate": 1e-4,
}

IMAGES: dict[str, Defaults] = {
    # CleanRL's ppo_atari (Huang et al. 2022), with a constant rate.
    "ppo": {
        "actor.num_envs": 8,
        "actor.trajectory_length": 128,
        "agent.clip": 0.1,
        "agent.num_epochs": 4,
        "agent.num_minibatches": 4,
        "agent.learning_rate": 2.5e-4,
        "run.keep_memory": True,
    },
    "impala": {"agent.learning_rate": 5e-4, "run.keep_memory": True},
    "a2c": {"agent.learning_rate": 5e-4, "run.keep_memory": True},
    "ddqn": _IMAGE_Q_LEARNING,
    "rainbow": _IMAGE_Q_LEARNING,
    # PureJaxQL's pqn_atari (Gallici et al. 2025), with fewer environments, smaller minibatches and
    # half of its units.
    "pqn": {
        "actor.num_envs": 32,
        "actor.trajectory_length": 32,
        "agent.hidden_sizes": (256,),
        "agent.num_minibatches": 16,
        "agent.learning_rate": 2.5e-4,
        "run.keep_memory": True,
    },
    # An update for every 16 env steps: those with convolutions take long.
    "sac": {**_IMAGE_REPLAY, "agent.batch_size": 128, "agent.replay_ratio": 8.0},
}
"""Images of a camera or a screen; with continuous actions these follow `CONTINUOUS`."""

CLIPPED = ("ppo", "impala", "a2c", "ddqn", "rainbow", "pqn")
"""Agents that clip rewards to ±1, as usual for images and discrete actions."""

EPSILON_SHARES: dict[str, tuple[float, float]] = {"ddqn": (0.1, 0.05), "pqn": (0.1, 0.05)}
"""The share of the run over which ε falls from 1, and what it falls to."""


def family_defaults(agent: str, task: Task) -> dict[str, Any]:
    """Return the defaults of an agent of the table for a task, by dotted key."""
    defaults: dict[str, Any] = {}
    if task.actions == "continuous":
        defaults |= CONTINUOUS.get(agent, {})
    elif not task.has_images:
        defaults |= DISCRETE.get(agent, {})
    if task.has_images:
        defaults |= IMAGES.get(agent, {})
        if task.actions == "discrete" and agent in CLIPPED:
            defaults["agent.reward_clip"] = 1.0
    if agent in EPSILON_SHARES:
        share, end = EPSILON_SHARES[agent]
        env_steps = max(int(share * task.total_env_steps), 1)
        defaults["agent.epsilon"] = {
            "schedule": "linear",
            "start": 1.0,
            "end": end,
            "env_steps": env_steps,
        }
    return defaults


@dataclasses.dataclass(frozen=True, kw_only=True)
class FamilyConfig(NetworkConfig):
    """Settings of all agents whose defaults depend on the family of the task."""

    @classmethod
    def defaults_for(cls, task: Task) -> dict[str, Any]:
        """Return the network, and what the agent's family of tasks changes."""
        return super().defaults_for(task) | family_defaults(cls.name, task)
