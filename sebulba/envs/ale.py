"""The Arcade Learning Environment: Atari games in C++ threads, stepped from Python or inside `jit`.

`env.id` is a game's name in `ale_py.roms`, such as `pong`. Observations come from
`ale_py.vector_env.AtariVectorEnv`: `[4, 84, 84]` uint8 by default, frames stacked on the first axis
with the newest last, as in EnvPool. The episode limit `max_num_frames_per_episode` counts frames,
not steps.
"""

import dataclasses
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ale_py import Action, roms
from ale_py.vector_env import AtariVectorEnv

from sebulba.config import EnvConfig
from sebulba.envs import spaces
from sebulba.envs.actions import to_native
from sebulba.envs.base import FusedEnvironment, reset_row
from sebulba.envs.lookup import first_line, refuse_options
from sebulba.errors import ConfigError, did_you_mean
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvStep, FrameStack

_REFUSED_OPTIONS = {
    "game": "set env.id",
    "num_envs": "set actor.num_envs",
    "batch_size": "all environments are stepped together, set actor.num_envs",
    "autoreset_mode": "the stream contract requires autoreset on the next step",
    "reward_clipping": "the stream has raw rewards and the agent clips",
    "life_loss_info": "set env.options.episodic_life",
}

_EXECUTION_OPTIONS = {"batch_size", "num_threads", "thread_affinity_offset", "life_loss_info"}

# ALE exits the whole process for a game without a single-player mode.
_MULTIPLAYER_GAMES = {"combat", "joust", "maze_craze", "warlords"}


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "ALEEnvironment":
    """Create `AtariVectorEnv(env.id, **env.options)` with raw rewards, stepped in sync.

    Raises:
        ConfigError: ALE has no such game or option, or refuses the value of an option.
    """
    _check_names(config)
    options = {"reward_clipping": False} | config.options
    # ALE's own `episodic_life` restarts the whole game at a lost life. The literature's episodic
    # life (Mnih et al. 2015) only ends the agent's episode, so the adapter implements it.
    episodic_life = options["life_loss_info"] = bool(options.pop("episodic_life", False))
    try:
        pool = AtariVectorEnv(config.id, num_envs, **options)
    except Exception as error:
        raise ConfigError(
            f"ALE refuses env.id {config.id!r} with env.options {config.options}:"
            f" {first_line(error)}"
        ) from error
    if episodic_life and not pool.continuous and pool.ale.get_action_set()[0] != Action.NOOP:
        raise ConfigError(
            f"env.options.episodic_life: {config.id} has no no-op action, which a lost life needs;"
            " set env.options.full_action_space"
        )
    return ALEEnvironment(pool, seed=seed, episodic_life=episodic_life, options=config.options)


def ids() -> list[str]:
    """Return every game with a single-player mode."""
    return sorted(set(roms.get_all_rom_ids()) - _MULTIPLAYER_GAMES)


@pytree_dataclass
class ALEState:
    """The state of the traceable step."""

    handle: jax.Array  # [8] uint8, the pool's address; a data dependency that orders its steps
    done: jax.Array  # [B] bool, at the latest row
    lives: jax.Array  # [B] int32, at the latest row


