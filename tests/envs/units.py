"""A contextual bandit for every kind of action space, for Gymnasium and in JAX.

Each component has a best value of its own in each context, in the units of the space, and the
environment refuses an action of another structure, shape, dtype or range. Reward 1 for the best
action, less for each component that is wrong or far; episodes of one step.
"""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

NUM_CONTEXTS = 3

SPACES = {
    "from-1": Discrete(3, start=1),
    "from-minus-1": Discrete(3, start=-1),
    "one-choice": Dict(move=MultiDiscrete([3], start=[2])),
    "grid": MultiDiscrete([[2, 3], [4, 5]]),
    "starts": MultiDiscrete([2, 3], start=[-1, 4]),
    "integers": Box(-2, 2, (2,), np.int8),
    "binary": MultiBinary((2, 2)),
    "dict": Dict(
        where=Tuple([Box(-1, 2, (2,), np.int16), MultiBinary(2)]), move=Discrete(4, start=1)
    ),
    "matrix": Box(-0.1, 0.3, (2, 2), np.float64),
    "boxes": Tuple(
        [
            Box(-2.0, 4.0, (2,), np.float32),
            Dict(arm=Box(np.array([0.0, -5.0]), np.array([0.1, 5.0]))),
        ]
    ),
}
MIXED = Dict(  # which no agent takes; 9 bins have the best values
    move=Discrete(3, start=1), to=Tuple([Box(-2.0, 2.0, (2,), np.float64), Box(0.0, 1.0, ())])
)
ONE_CHOICE = ("from-1", "from-minus-1", "one-choice")
CONTINUOUS = ("matrix", "boxes")
DISCRETE = tuple(kind for kind in SPACES if kind not in CONTINUOUS)


def space_of(kind):
    """Return the action space of a kind."""
    return MIXED if kind == "mixed" else SPACES[kind]


def leaves_of(space):
    """Return the parts of a space, in the order of JAX's leaves."""
    if isinstance(space, Dict):
        return [leaf for name in sorted(space) for leaf in leaves_of(space[name])]
    if isinstance(space, Tuple):
        return [leaf for child in space for leaf in leaves_of(child)]
    return [space]


def range_of(leaf):
    """Return the lowest and highest values of a part."""
    match leaf:
        case Discrete():
            return np.array(leaf.start), np.array(leaf.start + leaf.n - 1)
        case MultiDiscrete():
            return leaf.start, leaf.start + leaf.nvec - 1
        case MultiBinary():
            return np.zeros(leaf.shape, int), np.ones(leaf.shape, int)
    return leaf.low, leaf.high


def targets_of(leaf):
    """Return the best values `[C, ...]` of a part in each context."""
    low, high = (bound.astype(np.float64) for bound in range_of(leaf))
    number = np.arange(low.size).reshape(low.shape) + np.arange(NUM_CONTEXTS).reshape(
        -1, *[1] * low.ndim
    )
    if np.issubdtype(leaf.dtype, np.floating):
        return low + (high - low) * (number % 4 + 0.5) / 4
    return low + number % (high - low + 1)


def score(xp, leaf, action, target):
    """Return how good the components of a part are, `[K]`."""
    action, target = action.reshape(-1).astype(xp.float32), target.reshape(-1)
    if not np.issubdtype(leaf.dtype, np.floating):
        return (action == target).astype(xp.float32)
    low, high = range_of(leaf)
    return 1.0 - xp.square((action - target) / (high - low).ravel().astype(np.float32) * 2)


def reward_of(xp, space, action, context):
    """Return the mean score over all components of an action."""
    scores = [
        score(xp, leaf, each, xp.asarray(targets_of(leaf).astype(np.float32))[context])
        for leaf, each in zip(leaves_of(space), jax.tree.leaves(action), strict=True)
    ]
    return xp.mean(xp.concatenate(scores))


