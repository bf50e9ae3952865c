"""The probe environment: any spaces, and a stream that is known in advance.

An observation encodes the row that it is of (batch, environment, row of the stream) as far as its
dtype has room for it. A reward encodes its row and the action that the environment was given for
it. Episodes end as the `ProbeSchedule` says, whatever is done.
"""

import zlib
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs.base import FusedEnvironment
from sebulba.tools.check.schedule import make_schedule
from sebulba.types import EnvironmentSpec, EnvStep, PyTree

SUITE = "sebulba.tools.check.probe:make"
"""What `env.suite` names."""


def probe_config(spec: EnvironmentSpec, trajectory_length: int) -> EnvConfig:
    """Returns the config of a probe with the spaces of `spec`."""
    options: dict[str, Any] = {"spec": spec, "trajectory_length": trajectory_length}
    return EnvConfig(suite=SUITE, id="probe", options=options)


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "ProbeEnvironment":
    """Makes the probe of `probe_config`."""
    return ProbeEnvironment(num_envs=num_envs, seed=seed, **config.options)


class ProbeEnvironment:
    """`B` streams that are known in advance; stepped and fused run the same function."""

    def __init__(self, *, num_envs: int, seed: int, spec: EnvironmentSpec, trajectory_length: int):
        self.num_envs = num_envs
        self.spec = spec
        self.schedule = make_schedule(
            num_envs=num_envs, trajectory_length=trajectory_length, seed=seed
        )
        self._seed = seed
        self._row = jnp.int32(0)
        self._step = jax.jit(self._advance)

    def reset(self) -> EnvStep:
        """Gives row 0."""
        self._row = jnp.int32(0)
        code = jnp.zeros(self.num_envs)
        return jax.tree.map(np.array, jax.jit(self.env_step)(self._row, code))

    def step(self, action: np.ndarray) -> EnvStep:
        """Gives the next row."""
        self._row, env_step = self._step(self._row, action)
        return jax.tree.map(np.array, env_step)

    def fused(self) -> FusedEnvironment:
        """Returns the traceable step; the state is the number of the row."""
        return FusedEnvironment(state=self._row, step=self._advance, is_whole_state=True)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def env_step(self, row: jax.Array, code: jax.Array) -> EnvStep:
        """Returns the row.

        Args:
            row: int32 `[]`, since the stream began.
            code: float32 `[B]`, of the actions that led here.
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
        )

    def _advance(self, row: jax.Array, action: PyTree) -> tuple[jax.Array, EnvStep]:
        row = row + 1
        return row, self.env_step(row, action_code(self.spec.action_space, action))

    def _identity(self, row: jax.Array) -> jax.Array:
        """Returns uint32 `[B]`: a number of this row of each of these environments."""
        env = jnp.arange(self.num_envs, dtype=jnp.uint32)
        return _mix(_mix(jnp.uint32(self._seed) + env) + row.astype(jnp.uint32))


def action_code(space: gymnasium.Space, action: jax.Array) -> jax.Array:
    """Returns float32 `[B]` in [0, 1]: the mean of an action's components, each scaled to it."""
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
    """Returns observations `[B, ...]`: floats in [0, 1), any bytes, other integers 0 or 1.

    Args:
        observation: of `jax.ShapeDtypeStruct`.
        identity: uint32 `[B]`.
    """

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        salt = zlib.crc32(jax.tree_util.keystr(path).encode())
        number = jnp.arange(max(leaf.size, 1), dtype=jnp.uint32)[None] + jnp.uint32(salt)
        bits = _mix(_mix(identity)[:, None] + _mix(number))[:, : leaf.size]
        bits = bits.reshape(identity.shape[0], *leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return _uniform(bits).astype(leaf.dtype)
        # How far other integers may go is not known: they may index something.
        values = 256 if leaf.dtype == jnp.uint8 else 2
        return (bits % values).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, observation)


def _mix(x: jax.Array) -> jax.Array:
    """Returns uint32 bits that look random (Wellons' "lowbias32")."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _uniform(bits: jax.Array) -> jax.Array:
    return (bits >> 8).astype(jnp.float32) / 2.0**24


def expected_rows(
    environment: ProbeEnvironment, first_row: int, actions: np.ndarray, first_code: np.ndarray
) -> EnvStep:
    """Returns rows `first_row` … `first_row + T` that actions `[T, B, ...]` must have led to.

    Args:
        environment: the probe.
        first_row: of the stream.
        actions: of the trajectory that begins there.
        first_code: `[B]`, of the actions that led to `first_row`.
    """
    space = environment.spec.action_space
    codes = [jnp.asarray(first_code), *(action_code(space, action) for action in actions)]
    rows = first_row + jnp.arange(len(codes), dtype=jnp.int32)
    return jax.jit(jax.vmap(environment.env_step))(rows, jnp.stack(codes))
