"""A trained policy as a function, for custom loops."""

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Dict, Tuple

from sebulba.agent import Agent, declared
from sebulba.envs.actions import flat_mask, to_native
from sebulba.envs.gymnasium_results import lost_integers
from sebulba.errors import ConfigError
from sebulba.evaluation.sampling import ActingAgent, init_actor_state
from sebulba.evaluation.stored import StoredPolicy, load_stored_policy, parse_source, parse_which
from sebulba.pytree import describe_inline, pytree_dataclass
from sebulba.toolkit.prng import stream
from sebulba.types import ActorState, EnvStep, Networks, PyTree


@pytree_dataclass
class PolicyState:
    """The state of a policy between two observations of `B` environments."""

    actor_state: ActorState
    is_first: jax.Array  # [B] bool, whether the next observation starts an episode


def load_policy(
    run_dir: str | os.PathLike[str],
    checkpoint: str | int = "latest",
    *,
    greedy: bool = True,
    seed: int = 0,
    agent: Any = None,
    environment: Any = None,
    imports: bool = True,
    env_options: Mapping[str, Any] | None = None,
) -> "Policy":
    """Load the policy of a run from its run directory.

    Starts no actor, learner or thread; creates an environment once to read its spaces.

    Args:
        run_dir: the directory of a finished or running run, or `RUN_DIR@CHECKPOINT`.
        checkpoint: `latest`, `best`, or the number of a learner cycle.
        greedy: whether to take the mode of the policy. False: sample, and explore as in training at
            the checkpoint's env steps.
        seed: seed of the samples.
        agent: the object that `sebulba.train` was given, if it cannot be imported by its name.
        environment: the same for the environment.
        imports: False: import no module that the run's config names, for a run of somebody else;
            a config that names one is an error.
        env_options: arguments of the environment that replace those of the run, by name.

    Raises:
        ConfigError: not a run directory, two checkpoints are named, or the environment or agent
            cannot be created.
        CheckpointError: the checkpoint does not exist or is damaged.
    """
    path, which = parse_source(run_dir, default=parse_which(str(checkpoint)))
    if checkpoint != "latest" and which != parse_which(str(checkpoint)):
        raise ConfigError(
            f"checkpoint: expected none, as {run_dir} names one, got {checkpoint}. Leave one out"
        )
    stored = load_stored_policy(
        path,
        which,
        agent=agent,
        environment=environment,
        imports=imports,
        env=env_options,
    )
    return Policy(stored, greedy=greedy, seed=seed)


def first_actor_state(
    stored: StoredPolicy, *, num_envs: int, greedy: bool, seed: int, start: int | jax.Array = 0
) -> ActorState:
    """Return the actor state of `num_envs` environments before their first observations.

    Each `start` of episodes has random numbers of its own.
    """
    return init_actor_state(
        stored.agent,
        stored.networks,
        jax.random.fold_in(stream(jax.random.key(seed), "policy"), start),
        num_envs=num_envs,
        num_training_envs=stored.num_training_envs,
        env_steps=stored.env_steps,
        greedy=greedy,
    )


def act_function(
    stored: StoredPolicy, *, greedy: bool
) -> Callable[[Networks, ActorState, EnvStep], tuple[PyTree, ActorState]]:
    """Return the function `(networks, actor_state, env_step) -> (action, actor_state)`.

    Sampled actions explore as at the end of training, however long the policy acts.
    """
    agent: Agent | ActingAgent = stored.agent
    if not greedy:
        agent = ActingAgent(
            stored.agent,
            first_actor_state(
                stored, num_envs=stored.environment.num_players, greedy=False, seed=0
            ),
        )

    def act(
        networks: Networks, actor_state: ActorState, env_step: EnvStep
    ) -> tuple[PyTree, ActorState]:
        action, _, actor_state = agent.act(networks, actor_state, env_step, greedy=greedy)
        return action, actor_state

    return act


