"""The stamp of an evaluation: everything that its figures depend on."""

from typing import Any

from sebulba.evaluation.episodes import EvaluationPlan

_LABELS = {
    "repeat_action_probability": "sticky actions",
    "noop_max": "no-ops at the start, at most",
    "episodic_life": "a lost life ends the stream's episode",
    "frame_skip": "frames a step",
    "frameskip": "frames a step",
    "max_episode_steps": "steps an episode, at most",
}


def describe_protocol(
    plan: EvaluationPlan,
    *,
    settings: dict[str, Any],
    learner_cycle: int,
    env_steps: int,
    updates: int,
) -> dict[str, Any]:
    """Returns the stamp, as JSON values.

    Args:
        plan: what was played.
        settings: what the environment was made with, defaults included.
        learner_cycle: of the networks.
        env_steps: learned from until then.
        updates: taken until then.
    """
    return {
        "suite": plan.env.suite,
        "id": plan.env.id,
        "settings": settings,
        "greedy": plan.greedy,
        "episodes": plan.episodes,
        "num_envs": len(plan.quota),
        "episodes_chosen": "the first of each environment, a number fixed beforehand",
        "episode_ends": "with the game, also where a lost life ends the stream's episode",
        "max_episode_steps_of_the_evaluation": plan.max_episode_steps,
        "seed": plan.seed,
        "learner_cycle": learner_cycle,
        "env_steps_trained": env_steps,
        "updates_trained": updates,
    }


def notable_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that papers differ in, by what they mean; those that there are."""
    notable = {
        label: settings[name] for name, label in _LABELS.items() if settings.get(name) is not None
    }
    frames = settings.get("frame_skip", settings.get("frameskip"))
    steps = settings.get("max_episode_steps")
    if isinstance(frames, int) and isinstance(steps, int):
        notable["frames an episode, at most"] = frames * steps
    return notable
