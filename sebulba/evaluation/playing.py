"""Playing episodes with a stored policy, to count returns or to record them."""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

from sebulba.envs.base import Environment
from sebulba.envs.closing import CloseProblem
from sebulba.errors import ConfigError
from sebulba.evaluation.episodes import Evaluation, EvaluationPlan, Evaluator
from sebulba.evaluation.protocol import describe_protocol
from sebulba.evaluation.recording import Recording
from sebulba.evaluation.rendering import check_rendering, with_rendering
from sebulba.evaluation.stored import StoredPolicy
from sebulba.evaluation.video import Video, check_format, write_video


def _warn(problem: CloseProblem) -> None:
    warnings.warn(str(problem), stacklevel=3)


def play(
    stored: StoredPolicy,
    *,
    episodes: int,
    seed: int | None,
    greedy: bool | None,
    parallel_envs: int | None,
    max_episode_steps: int | None,
    num_recorded: int = 0,
    wrap: Callable[[Environment], Environment] = lambda environment: environment,
    is_interrupted: Callable[[], bool] = lambda: False,
    on_problem: Callable[[CloseProblem], None] = _warn,
) -> tuple[Evaluation, dict[str, Any]]:
    """Play episodes, and return the evaluation, whose environments are closed, and its protocol.

    Args:
        stored: the policy.
        episodes: number of episodes, divided evenly over the environments.
        seed: seed of environments and sampled actions; None: the run's.
        greedy: whether to take the mode of the policy; None: `evaluation.greedy` of the run.
        parallel_envs: environments stepped together; None: `evaluation.parallel_envs`.
        max_episode_steps: step budget per episode; None: `evaluation.max_episode_steps`.
        num_recorded: if not 0, the environments are a `Recording` of this many episodes, all of the
            first environment; fewer environments then play, so that it has as many episodes.
        wrap: returns the environment to play in.
        is_interrupted: asked after each step; if it returns True, the episodes are left unfinished.
        on_problem: takes why the environments could not be closed within `run.close_timeout_s`.

    Raises:
        ConfigError: a number is less than 1, or more episodes are recorded than played.
    """
    counts = {
        "episodes": episodes,
        "parallel_envs": parallel_envs,
        "max_episode_steps": max_episode_steps,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name}: expected an integer of at least 1, got {count}")
    if num_recorded > episodes:
        raise ConfigError(
            f"episodes: expected at least the {num_recorded} to record, got {episodes}"
        )
    config, settings = stored.config, stored.config.evaluation
    num_envs = parallel_envs or settings.parallel_envs
    if num_recorded:
        num_envs = min(num_envs, episodes // num_recorded)
    plan = EvaluationPlan(
        env=with_rendering(config.env) if num_recorded else config.env,
        episodes=episodes,
        num_envs=num_envs,
        max_episode_steps=max_episode_steps or settings.max_episode_steps,
        greedy=settings.greedy if greedy is None else greedy,
        seed=config.seed if seed is None else seed,
    )
    evaluator = Evaluator(
        stored.agent,
        plan,
        device=stored.device,
        num_training_envs=stored.num_training_envs,
        env_timeout_s=config.actor.env_timeout_s,
        close_timeout_s=config.run.close_timeout_s,
    )

    def wrap_all(environment: Environment) -> Environment:
        environment = wrap(environment)
        return Recording(environment, episodes=num_recorded) if num_recorded else environment

    evaluation = evaluator.start(stored.networks, env_steps=stored.env_steps, wrap=wrap_all)
    try:
        while not evaluation.is_done and not is_interrupted():
            evaluation.advance()
    finally:
        for problem in evaluation.close():
            on_problem(problem)
    protocol = describe_protocol(
        plan,
        settings=evaluation.settings,
        learner_cycle=stored.learner_cycle,
        env_steps=stored.env_steps,
        updates=stored.updates,
    )
    return evaluation, protocol


def record(
    stored: StoredPolicy,
    path: pathlib.Path,
    *,
    episodes: int,
    fps: float,
    seed: int | None,
    greedy: bool | None,
) -> Video:
    """Play episodes one after another, and write them to a video file.

    Args:
        stored: the policy.
        path: a name that ends in `.gif` or `.mp4`; directories are created, a file is replaced.
        episodes: number of episodes.
        fps: frames per second.
        seed: see `play`.
        greedy: see `play`.

    Raises:
        ConfigError: the environment cannot be rendered, or the format needs another package.
        OSError: the file could not be written.
    """
    check_format(path)
    check_rendering(stored.config.env)
    evaluation, _ = play(
        stored,
        episodes=episodes,
        seed=seed,
        greedy=greedy,
        parallel_envs=None,
        max_episode_steps=None,
        num_recorded=episodes,
    )
    recording = evaluation.environment
    assert isinstance(recording, Recording)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, recording.frames(), fps=fps)
    return Video(path)
