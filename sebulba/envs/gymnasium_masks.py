"""Action masks of Gymnasium environments, which are part of a Dict observation.

As in PettingZoo, the mask is the key `action_mask` next to the key `observation`. For environments
that report it elsewhere, `sebulba.envs.gymnasium_wrappers:MaskFromInfo` puts it there.
"""

import gymnasium
import jax
import numpy as np

from sebulba.envs import spaces
from sebulba.envs.gymnasium_wrappers import ACTION_MASK
from sebulba.errors import ConfigError
from sebulba.types import PyTree


class MaskedObservations:
    """Separates action masks from observations."""

    def __init__(self, observation: gymnasium.Space, action: gymnasium.Space):
        self._action = action
        self.space = observation  # without the mask
        self.spec: jax.ShapeDtypeStruct | None = None  # of one mask; None: there are none
        self._is_single = False  # only the key `observation` is left
        children = dict(observation) if isinstance(observation, gymnasium.spaces.Dict) else {}
        mask = children.pop(ACTION_MASK, None)
        if mask is None:
            return
        self.spec = spaces.action_mask_spec(action)
        if mask.shape != self.spec.shape:
            raise ConfigError(
                f"env.id: expected {ACTION_MASK} of the observation to have the shape"
                f" {self.spec.shape} of {action}, got {mask}; rename that key"
                " with a wrapper if it is no action mask"
            )
        self._is_single = set(children) == {"observation"}
        self.space = children["observation"] if self._is_single else gymnasium.spaces.Dict(children)

    def split(self, observation: PyTree) -> tuple[PyTree, np.ndarray | None]:
        """Return observations `[B, ...]` without masks, and masks `[B, A]` bool if there are any.

        The masks are a new array; the observations are not.
        """
        if self.spec is None:
            return observation, None
        mask = spaces.complete_mask(np.array(observation[ACTION_MASK], bool), self._action)
        if self._is_single:
            return observation["observation"], mask
        return {name: leaf for name, leaf in observation.items() if name != ACTION_MASK}, mask
