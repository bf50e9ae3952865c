"""The Arcade Learning Environment: Atari games in C++ threads, also stepped from inside `jit`.

`env.id` is the name that `ale_py.roms` has of a game, `pong` say. Observations are what
`ale_py.vector_env.AtariVectorEnv` gives: `[4, 84, 84]` uint8 unless options say otherwise, the
stacked frames first and the newest of them last, as EnvPool's. Its limit of an episode counts
frames, not steps: `max_num_frames_per_episode`.
"""

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
from sebulba.envs.base import FusedEnvironment, reset_row
from sebulba.errors import ConfigError, did_you_mean
from sebulba.pytree import pytree_dataclass
from sebulba.types import EnvironmentSpec, EnvStep

_SET_ELSEWHERE = {
    "game": "set env.id",
    "num_envs": "set actor.num_envs",
    "batch_size": "all environments are stepped together; set actor.num_envs",
    "autoreset_mode": "the stream contract needs it as it is",
    "reward_clipping": "rewards in the stream are raw; the agent clips",
    "life_loss_info": "set env.options.episodic_life",
}

_NOT_OF_THE_TASK = {"batch_size", "num_threads", "thread_affinity_offset", "life_loss_info"}

# ALE ends the process where a game has no mode for one player.
_FOR_MORE_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}


def make(config: EnvConfig, *, num_envs: int, seed: int) -> "ALEEnvironment":
    """Makes `AtariVectorEnv(env.id, **env.options)` with raw rewards, stepped in sync.

    Raises:
        ConfigError: ALE has no such game or option, or refuses its value.
    """
    _check_names(config)
    options = {"reward_clipping": False} | config.options
    # ALE's own `episodic_life` starts the whole game anew at a lost life, which nobody means.
    episodic_life = options["life_loss_info"] = bool(options.pop("episodic_life", False))
    try:
        pool = AtariVectorEnv(config.id, num_envs, **options)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"ALE refuses env.id {config.id!r} with env.options {config.options}: {reason}"
        ) from error
    if episodic_life and not pool.continuous and pool.ale.get_action_set()[0] != Action.NOOP:
        raise ConfigError(
            f"env.options.episodic_life: {config.id} has no action that does nothing: set"
            " env.options.full_action_space"
        )
    return ALEEnvironment(pool, seed=seed, episodic_life=episodic_life, options=config.options)


def ids() -> list[str]:
    """Returns every game that one player can play."""
    return sorted(set(roms.get_all_rom_ids()) - _FOR_MORE_PLAYERS)


@pytree_dataclass
class ALEState:
    """What the traceable step carries."""

    handle: jax.Array  # [8] uint8, the address of the pool; orders its steps
    done: jax.Array  # [B] bool, of the latest row
    lives: jax.Array  # [B] int32, of the latest row


class ALEEnvironment:
    """ALE's vector environment as an `Environment`.

    With `episodic_life` a lost life terminates the stream's episode, and `episode_over` tells the
    end of the game. The game goes on with one step of doing nothing, as EnvPool's does; what it
    pays for that step is dropped.
    """

    def __init__(
        self, pool: AtariVectorEnv, *, seed: int, episodic_life: bool, options: dict[str, Any]
    ):
        self.num_envs = pool.num_envs
        self.spec = EnvironmentSpec(
            observation=spaces.observation_spec(pool.single_observation_space),
            action_space=spaces.agent_action_space(pool.single_action_space),
            native_action_space=pool.single_action_space,
        )
        self._to_environment = spaces.action_scaling(pool.single_action_space)
        self._pool = pool
        self._seed = seed
        self._episodic_life = episodic_life
        self._options = options
        self._done: np.ndarray | None = None
        self._lives: np.ndarray | None = None
        self._observation: np.ndarray | None = None

    def reset(self) -> EnvStep:
        """Starts all episodes; see `Environment.reset`."""
        observation, info = self._pool.reset(seed=self._seed)
        self._done = np.zeros(self.num_envs, bool)
        self._lives, self._observation = info["lives"], observation
        return reset_row(observation, num_envs=self.num_envs, tells_of_games=self._episodic_life)

    def step(self, action: np.ndarray) -> EnvStep:
        """Steps all environments; see `Environment.step`."""
        # ALE hangs where an action is none of the game's.
        spaces.check_action(action, self.spec.action_space, self.num_envs)
        result = self._pool.step(self._native(np, action, self._done))
        env_step = self._env_step(np, *result, is_first=self._done, lives_before=self._lives)
        self._done, self._lives = env_step.done, result[-1]["lives"]
        self._observation = env_step.observation
        return env_step

    def fused(self) -> FusedEnvironment | None:
        """Returns the traceable step, which cannot check an action's range."""
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
        """Returns ALE's settings of the game, defaults included."""
        parameters = inspect.signature(AtariVectorEnv).parameters.values()
        defaults = {
            each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY
        }
        defaults |= {"autoreset_mode": self._pool.autoreset_mode.value, "reward_clipping": False}
        settings = defaults | self._options
        return {name: settings[name] for name in settings if name not in _NOT_OF_THE_TASK}

    def render(self) -> np.ndarray:
        """Returns the newest frame that the agent sees: ALE's vector environment has no other."""
        if self._observation is None:
            raise RuntimeError("expected reset() before render()")
        newest = self._observation[0, -1]
        return newest if newest.ndim == 3 else newest[..., None].repeat(3, axis=-1)

    def close(self) -> None:
        """Drops the pool; its threads end with the last traceable step made from it."""
        self._pool = None

    def _native(self, xp, action, done):
        """Returns what ALE is to do; nothing where a lost life ended the stream's episode."""
        action = self._to_environment(action)
        if not self._episodic_life:
            return action
        done = done.reshape(-1, *[1] * (action.ndim - 1))
        return xp.where(done, xp.zeros_like(action), action)

    def _env_step(
        self, xp, observation, reward, terminated, truncated, info, *, is_first, lives_before
    ) -> EnvStep:
        over = None
        if self._episodic_life:
            # Most games are over when no life is left, and a few without losing one.
            lives = info["lives"]
            over = truncated | (terminated & ((lives == 0) | (lives >= lives_before)))
        return EnvStep(
            observation=observation,
            reward=xp.where(is_first, xp.zeros_like(reward), reward).astype(xp.float32),
            terminated=terminated,
            truncated=truncated,
            is_first=is_first,
            episode_over=over,
        )


def _check_names(config: EnvConfig) -> None:
    if config.id not in (games := ids()):
        if config.id in _FOR_MORE_PLAYERS:
            raise ConfigError(f"env.id: {config.id!r} needs two players, expected one")
        raise ConfigError(
            f"env.id: ALE has no game {config.id!r}{did_you_mean(_snake_case(config.id), games)}"
        )
    for name, advice in _SET_ELSEWHERE.items():
        if name in config.options:
            raise ConfigError(f"env.options.{name}: not an option here: {advice}")
    valid = set(inspect.signature(AtariVectorEnv).parameters) - set(_SET_ELSEWHERE)
    for name in config.options:
        if name not in valid:
            raise ConfigError(f"env.options: ALE has no {name!r}{did_you_mean(name, valid)}")


def _snake_case(name: str) -> str:
    """Returns the game of a Gymnasium or EnvPool id: `ms_pacman` of `ALE/MsPacman-v5`."""
    name = re.sub(r"^ALE/|(NoFrameskip)?-v\d+$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
