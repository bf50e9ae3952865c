"""The question whether the loss learns from each episode apart from the ones around it."""

from collections.abc import Sequence

import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.mixing import APART, MIN_TIMES_MORE, answer_of_mixture
from sebulba.check.perturbation import Perturbation
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer
from sebulba.check.settings import settings_of


def episodes(evidence: Evidence) -> Answer:
    """Change the observations of every second episode, and the rows of the others.

    A term of the loss that is about one episode sees one of the changes only, so what both change
    in the gradients is the sum of what each changes. It is not where a model is unrolled, a memory
    kept or attention paid across the end of an episode.
    """
    settings = dict(settings_of(evidence.subject.config.agent))
    has_other = any(settings.get(name, value) != value for name, value in APART.items())
    loss = evidence.loss_with(**APART) if has_other else evidence.loss

    def changed(
        items: Sequence[RecordedTrajectory], *fields: str, is_second: bool, is_odd: bool
    ) -> list[RecordedTrajectory]:
        masks = _every_second_episode(items, is_second=is_second, is_odd=is_odd)
        for field in fields:
            items = [_changed(*each, field) for each in zip(items, masks, strict=True)]
        return list(items)

    def mixture(attempt: int, *, of_environments: bool) -> float:
        """Return how far the two changes are from adding up, in the same or in other envs."""

        def others(items: Sequence[RecordedTrajectory]) -> list[RecordedTrajectory]:
            fields = ("reward", "observation")
            return changed(items, *fields, is_second=False, is_odd=of_environments)

        one = changed(loss.items, "observation", is_second=True, is_odd=False)
        return loss.mixture(one, others(loss.items), others(one), attempt=attempt)

    return answer_of_mixture(
        loss,
        lambda attempt: mixture(attempt, of_environments=False),
        between=lambda: mixture(0, of_environments=True),
        expected=(
            f"trajectory.env_steps ({loss.items[-1].place}, rows 0 …"
            f" {len(loss.items[-1].trajectory.action)}): expected the observations of an episode"
            " and the rows of the next one"
        ),
        elsewhere="episodes of two environments",
    )


def _every_second_episode(
    items: Sequence[RecordedTrajectory], *, is_second: bool, is_odd: bool
) -> list[np.ndarray]:
    """Return masks `[T + 1, B]` of the rows of every second episode of each stream.

    Args:
        items: trajectories, those of an actor in their order.
        is_second: begin with the second episode, not with the first.
        is_odd: of every second environment from the second on; else from the first on.
    """
    before: dict[int, np.ndarray] = {}  # resets in an actor's earlier trajectories, [B]
    masks = []
    for item in items:
        is_first = item.trajectory.env_steps.is_first
        number = before.get(item.actor_id, 0) + np.cumsum(is_first, axis=0)
        before[item.actor_id] = number[-1] - is_first[-1]  # Row T is row 0 of the next.
        env = item.actor_id * is_first.shape[1] + np.arange(is_first.shape[1])
        masks.append((number % 2 != is_second) & (env % 2 == is_odd))
    return masks


def _changed(item: RecordedTrajectory, mask: np.ndarray, field: str) -> RecordedTrajectory:
    return Perturbation(field=field, rows=lambda rows: mask).apply([item])[0]


EPISODES = Question(
    name="episodes",
    ask=episodes,
    property="the loss learns from each episode alone",
    needs=Needs.GRADIENT,
    perturbs=(
        "observations of every second episode, rewards and observations of the others, and both"
    ),
    proof="the same in different environments, which share no episode",
    expects="the effects on gradients to add up",
    bound=(
        f"the loss's rounding (see `rewards`), and {MIN_TIMES_MORE:g} times the mixture between "
        "environments, which moments of a batch mix as well"
    ),
    likely_cause="a model's unroll, a memory or attention continues into the next episode",
)
