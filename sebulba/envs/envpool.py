"""EnvPool: environments in C++ threads, stepped from Python or inside `jit`."""

import dataclasses
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.config import EnvConfig
from sebulba.envs import spaces
from sebulba.envs.actions import to_native
from sebulba.envs.base import FusedEnvironment, reset_row
from sebulba.envs.envpool_import import envpool
from sebulba.envs.lookup import check_step_limit, first_line, refuse_options
from sebulba.envs.masks import ActionMasks
from sebulba.errors import ConfigError, did_you_mean
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, FrameStack, PyTree

_REFUSED_OPTIONS = {
    "num_envs": "set actor.num_envs",
    "batch_size": "all environments are stepped together, set actor.num_envs",
    "seed": "set seed",
    "env_seed": "set seed",
    "gym_reset_return_info": "the adapter requires the default",
    "reward_clip": "the stream has raw rewards and the agent clips",
}

_CRASHING = ("Cig-v1", "MultiDuel-v1")
_OPENGL = "libEGL.so.1"
_MASK_IN_INFO = "legal_action_mask"  # of the games of pgx

_EXECUTION_OPTIONS = {
    "num_envs",
    "batch_size",
    "num_threads",
    "thread_affinity_offset",
    "max_num_players",
    "base_path",
    "seed",
    "env_seed",
    "gym_reset_return_info",
}


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "EnvPoolEnvironment":
    """Create `envpool.make_gymnasium(env.id, **env.options)`, stepped in sync.

    Raises:
        ConfigError: EnvPool has no such environment or option, or the environment has several
            players or unsupported spaces, or needs a library that this machine lacks.
    """
    _check_names(config)
    try:
        with warnings.catch_warnings():
            # Gymnasium warns about the float64 bounds of EnvPool's own boxes.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting")
            options = _default_options(config.id) | config.options
            pool = envpool.make_gymnasium(config.id, num_envs=num_envs, seed=seed, **options)
            pool.observation_space, pool.action_space  # noqa: B018 - lazy, warn when created
    except Exception as error:
        if _OPENGL in str(error):
            raise ConfigError(
                f"env.id: EnvPool needs {_OPENGL} for {config.id!r}, which this machine lacks:"
                " apt-get install libegl1"
            ) from error
        raise ConfigError(_refusal(config, error)) from error
    mask = pool.spec.state_array_spec.get(f"info:{_MASK_IN_INFO}")
    if pool.config["max_num_players"] != 1:
        advice = "Choose another" if mask is None else "Set env.suite pgx, which has opponents"
        raise ConfigError(
            f"env.id: expected a single-player environment, got {config.id!r} with"
            f" {pool.config['max_num_players']} players. {advice}"
        )
    return EnvPoolEnvironment(
        pool,
        num_envs=num_envs,
        episodic_life=bool(config.options.get("episodic_life")),
        mask_in_info=None if mask is None else tuple(mask.shape),
    )


def ids() -> list[str]:
    """Return every EnvPool id."""
    return envpool.list_all_envs()


@pytree_dataclass
class EnvPoolState:
    """The state of the traceable step."""

    number: jax.Array  # [] int32, of the pool among those that share the step
    handle: jax.Array  # [8] uint8, the pool's address; a data dependency that orders its steps
    done: jax.Array  # [B] bool, at the latest row


class SharedStep:
    """The traceable step of pools that are alike; one program steps them all.

    EnvPool takes a pool's address from a constant of the program. To compile an act cycle takes
    about a second of CPU time, so actors whose pools are alike share it: the state has the number
    of the pool. Pools that come after the step was traced share another. A pool lives as long as a
    step that has it.
    """

    def __init__(self, environment: "EnvPoolEnvironment"):
        self._environment = environment  # any of them
        self._pool_steps: list[Callable[..., Any]] = []
        self._is_traced = False

    def add(self, pool_step: Callable[..., Any]) -> int | None:
        """Return the number of a pool from now on; None: the step was traced without it."""
        with _LOCK:
            if self._is_traced:
                return None
            self._pool_steps.append(pool_step)
            return len(self._pool_steps) - 1

    def __call__(self, state: EnvPoolState, action: jax.Array) -> tuple[EnvPoolState, EnvStep]:
        """Step the pool of a state; see `FusedEnvironment`."""
        with _LOCK:
            self._is_traced = True
        environment, steps = self._environment, self._pool_steps
        spaces.check_action_structure(action, environment.spec.action_space, environment.num_envs)
        action = environment.to_native(action)
        with jax.enable_x64(True):
            action = action.astype(environment.action_dtype)
            handle, result = jax.lax.switch(state.number, steps, state.handle, action)
            env_step = environment.env_step(jnp, *result, is_first=state.done)
        return EnvPoolState(number=state.number, handle=handle, done=env_step.done), env_step