class Policy:
    """`policy(observation, state) -> (action, state)`, for one observation or a batch.

    Actions are as the environment takes them: in its own units, shapes, dtypes and structure.
    """

    def __init__(self, stored: StoredPolicy, *, greedy: bool, seed: int):
        self.stored = stored
        self._num_starts = 0
        self._first_actor_state = jax.jit(
            functools.partial(first_actor_state, stored, greedy=greedy, seed=seed),
            static_argnames="num_envs",
        )
        self._act = jax.jit(act_function(stored, greedy=greedy))
        self._to_native = to_native(stored.environment)

    def initial_state(self, num_envs: int = 1) -> PolicyState:
        """Return the state before the first observations of `num_envs` environments.

        Each call begins other random numbers, which depend on the seed and the number of the call.
        """
        start = self._num_starts
        self._num_starts += 1
        return PolicyState(
            actor_state=self._first_actor_state(num_envs=num_envs, start=start),
            is_first=jnp.ones(num_envs, bool),
        )

    def __call__(
        self,
        observation: PyTree,
        state: PolicyState | None = None,
        *,
        reward: Any = None,
        is_first: Any = None,
        action_mask: Any = None,
    ) -> tuple[PyTree, PolicyState]:
        """Select an action.

        Args:
            observation: one environment's observation, or `[B, ...]` for `B` environments; without
                the part that only the agent's value function sees, if there is one.
            state: the state that the previous call returned; None: all episodes start here, from
                a new `initial_state`.
            reward: `[]` or `[B]`, received with the observation, for agents that use it; None: 0.
            is_first: `[]` or `[B]` bool, whether an episode starts with this observation; None:
                as `state` says, which is True only before the first call.
            action_mask: `[A]` or `[B, A]` bool, the legal actions, or masks in the structure of a
                Dict or Tuple action; required if the environment has action masks.

        Returns:
            The action that the environment takes, for a batch of arrays `[B, ...]`; and the state.

        Raises:
            ValueError: an argument does not fit the environment or the state.
        """
        batch, is_single = self._as_batch(observation)
        num_envs = jax.tree.leaves(batch)[0].shape[0]
        state = self.initial_state(num_envs) if state is None else state
        if not isinstance(state, PolicyState):
            raise ValueError(
                f"state: expected None or what the previous call returned, got {state!r:.100}"
            )
        if state.is_first.shape != (num_envs,):
            raise ValueError(
                f"state: expected that of {num_envs} environments, got one of"
                f" {state.is_first.shape[0]}; start with policy.initial_state({num_envs})"
            )
        flags = np.zeros(num_envs, bool)
        env_step = EnvStep(
            observation=batch,
            reward=_per_env(reward, 0.0, num_envs, np.float32, "reward"),
            terminated=flags,
            truncated=flags,
            is_first=_per_env(is_first, state.is_first, num_envs, bool, "is_first"),
            action_mask=self._masks(action_mask, num_envs, is_single=is_single),
        )
        action, actor_state = self._act(self.stored.networks, state.actor_state, env_step)
        native = self._to_native(np.array(action))
        state = PolicyState(actor_state=actor_state, is_first=jnp.zeros(num_envs, bool))
        return (jax.tree.map(lambda x: x[0], native) if is_single else native), state

    def _masks(self, action_mask: Any, num_envs: int, *, is_single: bool) -> np.ndarray | None:
        spec = self.stored.environment.action_mask
        if spec is None and action_mask is None:
            return None
        space = self.stored.environment.native_action_space
        if isinstance(space, Dict | Tuple) and isinstance(action_mask, dict | tuple):
            action_mask = flat_mask(space, action_mask, batch_axes=0 if is_single else 1)
        shape = None if spec is None else (num_envs, *spec.shape)
        got = None if action_mask is None else np.array(action_mask, bool)
        if got is not None and shape is not None and got.size == math.prod(shape):
            return got.reshape(shape)
        expected = "none, since the environment has no masks" if shape is None else f"{list(shape)}"
        raise ValueError(
            f"action_mask: expected {expected}, got {None if got is None else list(got.shape)}"
        )

    def _as_batch(self, observation: PyTree) -> tuple[PyTree, bool]:
        """Return the observation as `[B, ...]`, and whether it was a single one."""
        of_policy = declared(self.stored.agent, Agent, "policy_observation")
        spec = of_policy(self.stored.environment.observation)
        arrays = of_policy(jax.tree.map(np.asarray, observation))
        problem = f"observation: expected {describe_inline(spec)}, got {describe_inline(arrays)}"
        if str(jax.tree.structure(arrays)) != str(jax.tree.structure(spec)):
            raise ValueError(f"{problem}; use the structure of the environment's observations")
        pairs = list(zip(jax.tree.leaves(spec), jax.tree.leaves(arrays), strict=True))
        if not all(np.can_cast(x.dtype, s.dtype, casting="same_kind") for s, x in pairs):
            raise ValueError(f"{problem}; convert the dtype")
        for s, x in pairs:
            if (lost := lost_integers(x, s.dtype)).size:
                raise ValueError(f"observation: expected integers of {s.dtype}, got {lost[0]}")
        ranks = {x.ndim - len(s.shape) for s, x in pairs}
        is_single = ranks == {0}
        sizes = {x.shape[:1] for _, x in pairs}
        fits = all(x.shape[x.ndim - len(s.shape) :] == s.shape for s, x in pairs)
        if ranks not in ({0}, {1}) or not fits or not (is_single or len(sizes) == 1):
            raise ValueError(
                f"{problem}; give these shapes, or a batch with a leading axis of environments"
            )
        # Copy: JAX on CPU aliases NumPy memory and may read it after the environment has
        # overwritten it.
        leaves = jax.tree.map(lambda s, x: np.array(x, s.dtype), spec, arrays)
        return jax.tree.map(lambda x: x[None], leaves) if is_single else leaves, is_single


def _per_env(value: Any, default: Any, num_envs: int, dtype: Any, name: str) -> np.ndarray:
    array = np.array(default if value is None else value, dtype)
    if array.shape not in ((), (num_envs,)):
        raise ValueError(f"{name}: expected [] or [{num_envs}], got {list(array.shape)}")
    return np.broadcast_to(array, (num_envs,)).copy()
