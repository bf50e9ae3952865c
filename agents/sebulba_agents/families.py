"""The defaults of the shipped agents for families of tasks. Imports no jax.

The defaults in `config` and `replay_config` suit discrete actions and observations that are
vectors. A table here holds what differs for another family. `docs/choose_settings.md` has the
returns of all families, and the tasks that these numbers were chosen on.
"""

from collections.abc import Mapping
from typing import Any

from sebulba.task import Task

Defaults = Mapping[str, Any]

# Rewards of control tasks have any scale, and their observations many: both are normalised.
_NORMALIZED = {
    "agent.normalize_observations": True,
    "agent.normalize_rewards": True,
    "agent.reward_clip": 10.0,
    "agent.entropy_cost": 0.0,
}

CONTINUOUS: dict[str, Defaults] = {
    # CleanRL's ppo_continuous_action (Huang et al. 2022, JMLR 23 (274)) with a constant rate: half
    # of a short run with a falling one teaches little.
    "ppo": {
        **_NORMALIZED,
        "actor.num_envs": 8,
        "actor.trajectory_length": 128,
        "agent.num_epochs": 10,
        "agent.num_minibatches": 16,
        "agent.learning_rate": 3e-4,
    },
    "impala": {**_NORMALIZED},
    "a2c": {**_NORMALIZED},
    "policy_gradient": {**_NORMALIZED},
    # The paper's (Haarnoja et al. 2018, arXiv 1812.05905): an update of 256 transitions for each
    # env step.
    "sac": {
        "actor.threads_per_device": 1,
        "actor.num_envs": 4,
        "actor.trajectory_length": 4,
        "agent.hidden_sizes": (256, 256),
        "agent.batch_size": 256,
        "agent.replay_ratio": 256.0,
        "agent.learning_rate": 3e-4,
    },
}
"""Vectors of continuous actions."""

IMAGES: dict[str, Defaults] = {
    # CleanRL's ppo_atari (Huang et al. 2022).
    "ppo": {
        "actor.num_envs": 8,
        "actor.trajectory_length": 128,
        "agent.clip": 0.1,
        "agent.reward_clip": 1.0,
        "agent.learning_rate": 2.5e-4,
        "run.keep_memory": True,
    },
}
"""Discrete actions, and images of a camera or a screen."""

EPSILON_SHARES: dict[str, tuple[float, float]] = {"ddqn": (0.1, 0.05), "pqn": (0.1, 0.05)}
"""The share of the run over which ε falls from 1, and what it falls to."""


def family_defaults(agent: str, task: Task) -> dict[str, Any]:
    """Return the defaults of an agent of the table for a task, by dotted key."""
    defaults: dict[str, Any] = {}
    if task.actions == "continuous":
        defaults |= CONTINUOUS.get(agent, {})
    elif task.has_images:
        defaults |= IMAGES.get(agent, {})
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
