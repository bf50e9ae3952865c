"""Checks of what learning leads to: rewarded actions become likelier, and entropy bonuses work.

A short training on recorded trajectories with other rewards, in which every episode has one step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.result import Answer, failed, passed, skipped, unclear
from sebulba.check.settings import settings_of
from sebulba.check.temperature import LOW_TARGET_NATS, check_target_entropy
from sebulba.check.training import Trainer, in_steps, mean_component
from sebulba.types import Networks

_NUM_UPDATES = 40
# Action values have to change more than probabilities, before a greedy action changes. Values that
# move away from their targets end up anywhere, but begin in the wrong direction.
_NUMS_OF_UPDATES = (_NUM_UPDATES, 4 * _NUM_UPDATES, 3, 10)
_ENTROPY_COST = 10.0  # far above any other term of the loss
_MIN_CHANGE_OF_SHARE = 0.1  # of greedy actions; also of a probability, and of a mean action
_MIN_TIMES_TAKEN = 4  # of an action that is rewarded
_MIN_SHARE_TAKEN = 0.05  # of the times of the most frequent action; exploration may be rare
_MIN_ENTROPY_NATS = 0.1  # of the policy that a great entropy cost is tried on
_MIN_CHANGE_NATS = 0.02
_MAX_HALVINGS = 6  # of the way from the recorded networks to that policy


def preference(evidence: Evidence) -> Answer:
    """Reward one action, then another one; for continuous actions, their mean component."""
    return evidence.shared(_rewarded)[0]


def _rewarded(evidence: Evidence) -> tuple[Answer, Networks]:
    """Return the answer about preferences, and the networks after learning one."""
    trainer = evidence.shared(_trainer)
    networks = trainer.sensitivity.networks
    greedy, _ = trainer.policy.acted(networks)
    if not np.issubdtype(greedy.dtype, np.integer):
        return _reward_twice(trainer, None)
    sensitivity = trainer.sensitivity
    items = in_steps(sensitivity.items, 0.0)
    learned = [each.trajectory for each in items[sensitivity.num_unlearned :]]
    taken = np.concatenate([each.action[each.valid] for each in learned])
    values, counts = np.unique(taken, axis=0, return_counts=True)
    least_times = np.maximum(_MIN_TIMES_TAKEN, _MIN_SHARE_TAKEN * counts.max(initial=0))
    values = values[counts >= least_times]
    if len(values) < 2:
        least = f"taken {_MIN_TIMES_TAKEN} times"
        return skipped(f"the loss learns from fewer than two actions {least}"), networks
    # An action that is never greedy cannot become so more seldom, nor one that always is, oftener.
    least, *_, most = sorted(values, key=lambda value: float(_equals(greedy, value).mean()))
    answers = []
    for wanted in (least, most):
        answers.append(_reward_twice(trainer, wanted))
        if answers[-1][0].status == "pass":
            return answers[-1]
    return next((each for each in answers if each[0].status == "fail"), answers[0])


def _trainer(evidence: Evidence) -> Trainer:
    return Trainer(evidence.subject, evidence.loss)


def _reward_twice(trainer: Trainer, wanted: Any) -> tuple[Answer, Networks]:
    """Reward an action; before an accusation, begin with other networks as well."""
    result, trained = _reward_and_compare(trainer, wanted, trainer.sensitivity.networks)
    if result.status == "fail":
        start = trainer.sensitivity.networks_of(1)
        other, _ = _reward_and_compare(trainer, wanted, start)
        if other.status == "pass":
            return unclear(f"with other networks, {other.detail}"), trained
    return result, trained


def _reward_and_compare(trainer: Trainer, wanted: Any, start: Networks) -> tuple[Answer, Networks]:
    """Return the answer from one start, and the networks after most updates with rewards.

    An action that is rewarded has to be liked better than one that is penalised: other terms of the
    loss, such as an entropy bonus, change both.

    Args:
        trainer: learns.
        wanted: the rewarded action; None: the mean component is the reward.
        start: the networks before.
    """

    def reward(item: RecordedTrajectory) -> np.ndarray:
        action = item.trajectory.action
        rewards = mean_component(action) if wanted is None else _equals(action, wanted)
        return rewards.astype(np.float32)

    def liking(networks: Networks) -> float:
        action, distributions = trainer.policy.acted(networks)
        if wanted is None:
            return float(action.mean())
        for each in distributions:
            every = jnp.broadcast_to(jnp.asarray(wanted, action.dtype), action.shape)
            log_prob = np.asarray(each.log_prob(every))
            if log_prob.shape == action.shape[:2]:
                return float(np.exp(log_prob).mean())
        return float(_equals(action, wanted).mean())

    def trained(sign: float, num_updates: int) -> Networks:
        items = in_steps(trainer.sensitivity.items, lambda item: sign * reward(item))
        return trainer.train(items, start, num_updates=num_updates)

    what = "the mean of greedy actions" if wanted is None else f"action {wanted}"
    wrong, most_updates, networks = "", 0, start
    for num_updates in _NUMS_OF_UPDATES:
        rewarded = trained(1.0, num_updates)
        if num_updates > most_updates:
            most_updates, networks = num_updates, rewarded
        after, penalised = liking(rewarded), liking(trained(-1.0, num_updates))
        detail = f"{after:.3f} after {num_updates} rewarding updates, {penalised:.3f} after"
        if after - penalised >= _MIN_CHANGE_OF_SHARE:
            return passed(f"{what}: {detail} penalising ones"), networks
        if penalised - after >= _MIN_CHANGE_OF_SHARE:
            wrong = wrong or f"got {detail} as many that penalise it"
    if not wrong:
        return unclear(f"{what}: {detail} penalising ones"), networks
    return failed(
        f"networks (updates 0 … {most_updates - 1}): expected {what} to be more frequent when"
        f" rewarded than when penalised, {wrong}"
    ), networks


def _equals(action: np.ndarray, wanted: Any) -> np.ndarray:
    return (action == wanted).reshape(*action.shape[:2], -1).all(axis=-1)


def entropy(evidence: Evidence) -> Answer:
    """Begin with a policy that prefers an action, and learn with a great entropy cost."""
    trainer = evidence.shared(_trainer)
    if "target_entropy" in dict(settings_of(trainer.subject.config.agent)):
        return check_target_entropy(trainer)
    if trainer.subject.setting("entropy_cost") is None:
        return skipped("the agent has no setting `entropy_cost` or `target_entropy`")
    _, networks = evidence.shared(_rewarded)
    costly = Trainer(trainer.subject, trainer.sensitivity, entropy_cost=_ENTROPY_COST)

    def mean_entropy(networks: Networks) -> float:
        _, distributions = trainer.policy.acted(networks)
        found = [each.entropy() for each in distributions if hasattr(each, "entropy")]
        return float(np.mean(np.asarray(found[0]))) if found else np.nan

    if np.isnan(mean_entropy(networks)):
        return skipped("no distribution in the extras has an entropy")
    for _ in range(_MAX_HALVINGS):
        if mean_entropy(networks) > _MIN_ENTROPY_NATS:
            break
        # The gradient of the entropy vanishes where a policy is certain.
        networks = jax.tree.map(lambda a, b: (a + b) / 2, networks, trainer.sensitivity.networks)
    items = in_steps(trainer.sensitivity.items, 0.0)
    # An indifferent policy has the greatest entropy; one with other parameters prefers an action.
    for start in (networks, trainer.sensitivity.networks_of(1)):
        before = mean_entropy(start)
        after = mean_entropy(costly.train(items, start, num_updates=_NUM_UPDATES))
        if abs(after - before) >= _MIN_CHANGE_NATS:
            break
    detail = f"{before:.3f} nats before, {after:.3f} after {_NUM_UPDATES} updates for entropy alone"
    if abs(after - before) < _MIN_CHANGE_NATS:
        return unclear(detail)
    if after > before:
        return passed(detail)
    return failed(
        f"networks (updates 0 … {_NUM_UPDATES - 1}): expected the policy's entropy to grow with an"
        f" entropy_cost of {_ENTROPY_COST:g}, got {after:.3f} nats after {before:.3f}"
    )


PREFERENCE = Question(
    name="preference",
    ask=preference,
    property="rewarded actions become more likely",
    needs=Needs.TRAINING,
    perturbs=(
        f"rewards or penalises one action, in episodes of one step, and trains for {_NUM_UPDATES} "
        "updates, four times as many, or a few"
    ),
    proof=f"the loss learns from {_MIN_TIMES_TAKEN} actions of two kinds",
    expects="its probability, or its share of greedy actions, to be greater with rewards",
    bound=(
        f"{_MIN_CHANGE_OF_SHARE:g}: one row of ten. Less is unclear, and a smaller share is held "
        "against other networks"
    ),
    likely_cause="a sign in the policy's loss, in the TD error or in the target",
)

ENTROPY = Question(
    name="entropy",
    ask=entropy,
    property="the entropy bonus raises the entropy",
    needs=Needs.TRAINING,
    perturbs=(
        f"an entropy cost of {_ENTROPY_COST:g} for a policy that prefers an action; or a target "
        f"entropy near that of uniform actions, and one of {LOW_TARGET_NATS:g} nats"
    ),
    proof=(
        "the policy's entropy, or its learned weight, moves at all: an indifferent or a certain "
        "policy has no gradient"
    ),
    expects=(
        "it to grow; a learned weight to fall with the entropy, and to count as a reward of the "
        "next action"
    ),
    bound=f"{_MIN_CHANGE_NATS:g} nats: 3% of a coin's entropy; less is unclear",
    likely_cause="the entropy has the wrong sign in the loss",
)