def structure_of(action):
    """Return shapes and dtypes, with 32 bits for 64."""

    def of(leaf):
        return tuple(leaf.shape), str(leaf.dtype).replace("64", "32")

    return jax.tree.map(of, action)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitsTask:
    """The bandit in JAX."""

    kind: str = "from-1"

    @property
    def observation(self):
        """One-hot context; zeros at the end."""
        return jax.ShapeDtypeStruct((NUM_CONTEXTS,), np.float32)

    @property
    def action_space(self):
        """That of the kind."""
        return space_of(self.kind)

    def reset(self, key):
        """Draw a context."""
        context = jax.random.randint(key, (), 0, NUM_CONTEXTS, jnp.int32)
        return context, jax.nn.one_hot(context, NUM_CONTEXTS, dtype=jnp.float32)

    def step(self, state, action, key):
        """Score the action."""
        del key
        assert structure_of(action) == structure_of(best_action(self.action_space, 0))
        reward = reward_of(jnp, self.action_space, action, state)
        observation = jnp.zeros(NUM_CONTEXTS, jnp.float32)
        return state, observation, reward, jnp.ones((), bool), jnp.zeros((), bool)

    def render(self, state):
        """Return uint8 `[8, 8, 3]`, as bright as the context."""
        return jnp.full((8, 8, 3), 80 * state).astype(jnp.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedUnitsTask(UnitsTask):
    """The bandit in JAX in which only the best action is legal."""

    def action_mask(self, state):
        """Return bool `[A]`."""
        masks = [flat_mask_of(self.action_space, context) for context in range(NUM_CONTEXTS)]
        return jnp.asarray(np.stack(masks))[state] == 1


class UnitsEnv(gymnasium.Env):
    """The bandit for Gymnasium."""

    observation_space = Box(0.0, 1.0, (NUM_CONTEXTS,), np.float32)

    def __init__(self, kind="from-1", masks=None):
        """Make the bandit.

        Args:
            kind: of `SPACES`, or `mixed`.
            masks: `flat` or `structured`: report in `info` that only the best action is legal.
        """
        self.action_space = space_of(kind)
        self._masks = masks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._context = int(self.np_random.integers(NUM_CONTEXTS))
        observation = np.eye(NUM_CONTEXTS, dtype=np.float32)[self._context]
        return observation, self._info()

    def step(self, action):
        assert self.action_space.contains(action), (self.action_space, action)
        reward = float(reward_of(np, self.action_space, action, self._context))
        return np.zeros(NUM_CONTEXTS, np.float32), reward, True, False, self._info()

    def _info(self):
        if self._masks is None:
            return {}
        mask = flat_mask_of if self._masks == "flat" else mask_of
        return {"action_mask": mask(self.action_space, self._context)}


def best_action(space, context):
    """Return the best action of a context, as the environment takes it."""
    if isinstance(space, Dict):
        return {name: best_action(child, context) for name, child in space.items()}
    if isinstance(space, Tuple):
        return tuple(best_action(child, context) for child in space)
    return targets_of(space)[context].astype(space.dtype)


def mask_of(space, context):
    """Return the mask that allows the best action only, in the structure of the action."""
    if isinstance(space, Dict):
        return {name: mask_of(child, context) for name, child in space.items()}
    if isinstance(space, Tuple):
        return tuple(mask_of(child, context) for child in space)
    low, high = (bound.ravel() for bound in range_of(space))
    best = targets_of(space)[context].ravel()
    choices = zip(low, high, best, strict=True)
    return np.concatenate([np.arange(a, b + 1) == c for a, b, c in choices]).astype(np.int8)


def flat_mask_of(space, context):
    """Return the mask of one choice after another, in the order of the space."""
    children = space.values() if isinstance(space, Dict) else space
    if isinstance(space, Dict | Tuple):
        return np.concatenate([flat_mask_of(child, context) for child in children])
    return mask_of(space, context)


gymnasium.register("Units-v0", entry_point=UnitsEnv)
