"""Load an exported policy. Needs JAX and NumPy only, neither Sebulba nor the agent's source.

from policy import Policy

policy = Policy("DIRECTORY")
action, state = policy(observation)         # the first observations of episodes
action, state = policy(observation, state)  # the following ones
"""

import json
import pathlib
from collections.abc import Iterator
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
        in_tree: Any = exported.in_tree  # of (args, kwargs)
        self._structure = in_tree.children()[0].children()[2]  # of the observation
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
    ) -> tuple[Any, list[Any]]:
        """Select actions.

        Args:
            observation: `[B, ...]`, with the structure that `policy.json` describes, where `B` is
                its `num_envs`.
            state: the state that the previous call returned; None: all episodes start here. Each
                such start repeats the same random numbers: of a policy that samples, keep the
                state, and begin later episodes with `is_first=True`.
            reward: `[]` or `[B]`, received with the observation, for agents that use it.
            is_first: `[]` or `[B]` bool, whether an episode starts here; None: if `state` is None.
            action_mask: `[B, A]` bool, the legal actions, if the environment has them.

        Returns:
            The actions that the environments take, of arrays `[B, ...]`, and the state.

        Raises:
            ValueError: an argument has another structure, shape or dtype than in `policy.json`.
        """
        leaves = list(_leaves_like(self.description["observation"], observation, "observation"))
        first = state is None if is_first is None else is_first
        state = self._initial if state is None else state
        shapes = [np.shape(leaf) for leaf in state] if isinstance(state, list) else None
        if shapes != [leaf.shape for leaf in self._initial]:
            raise ValueError(
                f"state: expected None or what the previous call returned, got {state!r:.100}"
            )
        action, state = self._act(
            self._parameters,
            state,
            jax.tree.unflatten(self._structure, leaves),
            self._per_env("reward", reward, np.float32),
            self._per_env("is_first", first, bool),
            self._masks(action_mask),
        )
        leaves, structure = jax.tree.flatten(action)
        pairs = zip(leaves, self.description["action_dtypes"], strict=True)
        native = [np.asarray(leaf).astype(dtype) for leaf, dtype in pairs]
        return jax.tree.unflatten(structure, native), state

    def _per_env(self, name: str, value: Any, dtype: Any) -> np.ndarray:
        num_envs = self.description["num_envs"]
        array = np.array(value, dtype)
        if array.shape not in ((), (num_envs,)):
            raise ValueError(f"{name}: expected [] or [{num_envs}], got {list(array.shape)}")
        return np.broadcast_to(array, (num_envs,))

    def _masks(self, value: Any) -> np.ndarray | None:
        spec = self.description["action_mask"]
        expected = "none, since the environment has no masks" if spec is None else spec["shape"]
        got = None if value is None else list(np.shape(value))
        if got != (None if spec is None else spec["shape"]):
            raise ValueError(f"action_mask: expected {expected}, got {got}")
        return None if value is None else np.array(value, bool)


def _leaves_like(spec: Any, value: Any, name: str) -> Iterator[np.ndarray]:
    """Yield copies of the leaves of `value`, in the order of JAX.

    Copies: JAX on a CPU reads NumPy's memory, which an environment may overwrite.

    Args:
        spec: the part of `policy.json` that describes `value`: a leaf has a shape and a dtype.
        value: a pytree with the structure of `spec`, where tuples are lists.
        name: the name of `value` in messages.
    """
    is_leaf = isinstance(spec, dict) and isinstance(spec.get("dtype"), str)
    if isinstance(spec, list):
        if not isinstance(value, tuple | list) or len(value) != len(spec):
            raise ValueError(f"{name}: expected a tuple of {len(spec)}, got {_describe(value)}")
        for i, each in enumerate(spec):
            yield from _leaves_like(each, value[i], f"{name}[{i}]")
    elif not is_leaf:
        if not isinstance(value, dict) or set(value) != set(spec):
            expected = ", ".join(sorted(spec))
            raise ValueError(f"{name}: expected a dict of {expected}, got {_describe(value)}")
        for key in sorted(spec):
            yield from _leaves_like(spec[key], value[key], f"{name}[{key!r}]")
    else:
        array, dtype = np.array(value), np.dtype(spec["dtype"])
        fits = np.can_cast(array.dtype, dtype, casting="same_kind")
        if list(array.shape) != spec["shape"] or not fits:
            got = _describe(value if isinstance(value, dict) else array)
            advice = ""
            if [1, *array.shape] == spec["shape"]:
                advice = "; add the axis of the environments: np.expand_dims(x, 0)"
            raise ValueError(f"{name}: expected {dtype}{spec['shape']}, got {got}{advice}")
        yield array.astype(dtype)


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(sorted(map(str, value)))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{np.asarray(value).dtype}{list(np.shape(value))}"
