"""Action masks of EnvPool and Gymnasium, which arrive in observations or in `info`.

Agents get them as `EnvStep.action_mask`, and not as a part of the observation.
"""

import math

import gymnasium

from sebulba.envs import spaces
from sebulba.envs.actions import agent_action_space, flat_mask, mask_leaves, num_choices
from sebulba.envs.gymnasium_wrappers import ACTION_MASK
from sebulba.errors import ConfigError
from sebulba.types import Array, PyTree


class ActionMasks:
    """Separates masks from observations, and finds out what they are of.

    A mask is the key `action_mask` of a Dict observation. If the only other key is `observation`,
    as in PettingZoo, agents see its value alone. The shape tells what the mask is of, for actions
    of `K` components: `[A]` or `[K, n]` are the choices of one component after another, and so are
    masks in the structure of a Dict or Tuple action. With a dimension for each component, it is of
    combinations, which are then numbered row by row: the agent's action is one Discrete.
    """

    def __init__(
        self,
        observation: gymnasium.Space,
        action: gymnasium.Space,
        *,
        in_info: tuple[int, ...] | None = None,
    ):
        """Find the masks.

        Args:
            observation: of one environment.
            action: of one environment.
            in_info: the shape of a mask that arrives in `info`; None: there is none.

        Raises:
            ConfigError: the mask's shape does not fit the actions, or a space is unsupported.
        """
        children = dict(observation) if isinstance(observation, gymnasium.spaces.Dict) else {}
        mask = children.pop(ACTION_MASK, None)
        self._in_observation = mask is not None
        self._is_single = self._in_observation and set(children) == {"observation"}
        if self._in_observation:
            rest = gymnasium.spaces.Dict(children)
            observation = children["observation"] if self._is_single else rest
        self._action = action
        shape = in_info if mask is None else _shape(mask, action)
        self.spec = spaces.environment_spec(
            observation,
            action,
            has_masks=shape is not None,
            combined=shape is not None and _is_of_combinations(shape, action),
        )

    def split(
        self, observation: PyTree, in_info: Array | None = None
    ) -> tuple[PyTree, Array | None]:
        """Return observations `[B, ...]` without masks, and masks `[B, A]` bool if there are any.

        The masks are a new array; the observations are not.

        Args:
            observation: as the environments return it; NumPy stays NumPy.
            in_info: the masks in `info`, if there are any.
        """
        if self.spec.action_mask is None:
            return observation, None
        mask: Array = in_info
        if self._in_observation:
            mask = observation[ACTION_MASK]
            observation = {name: leaf for name, leaf in observation.items() if name != ACTION_MASK}
        if self._is_single:
            observation = observation["observation"]
        mask = flat_mask(self._action, mask, batch_axes=1).astype(bool)
        return observation, spaces.complete_mask(mask, self.spec.action_space)


def _shape(mask: gymnasium.Space, action: gymnasium.Space) -> tuple[int, ...]:
    """Return the shape of a mask's space; of one with the structure of the action, that of all."""
    leaves = list(mask_leaves(action, mask))
    if len(leaves) == 1:
        return tuple(leaves[0].shape)
    return (sum(math.prod(leaf.shape) for leaf in leaves),)


def _is_of_combinations(mask_shape: tuple[int, ...], action: gymnasium.Space) -> bool:
    """Return whether a mask is of combinations, and not of one component after another.

    Raises:
        ConfigError: it is neither.
    """
    sizes = num_choices(agent_action_space(action))
    shapes: list[tuple[int, ...]] = [(sum(sizes),)]
    if len(set(sizes)) == 1:
        shapes += [(len(sizes), sizes[0]), (*(action.shape or ()), sizes[0])]
    if mask_shape in shapes:
        return False
    if mask_shape == tuple(sizes):
        return True
    raise ConfigError(
        f"env.id: expected an action mask of shape ({sum(sizes)},) or {tuple(sizes)} for {action},"
        f" got {mask_shape}; rename the key {ACTION_MASK} of the observation with a wrapper if it"
        " is no action mask"
    )
