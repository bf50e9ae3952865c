"""What an agent learns from trajectories, as a function that can be asked again and again."""

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.tools.check.capture import from_data
from sebulba.tools.check.recording import RecordedTrajectory, Recording
from sebulba.tools.check.result import as_numpy
from sebulba.tools.check.subject import Subject
from sebulba.types import PyTree

_DRAWN_UPDATES = 8  # of an agent that draws what it learns from
_KEY = 7


class Lesson:
    """The losses and gradients of an agent, on one learner device, given trajectories.

    Nothing is optimised: parameters stay those that the recording ended with. The random keys are
    always the same, so equal trajectories give equal bits.
    """

    def __init__(self, subject: Subject, recording: Recording):
        """Finds out how many trajectories it takes until there is anything to learn."""
        agent, self._run_spec = subject.agent_on(1)
        self._agent = agent
        self._networks = jax.tree.map(jnp.asarray, recording.networks)
        self._ingest = jax.jit(agent.update_experience)
        self._learn = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
        self._like = subject.start_states[0]
        self._num_updates = 1
        self.items = self._enough(recording.trajectories)
        self.base = self(self.items)
        if not self._is_same(self.base, self._update_results(self.items, seed=_KEY + 1)):
            self._num_updates = _DRAWN_UPDATES
            self.base = self(self.items)

    @property
    def is_empty(self) -> bool:
        """Whether no gradient came about."""
        return not any(np.any(leaf) for leaf in jax.tree.leaves(self.base[1]))

    def __call__(self, items: list[RecordedTrajectory]) -> tuple[list[float], PyTree]:
        """Returns the losses, and the gradients as NumPy arrays, of updates on the trajectories."""
        return self._update_results(items, seed=_KEY)

    def has_effect(self, items: list[RecordedTrajectory]) -> bool:
        """Whether anything is learned otherwise from these trajectories than from `self.items`."""
        return not self._is_same(self.base, self(items))

    def differs(self, left: list[RecordedTrajectory], right: list[RecordedTrajectory]) -> bool:
        """Whether anything else is learned from the one than from the other."""
        return not self._is_same(self(left), self(right))

    def describe(self, items: list[RecordedTrajectory]) -> str:
        """Returns how the first loss is for these trajectories."""
        results = self(items)
        if self._is_same(self.base, results):
            return "no effect"
        pairs = zip(jax.tree.leaves(self.base[1]), jax.tree.leaves(results[1]), strict=True)
        change = max(float(np.max(np.abs(a - b))) for a, b in pairs)
        losses = zip(self.base[0], results[0], strict=True)
        before, after = next(((a, b) for a, b in losses if a != b), (self.base[0][0],) * 2)
        return f"the loss goes from {before:.6g} to {after:.6g}, gradients by up to {change:.2g}"

    def _enough(self, recorded: tuple[RecordedTrajectory, ...]) -> list[RecordedTrajectory]:
        """Returns twice as many learner cycles' trajectories as it takes for a gradient.

        There are two of every actor at least: at the first one's row 0 all environments reset.
        """
        per_cycle = self._run_spec.trajectories_per_cycle
        least = -(-2 * self._run_spec.num_actors // per_cycle) * per_cycle
        num_cycles = len(recorded) // per_cycle
        for count in range(1, num_cycles + 1):
            _, gradients = self(list(recorded[: count * per_cycle]))
            if any(np.any(leaf) for leaf in jax.tree.leaves(gradients)):
                return list(recorded[: max(least, 2 * count * per_cycle)])
        return list(recorded)

    def _update_results(
        self, items: list[RecordedTrajectory], *, seed: int
    ) -> tuple[list[float], PyTree]:
        num_envs = self._run_spec.num_envs
        experience = self._agent.init_experience(self._networks, num_envs)
        for item in items:
            experience = self._ingest(
                self._networks,
                experience,
                from_data(item.initial_state, self._like),
                from_data(item.final_state, self._like),
                jax.tree.map(jnp.asarray, item.trajectory),
                jnp.int32(item.actor_id),
            )
        losses, gradients = [], []
        for step in range(self._num_updates):
            key = jax.random.fold_in(jax.random.key(seed), step)
            (loss, (experience, _)), grads = self._learn(
                self._networks, experience, key, jnp.int32(step)
            )
            losses.append(float(loss))
            gradients.append(as_numpy(grads))
        return losses, gradients

    @staticmethod
    def _is_same(left: tuple[list[float], PyTree], right: tuple[list[float], PyTree]) -> bool:
        pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
