"""Load an exported policy. Needs JAX and NumPy only, neither Sebulba nor the agent's source.

from policy import Policy

policy = Policy("DIRECTORY")
action, state = policy(observation)         # the first observations of episodes
action, state = policy(observation, state)  # the following ones
"""

import json
import pathlib
from typing import Any

import jax
import jax.export
import numpy as np


class Policy:
    """`policy(observation, state) -> (action, state)`, for a fixed number of environments."""

    def __init__(self, directory: str | pathlib.Path):
        """Load the files of `sebulba export`."""
        directory = pathlib.Path(directory)
        self.description: dict[str, Any] = json.loads((directory / "policy.json").read_text())
        exported = jax.export.deserialize(bytearray((directory / "act.jax").read_bytes()))
        self._act = jax.jit(exported.call)
        with np.load(directory / "arrays.npz", allow_pickle=False) as stored:
            count = self.description["num_parameters"]
            self._parameters = [jax.numpy.asarray(stored[f"parameter_{i}"]) for i in range(count)]
            count = self.description["num_states"]
            self._initial = [jax.numpy.asarray(stored[f"state_{i}"]) for i in range(count)]

    def __call__(
        self,
        observation: Any,
        state: list[Any] | None = None,
        *,
        reward: Any = 0.0,
        is_first: Any = None,
        action_mask: Any = None,
    ) -> tuple[np.ndarray, list[Any]]:
        """Select actions.

        Args:
            observation: `[B, ...]`, with the structure that `policy.json` describes, where `B` is
                its `num_envs`.
            state: the state that the previous call returned; None: all episodes start here.
            reward: `[]` or `[B]`, received with the observation, for agents that use it.
            is_first: `[]` or `[B]` bool, whether an episode starts here; None: if `state` is None.
            action_mask: `[B, A]` bool, the legal actions, if the environment has them.

        Returns:
            The actions in the environment's own units, `[B, ...]`, and the state.
        """
        num_envs = self.description["num_envs"]
        first = state is None if is_first is None else is_first
        # Copies: JAX on a CPU reads NumPy's memory, which an environment may overwrite.
        action, state = self._act(
            self._parameters,
            self._initial if state is None else state,
            jax.tree.map(lambda x: np.array(x), observation),
            np.broadcast_to(np.asarray(reward, np.float32), (num_envs,)),
            np.broadcast_to(np.asarray(first, bool), (num_envs,)),
            None if action_mask is None else np.array(action_mask, bool),
        )
        return np.asarray(action).astype(self.description["action_dtype"]), state
