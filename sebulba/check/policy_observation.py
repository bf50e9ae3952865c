"""The question whether actions depend on no more than the part of observations that they may."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, declared
from sebulba.check.evidence import Evidence
from sebulba.check.perturbation import other_values
from sebulba.check.policy import differs, policies_of, unroll
from sebulba.check.question import Needs, Question
from sebulba.check.result import Answer, as_numpy, failed, is_equal, passed, skipped
from sebulba.types import PyTree


def policy_observation(evidence: Evidence) -> Answer:
    """Act on the policy's part of observations alone, and on rows whose other part is another."""
    subject, item = evidence.subject, evidence.recording.trajectories[-1]
    agent, rows = subject.agent, item.acted_rows
    of_policy = declared(agent, Agent, "policy_observation")
    seen = of_policy(rows.observation)
    if _shapes(seen) == _shapes(rows.observation):
        return skipped("the policy sees all of an observation")
    # Of the changed observation, every leaf of the policy's part is that of the row.
    kept = {id(leaf) for leaf in jax.tree.leaves(seen)}
    changed = jax.tree.map(
        lambda leaf: leaf if id(leaf) in kept else other_values(leaf), rows.observation
    )
    networks = _with_noise(item.networks, subject.config.seed)
    space = subject.run_spec.environment.action_space

    @jax.jit
    def act(observation: PyTree) -> PyTree:
        observed = dataclasses.replace(rows, observation=observation)
        action, extras, _ = unroll(agent, networks, subject.start_states[0], observed)
        # Extras may hold values, which depend on all of an observation.
        return action, [*policies_of(extras, action, space).values()]

    acted = jax.tree.leaves(as_numpy(act(rows.observation)))
    ways = [(seen, "without")]
    if is_equal(of_policy(changed), seen):  # It may also cut arrays.
        ways.append((changed, "with another value of"))
    for observation, what in ways:
        others = jax.tree.leaves(as_numpy(act(observation)))
        if differs(acted, others):
            return failed(
                f"act ({item.place}): expected the same actions and policies {what} what"
                " policy_observation leaves out, got others"
            )
    return passed(f"the same actions and policies in {len(rows.reward)} rows, with the part alone")


def _shapes(tree: PyTree) -> object:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]


def _with_noise(networks: PyTree, seed: int) -> PyTree:
    """Return networks whose policies differ from row to row, as those of new ones hardly do."""
    rng = np.random.default_rng(seed)

    def noisy(leaf: np.ndarray) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.ndim < 2:
            return jnp.asarray(leaf)
        return jnp.asarray(leaf + rng.normal(size=leaf.shape).astype(leaf.dtype))

    return jax.tree.map(noisy, networks)


POLICY_OBSERVATION = Question(
    name="policy-observation",
    ask=policy_observation,
    property="actions depend on the policy's part of observations",
    needs=Needs.RECORDING,
    perturbs="leaves out what `policy_observation` leaves out, or gives it another value",
    proof="the method leaves something out; other networks, whose policies differ between rows",
    expects="the same actions, and the same distributions in the extras",
    bound="1e-4 of the greatest number: rounding of two compiled programs",
    likely_cause="the policy's network gets what only the value function may see",
)
