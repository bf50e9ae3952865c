"""The cases of the conformance tests: every adapter, stepped and fused. A new one adds a case."""

import dataclasses
import functools
import importlib.util

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.types import EnvironmentSpec, EnvStep
from tests.envs.leavers import NUM_PLAYERS
from tests.envs.units import SPACES

NUM_ENVS = 3
NUM_STEPS = 60  # several episodes of every case
LIMIT = 5  # shorter than every natural episode except the bandit's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An environment and how it is stepped."""

    suite: str
    id: str
    fused: bool = False
    always_one_step: bool = False
    options: tuple[tuple[str, int | str], ...] = ()
    terminates: bool = True
    wrappers: tuple[str, ...] = ()
    num_players: int = 1

    @property
    def num_rows(self):
        """Rows of the batch: one for each player."""
        return NUM_ENVS * self.num_players

    @property
    def limit(self):
        """The options that truncate episodes after `LIMIT` steps."""
        if self.suite == "ale":  # ALE counts frames, including those before the first row.
            frames = 4 * LIMIT
            return {"max_num_frames_per_episode": frames, "noop_max": 0, "use_fire_reset": False}
        return {"max_episode_steps": LIMIT}

    def make(self, *, seed=7, num_envs=NUM_ENVS, **options):
        """Create the environments."""
        options = dict(self.options) | options
        config = EnvConfig(suite=self.suite, id=self.id, options=options, wrappers=self.wrappers)
        return make_environment(config, num_envs=num_envs, seed=seed)


CASES = {
    **{
        name: Case(
            suite="ale",
            id="breakout",
            fused=name.endswith("fused"),
            # Without episodic life no episode would end within NUM_STEPS.
            options=(("episodic_life", True), ("img_height", 42), ("img_width", 42)),
        )
        for name in ("ale", "ale-fused")
    },
    "envpool": Case(suite="envpool", id="CartPole-v1"),
    "envpool-fused": Case(suite="envpool", id="CartPole-v1", fused=True),
    "gymnasium": Case(suite="gymnasium", id="CartPole-v1"),
    "catch": Case(suite="jax", id="Catch-v0"),
    "catch-fused": Case(suite="jax", id="Catch-v0", fused=True),
    "recall": Case(suite="jax", id="Recall-v0"),
    "recall-fused": Case(suite="jax", id="Recall-v0", fused=True),
    "bandit": Case(suite="jax", id="Bandit-v0", always_one_step=True),
    "bandit-fused": Case(suite="jax", id="Bandit-v0", fused=True, always_one_step=True),
    "continuous-bandit": Case(suite="jax", id="ContinuousBandit-v0", always_one_step=True),
    "continuous-bandit-fused": Case(
        suite="jax", id="ContinuousBandit-v0", fused=True, always_one_step=True
    ),
    "composite": Case(suite="jax", id="tests.envs.composite:CompositeTask"),
    "composite-fused": Case(suite="jax", id="tests.envs.composite:CompositeTask", fused=True),
    **{
        f"leavers{ending}": Case(
            suite="jax",
            id="tests.envs.leavers:Leavers",
            fused=bool(ending),
            terminates=False,
            num_players=NUM_PLAYERS,
        )
        for ending in ("", "-fused")
    },
    "pettingzoo-leavers": Case(
        suite="pettingzoo",
        id="tests.envs.leavers:LeaversInPython",
        terminates=False,
        num_players=NUM_PLAYERS,
    ),
    "dm_env": Case(suite="dm_env", id="tests.envs.dm_tasks:Walk"),
    "gymnasium-composite": Case(suite="gymnasium", id="tests.envs.composite:Composite-v0"),
    "masked": Case(suite="jax", id="tests.envs.masked:MaskedTask"),
    "masked-fused": Case(suite="jax", id="tests.envs.masked:MaskedTask", fused=True),
    "gymnasium-masked": Case(
        suite="gymnasium",
        id="tests.envs.masked:Masked-v0",
        wrappers=("sebulba.envs.gymnasium_wrappers:MaskFromInfo",),
    ),
    **{
        f"gymnasium-units-{kind}": Case(
            suite="gymnasium",
            id="tests.envs.units:Units-v0",
            options=(("kind", kind),),
            always_one_step=True,
        )
        for kind in SPACES
    },
    **{
        f"units-{kind}{ending}": Case(
            suite="jax",
            id="tests.envs.units:UnitsTask",
            options=(("kind", kind),),
            always_one_step=True,
            fused=bool(ending),
        )
        for kind in ("dict", "boxes")
        for ending in ("", "-fused")
    },
    **{
        name: Case(
            suite=name.split("-")[0],
            id="Pendulum-v1",
            fused=name.endswith("fused"),
            options=(("max_episode_steps", 9),),
            terminates=False,
        )
        for name in ("envpool-continuous", "envpool-continuous-fused", "gymnasium-continuous")
    },
}


