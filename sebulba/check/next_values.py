"""Check of bootstrap values in a replay: which action they are of, and which of several counts."""

import gymnasium
import jax
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import Perturbation, is_valid
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, failed, passed, skipped
from sebulba.check.training import Trainer, in_truncated_steps
from sebulba.check.trees import flat, leaf_names, with_leaf
from sebulba.check.value_function import ValueFunction
from sebulba.types import Networks

_REWARD = 1.0
_MIN_DISCOUNT = 0.5
_GREAT_REWARD = 100.0  # far above any value
_MAX_OUTPUTS = 16  # of a target network, as biases
_MAX_ERROR_OF_SHARE = 0.05  # of the effect of an output in that of a reward
_MAX_ROUNDING = 1e-4  # of a gradient, relative


def next_values(evidence: Evidence) -> Answer:
    """Change stored actions, which bootstrap values ignore, and then bootstrap values alone.

    Not asked on policy, where the next action is the one taken, nor of discrete actions, where the
    next value is the greatest of several on purpose.
    """
    values = evidence.shared(ValueFunction)
    space = evidence.subject.run_spec.environment.action_space
    is_box = isinstance(space, gymnasium.spaces.Box)
    if not is_box or evidence.loss.is_on_policy or not any(values.policy_leaves):
        return skipped(
            "the agent has no replay of continuous actions with a value function apart"
            " from its policy"
        )
    trainer, networks = values.trainer, evidence.loss.networks
    # Values of 0, whatever the action is: gradients depend on the targets alone.
    zeroed = values.zeroed(networks)
    items = in_truncated_steps(evidence.loss.items, _REWARD)
    change = Perturbation(field="action", rows=is_valid)
    same, other = (trainer.mean_gradients(zeroed, each) for each in (items, change.apply(items)))
    rest = zip(values.leaves, same, other, strict=True)
    pairs = [(np.abs(one), np.abs(one - two)) for is_value, one, two in rest if is_value]
    size, got = (max(float(np.max(pair[side])) for pair in pairs) for side in (0, 1))
    if got > _MAX_ROUNDING * size:
        return failed(
            f"trajectory.action ({trainer.place}): expected targets of values to ignore the actions"
            f" of truncated episodes of one step, got a change of {got / size:.1g} of the gradients"
            " with other actions",
            "the value of the next observation is that of a stored action, not of the policy's",
        )
    discount = next(iter(evidence.subject.discounts), 0.0)
    if discount >= _MIN_DISCOUNT:
        # Twice: a hidden unit may count like an output by chance.
        found = [
            _greatest(trainer, each, discount) for each in (networks, evidence.loss.networks_of(1))
        ]
        if all(len(names) > 1 for names in found):
            return failed(
                f"{', '.join(found[0])} ({trainer.place}): expected a lower one to lower bootstrap"
                f" values, got an effect with {_GREAT_REWARD:g} more, and none with"
                f" {_GREAT_REWARD:g} less",
                "the target takes the greater of several values, not the lesser",
            )
    return passed("targets ignore stored actions, and take no greatest value")


def _greatest(trainer: Trainer, networks: Networks, discount: float) -> list[str]:
    """Return the outputs of target networks of which the greatest counts.

    Such an output moves bootstrap values if it is raised far, and not if it is lowered far.
    """

    def effect(networks: Networks, reward: float = 0.0) -> np.ndarray:
        items = in_truncated_steps(trainer.sensitivity.items, reward)
        return flat(trainer.mean_gradients(networks, items))

    def with_output(number: int, place: tuple[int, ...], far: float) -> Networks:
        return with_leaf(networks, number, lambda leaf: leaf.at[place].add(far))

    names = leaf_names("networks", networks)
    has_gradient = trainer.sensitivity.has_gradients(networks)
    base, found = effect(networks), []
    both = (_GREAT_REWARD, -_GREAT_REWARD)
    sizes = [float(np.linalg.norm(effect(networks, far) - base)) for far in both]
    for number, leaf in enumerate(jax.tree.leaves(networks)):
        if has_gradient[number] or not 0 < leaf.size <= _MAX_OUTPUTS or not leaf.ndim:
            continue
        for place in np.ndindex(leaf.shape):
            shares = []
            for far, size in zip(both, sizes, strict=True):
                change = effect(with_output(number, place, far)) - base
                shares.append(float(np.linalg.norm(change)) / max(size, 1e-30))
            # A shift of an output counts like a reward, γ times.
            if abs(shares[0] - discount) < _MAX_ERROR_OF_SHARE and shares[1] < shares[0] / 3.0:
                found.append(f"{names[number]}{[*place]}")
    return found


NEXT_VALUES = Question(
    name="next-values",
    ask=next_values,
    property="the next value is the policy's, and the lesser of several",
    needs=Needs.TRAINING,
    perturbs=f"stored actions, and single outputs of target networks, by ±{_GREAT_REWARD:g}",
    proof=f"an output counts γ times as much as a reward, to {_MAX_ERROR_OF_SHARE:g}",
    expects="no effect of stored actions on targets; a lower output to lower them",
    bound=f"{_MAX_ROUNDING:g} of a gradient: means of several losses round more than one",
    likely_cause="the value of the next observation is that of another action",
)