_LOCK = threading.Lock()
# By what pools that are alike have in common: those that a pool may still join. They belong to no
# object of a run: a run makes environments of every suite by the same call, in which it has nothing
# to hand on, and only this adapter knows which pools are alike. Nothing is kept alive here: what
# holds a step are the act cycles over its pools.
_shared_steps: weakref.WeakValueDictionary[tuple, SharedStep] = weakref.WeakValueDictionary()


class EnvPoolEnvironment:
    """An EnvPool of single-player environments as an `Environment`.

    With `episodic_life` a lost life terminates the stream's episode, and `episode_over` marks the
    end of the game.
    """

    def __init__(
        self,
        pool: gymnasium.Env,
        *,
        num_envs: int,
        episodic_life: bool,
        mask_in_info: tuple[int, ...] | None,
    ):
        self.num_envs = num_envs
        *_, action = pool.spec.action_array_spec.values()
        self.action_dtype = np.dtype(action.dtype)
        action_space = _native_space(pool.action_space, self.action_dtype)
        self._masks = ActionMasks(pool.observation_space, action_space, in_info=mask_in_info)
        self.spec = dataclasses.replace(self._masks.spec, frame_stack=_frame_stack(pool))
        self.to_native = to_native(self.spec)
        self._pool = pool
        self._episodic_life = episodic_life
        self._done: np.ndarray | None = None

    def reset(self) -> EnvStep:
        """Start all episodes; see `Environment.reset`."""
        observation, info = self._pool.reset()
        self._done = np.zeros(self.num_envs, bool)
        observation, action_mask = self._masks.split(observation, info.get(_MASK_IN_INFO))
        return reset_row(
            self._cast(observation),
            num_envs=self.num_envs,
            reports_game_over=self._episodic_life,
            action_mask=action_mask,
        )

    def step(self, action: np.ndarray) -> EnvStep:
        """Step all environments; see `Environment.step`."""
        # EnvPool aborts the process on a wrong length and accepts out-of-range actions silently.
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        result = self._pool.step(self.to_native(action))
        env_step = self.env_step(np, *result, is_first=self._done)
        self._done = env_step.done
        return env_step

    def fused(self) -> FusedEnvironment | None:
        """Return the traceable step, which cannot check an action's range; None except on Linux."""
        if self._done is None:
            raise RuntimeError("expected reset() before fused()")
        if sys.platform != "linux":
            return None
        # With x64 off, EnvPool declares its 64-bit arrays to XLA as 32-bit and writes past their
        # ends (seen with the float64 of MuJoCo), so everything that touches them needs x64.
        with jax.enable_x64(True):
            handle, _, _, pool_step = self._pool.xla()
        alike = (type(self._pool), repr(self.settings()), self.num_envs, self._episodic_life)
        step = _shared_steps.setdefault(alike, SharedStep(self))
        number = step.add(pool_step)
        if number is None:
            step = _shared_steps[alike] = SharedStep(self)
            number = step.add(pool_step)
        state = EnvPoolState(
            number=jnp.int32(number), handle=jnp.array(handle), done=jnp.array(self._done)
        )

        def restart(state: EnvPoolState) -> tuple[EnvPoolState, EnvStep]:
            # Safe between cycles only: the pool must have finished all traced steps.
            env_step = self.reset()
            return dataclasses.replace(state, done=jnp.array(env_step.done)), env_step

        return FusedEnvironment(state=state, step=step, restart=restart)

    def restart(self) -> EnvStep:
        """Start a new episode in every environment."""
        return self.reset()

    def settings(self) -> dict[str, Any]:
        """Return EnvPool's settings of the environment, defaults included."""
        config = self._pool.config
        return {name: config[name] for name in config if name not in _EXECUTION_OPTIONS}

    def render(self) -> np.ndarray:
        """Return the first environment's frame; needs `env.options.render_mode: rgb_array`."""
        return self._pool.render(env_ids=0)[0]

    def close(self) -> None:
        """Release the pool; its threads live as long as a traceable step made from it."""
        self._pool = None

    def env_step(
        self, xp, observation, reward, terminated, truncated, info, *, is_first
    ) -> EnvStep:
        """Return the row `[B]` of what the pool returned, with `xp`, NumPy or `jax.numpy`."""
        # EnvPool's `terminated` includes lost lives; the one in `info` is the game's own.
        over = info["terminated"].astype(bool) | truncated if self._episodic_life else None
        observation, action_mask = self._masks.split(observation, info.get(_MASK_IN_INFO))
        return EnvStep(
            observation=self._cast(observation),
            # EnvPool's dm_control environments give a reward on reset.
            reward=xp.where(is_first, xp.zeros_like(reward), reward),
            terminated=terminated,
            truncated=truncated,
            is_first=is_first,
            episode_over=over,
            action_mask=action_mask,
        )

    def _cast(self, observation: PyTree) -> PyTree:
        return jax.tree.map(
            lambda spec, leaf: leaf.astype(spec.dtype, copy=False),
            self.spec.observation,
            observation,
        )


