"""Whether an agent's loss and gradients depend on a part of its trajectories."""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.ingestion import Ingestion
from sebulba.tools.check.policy import Policy
from sebulba.tools.check.recording import RecordedTrajectory, Recording
from sebulba.tools.check.result import as_numpy, is_equal
from sebulba.tools.check.subject import Subject
from sebulba.types import Clock, PyTree

# A replay agent may not sample a changed row in one update; eight make that unlikely.
_SAMPLED_UPDATES = 8
_SEED = 7

LossAndGradients = tuple[list[float], list[PyTree]]


class LossSensitivity:
    """Losses and gradients of an agent on one learner device, as a function of trajectories.

    Parameters stay those at the end of the recording, and random keys are always the same, so
    equal trajectories give bitwise equal results.
    """

    def __init__(self, subject: Subject, recording: Recording):
        """Choose enough trajectories for a gradient, and compute it as the baseline."""
        self._subject = subject
        agent, self._run_spec = subject.agent_on(1)
        self._ingestion = Ingestion(agent, self._run_spec, subject.start_states[0])
        self.networks = jax.tree.map(jnp.asarray, recording.networks)
        self.loss_and_gradients = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
        self._num_updates = 1
        self.items = self._choose(recording.trajectories)
        self.baseline = self._compute(self.items)
        if not is_equal(self.baseline, self._compute(self.items, seed=_SEED + 1)):
            self._num_updates = _SAMPLED_UPDATES
            self.baseline = self._compute(self.items)

    @property
    def has_gradient(self) -> bool:
        """Whether any gradient of the baseline differs from zero."""
        return _has_gradient(self.baseline)

    def has_effect(self, items: list[RecordedTrajectory]) -> bool:
        """Whether these trajectories give other results than `self.items`."""
        return not is_equal(self.baseline, self._compute(items))

    def differs(self, left: list[RecordedTrajectory], right: list[RecordedTrajectory]) -> bool:
        """Whether two lists of trajectories give different results."""
        return not is_equal(self._compute(left), self._compute(right))

    def relative_change(self, items: Sequence[RecordedTrajectory]) -> float:
        """Return the greatest change of a gradient, relative to the greatest gradient."""
        pairs = zip(
            jax.tree.leaves(self.baseline[1]),
            jax.tree.leaves(self._compute(items)[1]),
            strict=True,
        )
        changes = [(np.max(np.abs(a - b)), np.max(np.abs(a))) for a, b in pairs if a.size]
        return float(max(a for a, _ in changes) / max(b for _, b in changes))

    def describe(self, items: list[RecordedTrajectory]) -> str:
        """Describe how these trajectories change the loss and its gradients."""
        results = self._compute(items)
        if is_equal(self.baseline, results):
            return "no change of the loss or its gradients"
        pairs = zip(jax.tree.leaves(self.baseline[1]), jax.tree.leaves(results[1]), strict=True)
        change = max(float(np.max(np.abs(a - b))) for a, b in pairs)
        losses = list(zip(self.baseline[0], results[0], strict=True))
        before, after = next(((a, b) for a, b in losses if a != b), losses[0])
        return f"a loss of {after:.6g} instead of {before:.6g}, gradients off by up to {change:.2g}"

    def _choose(self, recorded: tuple[RecordedTrajectory, ...]) -> list[RecordedTrajectory]:
        """Return the trajectories of twice as many learner cycles as a gradient takes.

        Each actor has two of them at least: in row 0 of its first one, all environments reset.
        """
        per_cycle = self._run_spec.trajectories_per_cycle
        least = -(-2 * self._run_spec.num_actors // per_cycle) * per_cycle
        num_cycles = len(recorded) // per_cycle
        for count in range(1, num_cycles + 1):
            if _has_gradient(self._compute(list(recorded[: count * per_cycle]))):
                return list(recorded[: max(least, 2 * count * per_cycle)])
        return list(recorded)

    @property
    def num_unlearned(self) -> int:
        """Number of trajectories at the start of `items` that the loss no longer learns from."""
        if not self.is_on_policy:
            return 0
        return max(0, len(self.items) - self._run_spec.trajectories_per_cycle)

    @functools.cached_property
    def is_on_policy(self) -> bool:
        """Whether the experience holds the trajectories of one learner cycle, and no older ones."""
        per_cycle = self._run_spec.trajectories_per_cycle
        items = self.items[: 2 * per_cycle], self.items[per_cycle : 2 * per_cycle]
        both, newest = ([*_rows(self.experience(each))] for each in items)
        return is_equal(both, newest)

    @functools.cached_property
    def policy(self) -> Policy:
        """The acting on the newest trajectory's rows."""
        return Policy(self._subject, self.networks, self.items[-1])

    def experience(self, items: Sequence[RecordedTrajectory]) -> PyTree:
        """Return the agent's experience after these trajectories."""
        return self._ingestion(self.networks, items)

    def clock(self, step: int = 0) -> Clock:
        """Return the clock of an update after `self.items`."""
        return self._ingestion.clock(self.items, step)

    def _compute(
        self, items: Sequence[RecordedTrajectory], *, seed: int = _SEED
    ) -> LossAndGradients:
        experience = self.experience(items)
        losses, gradients = [], []
        for step in range(self._num_updates):
            key = jax.random.fold_in(jax.random.key(seed), step)
            (loss, (experience, _)), grads = self.loss_and_gradients(
                self.networks, experience, key, self._ingestion.clock(items, step)
            )
            losses.append(float(loss))
            gradients.append(as_numpy(grads))
        return losses, gradients


def _has_gradient(results: LossAndGradients) -> bool:
    return any(np.any(leaf) for leaf in jax.tree.leaves(results[1]))


def _rows(experience: PyTree) -> Iterator[np.ndarray]:
    """Yield the leaves of an experience that may hold rows; others are counters."""
    yield from (leaf for leaf in jax.tree.leaves(as_numpy(experience)) if leaf.ndim > 1)
