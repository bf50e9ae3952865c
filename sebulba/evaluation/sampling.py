"""How a policy that samples its actions explores: as its actors did, at a number of env steps.

Evaluations, loaded policies and exports all use `init_actor_state` and `ActingAgent`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, declared
from sebulba.pytree import without_key
from sebulba.types import ActorState, EnvStep, Networks, PyTree

_MANY_ENV_STEPS = 2**31 - 1  # that an int32 holds


def init_actor_state(
    agent: Agent,
    networks: Networks,
    key: jax.Array,
    *,
    num_envs: int,
    num_training_envs: int,
    env_steps: int,
    greedy: bool,
) -> ActorState:
    """Return the actor state of `num_envs` environments before their first row.

    A policy that samples explores as in training, where rates may differ between environments: each
    environment gets the actor state of one of training, and these are evenly spread. Schedules are
    at `env_steps`, where `ActingAgent` keeps them.

    Args:
        agent: acts.
        networks: the result of `Agent.actor_networks`.
        key: consumed.
        num_envs: environments to act in; each player of one counts.
        num_training_envs: those of all actors of all hosts, as in the agent's `run_spec`.
        env_steps: that the networks were trained for, on all hosts.
        greedy: whether the policy takes its mode instead of samples.
    """
    count = num_envs if greedy else num_training_envs
    init = jax.jit(lambda networks, key: agent.init_actor_state(networks, count, key, 0))
    state = init(networks, key)
    if greedy:
        return state
    # Which leaves are per environment, only the agent knows.
    state = agent.shard_actor_state(state, _Chosen(num_envs, num_training_envs))
    return declared(agent, Agent, "advance_actor_state")(state, env_steps)


class ActingAgent:
    """`act` of an agent whose schedules of exploration stay where they are, however long it acts.

    What `Agent.advance_actor_state` sets, such as a count of env steps, keeps its value in the
    actor state.
    """

    def __init__(self, agent: Agent, actor_state: ActorState):
        """Find out what the agent's schedules follow.

        Args:
            agent: acts.
            actor_state: of any number of environments.
        """
        advance = declared(agent, Agent, "advance_actor_state")
        self._agent = agent
        states = [jax.tree.leaves(advance(actor_state, count)) for count in (0, _MANY_ENV_STEPS)]
        self._is_held = [not _are_equal(*leaves) for leaves in zip(*states, strict=True)]

    def act(
        self, networks: Networks, actor_state: ActorState, env_step: EnvStep, *, greedy: bool
    ) -> tuple[PyTree, PyTree, ActorState]:
        """Select actions; see `Agent.act`."""
        action, extras, after = self._agent.act(networks, actor_state, env_step, greedy=greedy)
        leaves, structure = jax.tree.flatten(after)
        triples = zip(self._is_held, jax.tree.leaves(actor_state), leaves, strict=True)
        kept = [before if is_held else leaf for is_held, before, leaf in triples]
        return action, extras, jax.tree.unflatten(structure, kept)


def _are_equal(leaf: jax.Array, other: jax.Array) -> bool:
    return np.array_equal(without_key(leaf), without_key(other), equal_nan=True)


def spread(num_envs: int, num_training_envs: int) -> np.ndarray:
    """Return the number of an environment of training for each of `num_envs`, evenly spread.

    The middle of `num_envs` equal parts: of 9, 1 is 4; of 8, 2 are 2 and 6; of 4, 8 are each twice.
    """
    return (2 * np.arange(num_envs) + 1) * num_training_envs // (2 * num_envs)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Chooses environments from an actor state; an `ActorStateSharding`."""

    num_envs: int
    num_training_envs: int

    def split(self, tree: PyTree, *, axis: int = 0) -> PyTree:
        def choose(leaf: jax.Array) -> jax.Array:
            # An agent for groups of players has leaves of fewer rows than all players.
            size = leaf.shape[axis]
            count = size * self.num_envs // self.num_training_envs
            return jnp.take(leaf, spread(count, size), axis=axis)

        return jax.tree.map(choose, tree)

    def replicate(self, tree: PyTree) -> PyTree:
        return tree
