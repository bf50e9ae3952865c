"""Whether changes of two parts of a batch add up in the gradients, like those of unrelated rows."""

from collections.abc import Callable

from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.sensitivity import ATTEMPTS, LossSensitivity

APART = {"normalize_advantages": False, "priority_exponent": 0.0}
"""Settings without what mixes all rows of a batch on purpose: moments, chances to be drawn."""
MIN_TIMES_MORE = 10.0
"""Than between environments, which moments of a batch mix as well."""


def answer_of_mixture(
    loss: LossSensitivity,
    mixture: Callable[[int], float],
    *,
    between: Callable[[], float],
    expected: str,
    elsewhere: str,
) -> Answer:
    """Answer by how far two changes are from adding up.

    Args:
        loss: of the agent.
        mixture: from the number of an attempt, which has networks of its own, to the difference
            between what both changes do and the sum of what each does, as a share of the greatest
            gradient.
        between: the same for changes in two environments.
        expected: what had to add up, and where, for the message.
        elsewhere: what `between` is between.
    """
    found: list[float] = []
    for attempt in range(ATTEMPTS):
        found.append(mixture(attempt))
        if found[-1] <= loss.rounding:
            break
    if found[-1] <= loss.rounding:
        if len(found) > 1:
            return unclear(f"a mixture of {found[0]:.1g} with some networks only")
        return passed("the changes add up in the gradients")
    of_environments = between()
    if found[0] <= MIN_TIMES_MORE * of_environments:
        return skipped("the loss mixes all rows, those of other environments as well")
    return failed(
        f"{expected} to change gradients by the sum of what each changes, got a difference of"
        f" {found[0]:.2g} of the greatest gradient, and of {of_environments:.1g} between"
        f" {elsewhere}"
    )
