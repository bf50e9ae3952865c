"""The actor state of a policy that samples its actions as its actors did in training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent
from sebulba.types import ActorState, Networks, PyTree


def init_actor_state(
    agent: Agent,
    networks: Networks,
    key: jax.Array,
    *,
    num_envs: int,
    num_training_envs: int,
    greedy: bool,
) -> ActorState:
    """Return the actor state of `num_envs` environments before their first row.

    A policy that samples explores as in training, where rates may differ between environments: each
    environment gets the actor state of one of training, and these are evenly spread. Counts of env
    steps begin at 0: see `Agent.advance_actor_state`.

    Args:
        agent: acts.
        networks: the result of `Agent.actor_networks`.
        key: consumed.
        num_envs: environments to act in.
        num_training_envs: environments of all actors of all hosts, as in the agent's `run_spec`.
        greedy: whether the policy takes its mode instead of samples.
    """
    count = num_envs if greedy else num_training_envs
    init = jax.jit(lambda networks, key: agent.init_actor_state(networks, count, key, 0))
    state = init(networks, key)
    if greedy:
        return state
    # Which leaves are per environment, only the agent knows.
    return agent.shard_actor_state(state, _Chosen(spread(num_envs, num_training_envs)))


def spread(num_envs: int, num_training_envs: int) -> np.ndarray:
    """Return the number of an environment of training for each of `num_envs`, evenly spread.

    The middle of `num_envs` equal parts: of 9, 1 is 4; of 8, 2 are 2 and 6; of 4, 8 are each twice.
    """
    return (2 * np.arange(num_envs) + 1) * num_training_envs // (2 * num_envs)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Chooses environments from an actor state; an `ActorStateSharding`."""

    numbers: np.ndarray

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.take(leaf, self.numbers, axis=axis), tree)

    def replicate(self, tree: PyTree) -> PyTree:
        return tree
