"""Evaluation as a function of Python: `sebulba.evaluate`."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from sebulba.envs.base import Environment
from sebulba.evaluation.episodes import Evaluation, EvaluationPlan, Evaluator
from sebulba.evaluation.policy import Policy
from sebulba.evaluation.protocol import describe_protocol
from sebulba.evaluation.statistics import Statistics, summarize
from sebulba.evaluation.stored import StoredPolicy, load_stored_policy
from sebulba.run.training import use_compilation_cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The episodes of an evaluation and their statistics."""

    statistics: Statistics  # `return_mean`, `return_iqm`, `length_mean` and others, by name
    returns: tuple[float, ...]  # of the episodes, in the order of the environments
    lengths: tuple[int, ...]  # in env steps
    unfinished: int  # episodes that did not end within the step budget
    protocol: dict[str, Any]  # every setting that the results depend on

    @property
    def return_mean(self) -> float | int | None:
        """The mean return; None: no episode ended."""
        return self.statistics["return_mean"]


def evaluate(
    policy: Policy | str | os.PathLike[str],
    *,
    episodes: int = 100,
    seed: int | None = None,
    greedy: bool | None = None,
    parallel_envs: int | None = None,
    max_episode_steps: int | None = None,
) -> EvaluationResult:
    """Play episodes with a trained policy in new environments, and return their statistics.

    Equal arguments give equal results, and those of `python -m sebulba.evaluate`.

    Args:
        policy: the `policy` of a `Result`, one from `sebulba.load_policy`, or a run directory,
            whose latest checkpoint is taken.
        episodes: number of episodes, divided evenly over the environments.
        seed: of environments and sampled actions; None: the run's.
        greedy: whether to take the mode of the policy. False: sample, and explore as in training at
            the checkpoint's env steps. None: as `evaluation.greedy` of the run says; that of a
            loaded policy is not used.
        parallel_envs: environments stepped together; None: `evaluation.parallel_envs`.
        max_episode_steps: step budget per episode; None: `evaluation.max_episode_steps`.

    Raises:
        ConfigError: not a run directory, or its environment or agent cannot be created.
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    use_compilation_cache()
    stored = policy.stored if isinstance(policy, Policy) else load_stored_policy(policy, "latest")
    settings = stored.config.evaluation
    plan = EvaluationPlan(
        env=stored.config.env,
        episodes=episodes,
        num_envs=parallel_envs or settings.parallel_envs,
        max_episode_steps=max_episode_steps or settings.max_episode_steps,
        greedy=settings.greedy if greedy is None else greedy,
        seed=stored.config.seed if seed is None else seed,
    )
    evaluation = play(stored, plan)
    played = evaluation.result()
    return EvaluationResult(
        statistics=summarize(played.records, seed=plan.seed),
        returns=tuple(record.episode_return for record in played.records),
        lengths=tuple(record.episode_length for record in played.records),
        unfinished=played.unfinished,
        protocol=protocol_of(stored, plan, evaluation),
    )


def play(
    stored: StoredPolicy,
    plan: EvaluationPlan,
    *,
    wrap: Callable[[Environment], Environment] = lambda environment: environment,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Return an evaluation whose episodes are played, unless it is interrupted; it is closed."""
    evaluator = Evaluator(
        stored.agent,
        plan,
        device=stored.device,
        num_training_envs=stored.num_training_envs,
        env_timeout_s=stored.config.actor.env_timeout_s,
    )
    evaluation = evaluator.start(stored.networks, env_steps=stored.env_steps, wrap=wrap)
    try:
        while not evaluation.is_done and not is_interrupted():
            evaluation.advance()
    finally:
        evaluation.close()
    return evaluation


def protocol_of(
    stored: StoredPolicy, plan: EvaluationPlan, evaluation: Evaluation
) -> dict[str, Any]:
    """Return the protocol of an evaluation as JSON values."""
    return describe_protocol(
        plan,
        settings=evaluation.settings,
        learner_cycle=stored.learner_cycle,
        env_steps=stored.env_steps,
        updates=stored.updates,
    )
