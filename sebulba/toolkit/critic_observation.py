"""Observations with a part for the value function only: one key of a Dict.

An asymmetric actor-critic (Pinto et al. 2018, arXiv 1710.06542), or MAPPO (Yu et al. 2022, arXiv
2103.01955) where the part is the state of all players. The policy sees the Dict without the key
or, if only one other key is left, what the Dict has there.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from sebulba.errors import ConfigError, did_you_mean
from sebulba.pytree import describe_inline
from sebulba.toolkit.spaces import zeros
from sebulba.types import EnvironmentSpec, PyTree


class SameObservation:
    """The value function sees what the policy sees: the `CriticObservation` without a part."""

    def of_policy(self, observation: PyTree) -> PyTree:
        """Return the observation."""
        return observation

    def of_value(self, shared: PyTree, observation: PyTree) -> PyTree:
        """Return what the policy sees, or its features."""
        del observation
        return shared

    def completed(self, observation: PyTree, leading: tuple[int, ...]) -> PyTree:
        """Return the observation."""
        del leading
        return observation


class CriticObservation:
    """Tells the part of the value function from that of the policy."""

    def __init__(self, environment: EnvironmentSpec, key: str, *, setting: str):
        """Read the environment's spaces.

        Args:
            environment: the run's; its observation is a Dict.
            key: of the Dict, what only the value function sees.
            setting: the name of the setting that has `key`, for messages.

        Raises:
            ConfigError: the observation is no Dict, or has no such key, or no other one.
        """
        observation = environment.observation
        if not isinstance(observation, Mapping):
            raise ConfigError(
                f"{setting}: expected an environment whose observation is a Dict with the key"
                f" {key!r}, got {describe_inline(observation)}. Set env.options.state to true if"
                " the task has a state, or wrap the environment"
            )
        if key not in observation or len(observation) == 1:
            others = [name for name in observation if name != key]
            raise ConfigError(
                f"{setting}: expected one of several keys of the environment's observation,"
                f" {', '.join(observation)}, got {key!r}{did_you_mean(key, others)}"
            )
        self._key = key
        self._whole = observation
        self._structure: Any = jax.tree.structure(observation)
        seen, of_seen, of_part = self.of_policy(observation), None, None
        if environment.choices is not None:
            choices = jax.tree.unflatten(self._structure, environment.choices)
            of_seen = _choices_of(seen, self._without(choices))
            of_part = _choices_of(observation[key], choices[key])
        self.policy_environment = dataclasses.replace(
            environment, observation=seen, choices=of_seen
        )
        self.choices = of_part  # of the critic's part, as `EnvironmentSpec.choices`

    def of_policy(self, observation: PyTree) -> PyTree:
        """Return what the policy sees of an observation, or of its shapes."""
        if jax.tree.structure(observation) != self._structure:
            return observation
        return self._without(observation)

    def of_value(self, shared: PyTree, observation: PyTree) -> PyTree:
        """Return what the value function sees.

        Args:
            shared: what the policy sees, or its features.
            observation: complete.
        """
        return shared, observation[self._key]

    def completed(self, observation: PyTree, leading: tuple[int, ...]) -> PyTree:
        """Return a complete observation, with zeros for the value function if it has no part of it.

        Args:
            observation: `[*leading, ...]`, complete or the policy's.
            leading: the axes before those of one environment.
        """
        if jax.tree.structure(observation) == self._structure:
            return observation
        others = [name for name in self._whole if name != self._key]
        seen = observation if len(others) > 1 else {others[0]: observation}
        return {**seen, self._key: zeros(self._whole[self._key], *leading)}

    def _without(self, observation: Mapping[str, PyTree]) -> PyTree:
        others = {name: part for name, part in observation.items() if name != self._key}
        return others if len(others) > 1 else next(iter(others.values()))


def _choices_of(part: PyTree, choices: PyTree) -> tuple[tuple[range, ...], ...]:
    """Return the choices of each leaf of a part, whose structure they have."""
    structure: Any = jax.tree.structure(part)
    return tuple(structure.flatten_up_to(choices))