def _check_names(config: EnvConfig) -> None:
    valid = envpool.list_all_envs()
    if config.id not in valid:
        raise ConfigError(
            f"env.id: EnvPool has no {config.id!r}{did_you_mean(config.id, valid) or '.'}"
            f"{_other_suite(config.id)}"
        )
    if config.id in _CRASHING:
        raise ConfigError(
            f"env.id: expected a single-player environment, got {config.id!r}, a match of several"
            " ViZDoom engines, in which EnvPool ends the process with a segmentation fault. Choose"
            " another"
        )
    refuse_options(config.options, _REFUSED_OPTIONS)
    check_step_limit(config.options.get("max_episode_steps"))


def _default_options(name: str) -> dict[str, str]:
    # EnvPool looks for its puzzles in the folder of another package.
    return {"base_path": envpool.__path__[0]} if "Sudoku" in name else {}


def _other_suite(name: str) -> str:
    """Return the sentence to append to an error about an id that may be that of another suite."""
    if name in gymnasium.registry:
        return " Gymnasium has it: set env.suite gymnasium"
    return " For one of your own, set env.suite gymnasium or jax, and env.id module:Name"


def _refusal(config: EnvConfig, error: Exception) -> str:
    reason = first_line(error)
    message = f"EnvPool refuses env.id {config.id!r} with env.options {config.options}: {reason}"
    if "unexpected keyword argument" not in reason:
        return message
    valid = envpool.make_spec(config.id).config._fields
    unknown = [name for name in config.options if name not in valid]
    return message + "".join(did_you_mean(name, valid) for name in unknown)


def _frame_stack(pool: gymnasium.Env) -> FrameStack | None:
    """Return how a game of Atari stacks frames, on the axis of their channels; None: it does not.

    A reset of the game repeats its first frame. A lost life adds a frame, as any step.
    """
    size = pool.config.get("stack_num", 1)
    # ViZDoom has that option too, but at the end of an episode no frame is added to its stack.
    is_atari = "noop_max" in pool.config
    return FrameStack(size=size, axis=0) if is_atari and size > 1 else None


def _native_space(space: gymnasium.Space, dtype: np.dtype) -> gymnasium.Space:
    """Return EnvPool's action space with the dtype that EnvPool takes, and without false bounds.

    The bounds `std::numeric_limits` stand for none. The lower one is `tiny`, C++'s
    `numeric_limits::min`: the smallest positive number.
    """
    if isinstance(space, gymnasium.spaces.Discrete):  # EnvPool always says int64.
        return gymnasium.spaces.Discrete(space.n, start=space.start, dtype=dtype)
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low)
    high = np.where(space.high == limits.max, np.inf, space.high)
    return gymnasium.spaces.Box(
        low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype
    )
