"""The evaluation protocol: every setting that the results depend on."""

from typing import Any

from sebulba.evaluation.episodes import EvaluationPlan

_LABELS = {
    "repeat_action_probability": "sticky actions",
    "noop_max": "max no-ops at reset",
    "episodic_life": "episodic life",
    "frame_skip": "frames per step",
    "frameskip": "frames per step",
    "max_episode_steps": "max steps per episode",
    "opponent": "opponent",
}


def describe_protocol(
    plan: EvaluationPlan,
    *,
    settings: dict[str, Any],
    learner_cycle: int,
    env_steps: int,
    updates: int,
) -> dict[str, Any]:
    """Return the protocol as JSON values.

    Args:
        plan: the plan of the evaluation.
        settings: the environment's settings, defaults included.
        learner_cycle: the learner cycle of the networks.
        env_steps: env steps learned from up to that cycle.
        updates: updates up to that cycle.
    """
    return {
        "suite": plan.env.suite,
        "id": plan.env.id,
        "settings": settings,
        "greedy": plan.greedy,
        "episodes": plan.episodes,
        "num_envs": len(plan.quota),
        "episodes_chosen": "the first of each environment, their number fixed in advance",
        "episode_ends": "at the end of the game, also with episodic life",
        "max_episode_steps_of_the_evaluation": plan.max_episode_steps,
        "seed": plan.seed,
        "learner_cycle": learner_cycle,
        "env_steps_trained": env_steps,
        "updates_trained": updates,
    }


def notable_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings present that commonly differ between papers, by readable label."""
    notable = {
        label: settings[name] for name, label in _LABELS.items() if settings.get(name) is not None
    }
    frames = settings.get("frame_skip", settings.get("frameskip"))
    steps = settings.get("max_episode_steps")
    if isinstance(frames, int) and isinstance(steps, int):
        notable["max frames per episode"] = frames * steps
    return notable