needs_ale = pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None, reason="needs the extra atari"
)


def over(condition=lambda case: True):
    """Parametrize a test over the cases that satisfy the condition.

    Those of a module run case by case, since only the latest few tasks keep their programs.
    """
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=name, marks=needs_ale if case.suite == "ale" else ())
            for name, case in CASES.items()
            if condition(case)
        ],
        scope="module",
    )


all_cases = over()
stepped_cases = over(lambda case: not case.fused)
fused_cases = over(lambda case: case.fused)
masked_cases = over(lambda case: "masked" in case.id.lower())
cartpole_cases = over(lambda case: case.id == "CartPole-v1")


def random_actions(space, *, num_envs=NUM_ENVS, num_steps=NUM_STEPS):
    rng = np.random.default_rng(0)
    if isinstance(space, gymnasium.spaces.Box):
        np.testing.assert_array_equal(space.low, -1.0)
        np.testing.assert_array_equal(space.high, 1.0)
        return rng.uniform(-1.0, 1.0, (num_steps, num_envs, *space.shape)).astype(space.dtype)
    size = (num_steps, num_envs, *space.shape)
    return rng.integers(num_choices(space), size=size).astype(space.dtype)


def num_choices(space):
    return space.nvec if isinstance(space, gymnasium.spaces.MultiDiscrete) else space.n


def other_actions(space, actions):
    """Return actions that all differ from `actions`."""
    if isinstance(space, gymnasium.spaces.Box):
        return -actions
    return ((actions + 1) % num_choices(space)).astype(space.dtype)


def choose(condition, actions, others):
    """Return `actions` `[T, B, ...]` where `condition` `[T, B]`, else `others`."""
    return np.where(condition.reshape(*condition.shape, *[1] * (actions.ndim - 2)), actions, others)


def play(environment, actions, *, fused=False) -> EnvStep:
    """Return the stream `[T + 1, B, ...]` of `actions` `[T, B]`, as NumPy."""
    first = environment.reset()
    if fused:
        traceable = environment.fused()
        rest = jax.tree.map(np.asarray, _scan_of(traceable.step)(traceable.state, actions))
        return jax.tree.map(lambda x, xs: np.concatenate([x[None], xs]), first, rest)
    rows = [first, *(environment.step(action) for action in actions)]
    return jax.tree.map(lambda *xs: np.stack(xs), *rows)


@functools.lru_cache(maxsize=2)
def _scan_of(step):
    # The actions are an argument: every stream of a task has the same program.
    return jax.jit(lambda state, actions: jax.lax.scan(step, state, actions)[1])


@functools.cache
def random_stream(case: Case, **options) -> tuple[EnvStep, np.ndarray]:
    """Return the stream of random actions, and the actions."""
    environment = case.make(**options)
    actions = random_actions(environment.spec.action_space, num_envs=case.num_rows)
    stream = play(environment, actions, fused=case.fused)
    environment.close()
    return stream, actions


@functools.cache
def spec_of(case: Case) -> EnvironmentSpec:
    environment = case.make()
    environment.close()
    return environment.spec


def with_players(case: Case, flags: np.ndarray) -> np.ndarray:
    """Return flags `[R, B]` as those of environments and their players, `[R, N, P]`."""
    return flags.reshape(len(flags), -1, case.num_players)


def ends_of_environments(case: Case, stream: EnvStep) -> np.ndarray:
    """Return `[R, B]` bool: whether the environment's episode has ended with all of its players."""
    ended = with_players(case, stream.done).all(axis=-1)
    return np.repeat(ended, case.num_players, axis=-1)


def assert_same(a: EnvStep, b: EnvStep):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def is_same(a: EnvStep, b: EnvStep) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))
