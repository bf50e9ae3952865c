"""The probe environment: the spaces of any environment, and a stream that is known in advance.

An observation encodes its seed, environment and row, as far as its dtype allows. A reward encodes
its row and the action that led to it. Episodes end as the `EpisodeSchedule` says, whatever the
actions are.
"""

import dataclasses
import zlib
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.episode_schedule import make_schedule
from sebulba.config import EnvConfig
from sebulba.envs.base import FusedEnvironment
from sebulba.envs.spaces import complete_mask
from sebulba.types import EnvironmentSpec, EnvStep, PyTree

SUITE = "sebulba.check.probe:make"
"""The value of `env.suite` that selects the probe."""


def probe_config(spec: EnvironmentSpec, trajectory_length: int) -> EnvConfig:
    """Return the config of a probe with the spaces of `spec`."""
    options: dict[str, Any] = {"spec": spec, "trajectory_length": trajectory_length}
    return EnvConfig(suite=SUITE, id="probe", options=options)


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "ProbeEnvironment":
    """Make the probe of `probe_config`."""
    return ProbeEnvironment(num_envs=num_envs, seed=seed, **config.options)


class ProbeEnvironment:
    """`B` environments whose streams are known; stepped and fused, they run the same function."""

    def __init__(self, *, num_envs: int, seed: int, spec: EnvironmentSpec, trajectory_length: int):
        self.num_envs = num_envs
        self.spec = dataclasses.replace(spec, frame_stack=None)  # Each row has numbers of its own.
        self.schedule = make_schedule(
            num_envs=num_envs, trajectory_length=trajectory_length, seed=seed
        )
        self._seed = seed
        self._row = jnp.int32(0)
        self._step = jax.jit(self._advance)

    def reset(self) -> EnvStep:
        """Return row 0."""
        self._row = jnp.int32(0)
        code = jnp.zeros(self.num_envs)
        return jax.tree.map(np.array, jax.jit(self.env_step)(self._row, code))

    def step(self, action: np.ndarray) -> EnvStep:
        """Return the next row."""
        self._row, env_step = self._step(self._row, action)
        return jax.tree.map(np.array, env_step)

    def fused(self) -> FusedEnvironment:
        """Return the traceable step; its state is the row number."""
        return FusedEnvironment(state=self._row, step=self._advance, is_whole_state=True)

    def close(self) -> None:
        """Do nothing: a probe holds no resources."""

    def env_step(self, row: jax.Array, code: jax.Array) -> EnvStep:
        """Return one row of the stream.

        Args:
            row: int32 `[]`, the number of the row; the stream begins with 0.
            code: float32 `[B]`, `action_code` of the actions that led to the row.
        """
        schedule = self.schedule
        terminated, truncated, is_first = (
            jnp.asarray(flag)[row % schedule.period]
            for flag in (schedule.terminated, schedule.truncated, schedule.is_first)
        )
        identity = self._identity(row)
        reward = 0.1 + 0.5 * _uniform(_mix(identity)) + 0.3 * code
        return EnvStep(
            observation=encode(self.spec.observation, identity),
            reward=jnp.where(is_first, 0.0, reward),
            terminated=terminated,
            truncated=truncated,
            is_first=is_first,
            action_mask=self._action_mask(identity),
        )

    def _advance(self, row: jax.Array, action: PyTree) -> tuple[jax.Array, EnvStep]:
        row = row + 1
        return row, self.env_step(row, action_code(self.spec.action_space, action))

    def _action_mask(self, identity: jax.Array) -> jax.Array | None:
        """Return bool `[B, A]`, about half of them True, if the environment has masks."""
        if self.spec.action_mask is None:
            return None
        return complete_mask(encode(self.spec.action_mask, identity), self.spec.action_space)

    def _identity(self, row: jax.Array) -> jax.Array:
        """Return uint32 `[B]`: a hash of seed, environment and row."""
        env = jnp.arange(self.num_envs, dtype=jnp.uint32)
        return _mix(_mix(jnp.uint32(self._seed) + env) + row.astype(jnp.uint32))


def action_code(space: gymnasium.Space, action: jax.Array) -> jax.Array:
    """Return float32 `[B]` in [0, 1]: the mean of an action's components, each scaled to [0, 1]."""
    value = jnp.asarray(action)
    if isinstance(space, gymnasium.spaces.Box):
        unit = 0.5 + 0.5 * jnp.tanh(value)
    else:
        size = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
        offset = value - jnp.asarray(space.start, value.dtype)[None]
        most = jnp.maximum(jnp.asarray(size, jnp.float32) - 1.0, 1.0)
        unit = offset.astype(jnp.float32) / most[None]
    return jnp.mean(unit.reshape(unit.shape[0], -1), axis=-1)


def encode(observation: PyTree, identity: jax.Array) -> PyTree:
    """Return observations `[B, ...]`: floats in [0, 1), any uint8, other integers 0 or 1.

    Args:
        observation: pytree of `jax.ShapeDtypeStruct`, without `B`.
        identity: uint32 `[B]`, a hash of each row.
    """

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        salt = zlib.crc32(jax.tree_util.keystr(path).encode())
        number = jnp.arange(max(leaf.size, 1), dtype=jnp.uint32)[None] + jnp.uint32(salt)
        bits = _mix(_mix(identity)[:, None] + _mix(number))[:, : leaf.size]
        bits = bits.reshape(identity.shape[0], *leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return _uniform(bits).astype(leaf.dtype)
        # Other integers may be indices into an embedding whose size is unknown here.
        values = 256 if leaf.dtype == jnp.uint8 else 2
        return (bits % values).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, observation)


def _mix(x: jax.Array) -> jax.Array:
    """Hash uint32 numbers with Wellons' "lowbias32" (https://nullprogram.com/blog/2018/07/31/)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _uniform(bits: jax.Array) -> jax.Array:
    return (bits >> 8).astype(jnp.float32) / 2.0**24


def expected_rows(
    environment: ProbeEnvironment, first_row: int, actions: np.ndarray, first_code: np.ndarray
) -> EnvStep:
    """Return the rows `first_row` … `first_row + T` that actions `[T, B, ...]` lead to.

    Args:
        environment: the probe.
        first_row: number of the first row.
        actions: the actions of the trajectory that begins there.
        first_code: `[B]`, `action_code` of the actions that led to `first_row`.
    """
    space = environment.spec.action_space
    codes = [jnp.asarray(first_code), *(action_code(space, action) for action in actions)]
    rows = first_row + jnp.arange(len(codes), dtype=jnp.int32)
    return jax.jit(jax.vmap(environment.env_step))(rows, jnp.stack(codes))