class ALEEnvironment:
    """ALE's vector environment as an `Environment`.

    With `episodic_life` a lost life terminates the stream's episode, and `episode_over` marks the
    end of the game. The game then continues with one no-op step, as in EnvPool; the reward of that
    step is dropped, since the row is a reset.
    """

    def __init__(
        self, pool: AtariVectorEnv, *, seed: int, episodic_life: bool, options: dict[str, Any]
    ):
        self.num_envs = pool.num_envs
        spec = spaces.environment_spec(pool.single_observation_space, pool.single_action_space)
        size, *_ = spec.observation.shape
        if size > 1:
            # A reset of the game fills the stack with zeros. A lost life adds a frame, as any step.
            stack = FrameStack(size=size, axis=0, fill="zeros")
            spec = dataclasses.replace(spec, frame_stack=stack)
        self.spec = spec
        self._to_native = to_native(self.spec)
        self._pool = pool
        self._seed = seed
        self._episodic_life = episodic_life
        self._options = options
        self._done: np.ndarray | None = None
        self._lives: np.ndarray | None = None
        self._observation: np.ndarray | None = None

    def reset(self) -> EnvStep:
        """Start all episodes; see `Environment.reset`."""
        observation, info = self._pool.reset(seed=self._seed)
        self._done = np.zeros(self.num_envs, bool)
        self._lives, self._observation = info["lives"], observation
        return reset_row(observation, num_envs=self.num_envs, reports_game_over=self._episodic_life)

    def step(self, action: np.ndarray) -> EnvStep:
        """Step all environments; see `Environment.step`."""
        # ALE hangs on an action outside the game's action set.
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        result = self._pool.step(self._native(np, action, self._done))
        env_step = self._env_step(np, *result, is_first=self._done, lives_before=self._lives)
        self._done, self._lives = env_step.done, result[-1]["lives"]
        self._observation = env_step.observation
        return env_step

    def fused(self) -> FusedEnvironment | None:
        """Return the traceable step, which cannot check an action's range."""
        if self._done is None:
            raise RuntimeError("expected reset() before fused()")
        handle, _, pool_step = self._pool.xla()

        def step(state: ALEState, action: jax.Array) -> tuple[ALEState, EnvStep]:
            spaces.check_action_structure(action, self.spec.action_space, self.num_envs)
            handle, result = pool_step(state.handle, self._native(jnp, action, state.done))
            env_step = self._env_step(jnp, *result, is_first=state.done, lives_before=state.lives)
            lives = result[-1]["lives"]
            return ALEState(handle=handle, done=env_step.done, lives=lives), env_step

        state = ALEState(
            handle=jnp.array(handle), done=jnp.array(self._done), lives=jnp.array(self._lives)
        )
        return FusedEnvironment(state=state, step=step)

    def settings(self) -> dict[str, Any]:
        """Return ALE's settings of the game, defaults included."""
        parameters = inspect.signature(AtariVectorEnv).parameters.values()
        defaults = {
            each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY
        }
        defaults |= {"autoreset_mode": self._pool.autoreset_mode.value, "reward_clipping": False}
        settings = defaults | self._options
        return {name: settings[name] for name in settings if name not in _EXECUTION_OPTIONS}

    def render(self) -> np.ndarray:
        """Return the newest frame of the observation; ALE's vector environment has no other."""
        if self._observation is None:
            raise RuntimeError("expected reset() before render()")
        newest = self._observation[0, -1]
        return newest if newest.ndim == 3 else newest[..., None].repeat(3, axis=-1)

    def close(self) -> None:
        """Release the pool; its threads live as long as a traceable step made from it."""
        self._pool = None

    def _native(self, xp, action, done):
        """Return ALE's action: a no-op (0) where a lost life ended the stream's episode."""
        action = self._to_native(action)
        if not self._episodic_life:
            return action
        done = done.reshape(-1, *[1] * (action.ndim - 1))
        return xp.where(done, xp.zeros_like(action), action)

    def _env_step(
        self, xp, observation, reward, terminated, truncated, info, *, is_first, lives_before
    ) -> EnvStep:
        game_over = None
        if self._episodic_life:
            # ALE's `terminated` includes lost lives. The game itself has ended when no life is
            # left, or, in a few games, when it terminates without a lost life.
            lives = info["lives"]
            game_over = truncated | (terminated & ((lives == 0) | (lives >= lives_before)))
        return EnvStep(
            observation=observation,
            reward=xp.where(is_first, xp.zeros_like(reward), reward).astype(xp.float32),
            terminated=terminated,
            truncated=truncated,
            is_first=is_first,
            episode_over=game_over,
        )


def _check_names(config: EnvConfig) -> None:
    if config.id not in (games := ids()):
        if config.id in _MULTIPLAYER_GAMES:
            raise ConfigError(f"env.id: {config.id!r} needs two players; use a one-player game")
        raise ConfigError(
            f"env.id: ALE has no game {config.id!r}{did_you_mean(_snake_case(config.id), games)}"
        )
    refuse_options(config.options, _REFUSED_OPTIONS)
    valid = set(inspect.signature(AtariVectorEnv).parameters) - set(_REFUSED_OPTIONS)
    for name in config.options:
        if name not in valid:
            raise ConfigError(f"env.options: ALE has no {name!r}{did_you_mean(name, valid)}")


def _snake_case(name: str) -> str:
    """Return the game of a Gymnasium or EnvPool id: `ms_pacman` for `ALE/MsPacman-v5`."""
    name = re.sub(r"^ALE/|(NoFrameskip)?-v\d+$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
