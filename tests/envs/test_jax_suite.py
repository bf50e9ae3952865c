import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.jax_environment import shared_task
from sebulba.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Countdown:
    """Subtracts the action from a counter, which is the reward; terminates at 0."""

    start: int = 3
    truncates: bool = False
    reward_dtype: type = np.float32
    observation = {"left": jax.ShapeDtypeStruct((1,), np.float32)}  # noqa: RUF012
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, key):
        del key
        left = jnp.full((), self.start, jnp.int32)
        return left, self._observation(left)

    def step(self, state, action, key):
        del key
        left = state - action
        at_end = left == 0
        never = jnp.zeros((), bool)
        flags = (never, at_end) if self.truncates else (at_end, never)
        return left, self._observation(left), left.astype(self.reward_dtype), *flags

    def _observation(self, left):
        return {"left": left.astype(jnp.float32)[None]}


def make(name, *, num_envs=1, **options):
    config = EnvConfig(suite="jax", id=name, options=options)
    return make_environment(config, num_envs=num_envs, seed=1)


def play(environment, actions):
    rows = [environment.reset()]
    rows += [environment.step(np.array([a], np.int32)) for a in actions]
    return [
        (
            float(row.observation["left"][0, 0]),
            float(row.reward[0]),
            "T" * int(row.terminated[0]) + "t" * int(row.truncated[0]) + "f" * int(row.is_first[0]),
        )
        for row in rows
    ]


class BothFlags(Countdown):
    """Says at its end that the episode is terminated and truncated."""

    def step(self, state, action, key):
        *others, terminated, _ = super().step(state, action, key)
        return *others, terminated, terminated


def test_an_episode_that_is_terminated_is_not_truncated_as_well():
    rows = play(make(f"{__name__}:BothFlags", start=1), [1])
    assert [flags for _, _, flags in rows] == ["f", "T"]


def test_jax_suite_accepts_a_custom_task_and_resets_on_the_next_step():
    environment = make(f"{__name__}:Countdown", start=2)
    assert play(environment, [1, 0, 1, 1, 1]) == [
        (2.0, 0.0, "f"),
        (1.0, 1.0, ""),
        (1.0, 1.0, ""),
        (0.0, 0.0, "T"),
        (2.0, 0.0, "f"),
        (1.0, 1.0, ""),
    ]


def test_random_draws_of_an_episode_do_not_depend_on_how_long_the_one_before_was():
    environment = make(f"{__name__}:Countdown")
    environment.reset()
    state, step = environment.whole_state, environment.fused().step
    for _ in range(2):
        # The task draws from one key, and the next step, or reset, from the other.
        key, drawn_from = jax.random.split(state.key[0])
        state, _ = step(state, jnp.zeros(1, jnp.int32))
        assert state.key[0] == key != drawn_from


class InSpaces(Countdown):
    observation = gymnasium.spaces.Dict({"left": gymnasium.spaces.Discrete(4)})

    def _observation(self, left):
        return {"left": left}


class With64Bits(InSpaces):
    observation = {"left": jax.ShapeDtypeStruct((), np.int64)}  # noqa: RUF012


@pytest.mark.parametrize("task", [InSpaces, With64Bits])
def test_a_task_may_declare_observations_as_a_space_or_with_64_bits(task):
    environment = make(f"{__name__}:{task.__name__}")
    assert environment.spec.observation == {"left": jax.ShapeDtypeStruct((), np.int32)}
    assert environment.reset().observation["left"].tolist() == [3]


def test_jax_suite_keeps_a_truncation_by_the_task():
    environment = make(f"{__name__}:Countdown", start=1, truncates=True)
    assert play(environment, [1, 0]) == [(1.0, 0.0, "f"), (0.0, 0.0, "t"), (1.0, 0.0, "f")]


def test_jax_suite_limit_counts_the_steps_of_each_episode():
    environment = make(f"{__name__}:Countdown", start=2, max_episode_steps=2)
    assert [flags for _, _, flags in play(environment, [1, 0, 0, 0, 0, 0, 0])] == [
        *["f", "", "t"],
        *["f", "", "t"],
        *["f", ""],
    ]


def test_jax_suite_termination_at_the_limit_is_not_a_truncation():
    environment = make(f"{__name__}:Countdown", start=2, max_episode_steps=2)
    assert [flags for _, _, flags in play(environment, [1, 1, 0])] == ["f", "", "T", "f"]


def test_jax_suite_names_a_wrong_output_of_a_task():
    with pytest.raises(ConfigError, match=r"Countdown.*reward.*float32.*got.*int32"):
        make(f"{__name__}:Countdown", reward_dtype=np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(Countdown):
    """Counts how often its methods are traced."""

    option: object = 0
    traced = []  # noqa: RUF012

    def reset(self, key):
        self.traced.append(self.option)
        return super().reset(key)


def traces_of(*environments):
    """Returns the options with which resets and steps were traced; those of checks are before."""
    Counted.traced.clear()
    for environment in environments:
        environment.reset()
        environment.step(np.zeros(environment.num_envs, np.int32))
    return list(Counted.traced)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param((2, 2), [2, 2], id="equal"),
        pytest.param((3, 4), [3, 3, 4, 4], id="other"),
        pytest.param((1, 1.0), [1, 1, 1.0, 1.0], id="equal-but-of-another-type"),
        pytest.param(([5], [5]), [[5]] * 4, id="without-hash"),
    ],
)
def test_jax_suite_traces_equal_tasks_once(options, expected):
    traced = traces_of(*[make(f"{__name__}:Counted", option=each) for each in options])
    assert list(map(repr, traced)) == list(map(repr, expected))


class Half:
    """Has no actions and no step."""

    observation = jax.ShapeDtypeStruct((2,), np.float32)

    def __init__(self, start=0):
        if start < 0:
            raise ValueError("no start")

    def reset(self, key):
        return {}, jnp.zeros(2)


class Pair(Countdown):
    def reset(self, key):
        return super().reset(key)[0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Half", {}, r":Half has no action_space and no step, which every JAX task has"),
        (
            "Half",
            {"start": -1},
            r":Half raised ValueError: no start \(test_jax_suite\.py:\d+: ",
        ),
        (
            "Pair",
            {},
            r"Pair\(start=3, .* reset to return \(state, observation\), got int32\[\]",
        ),
    ],
)
def test_jax_suite_says_what_a_task_lacks(name, options, message):
    with pytest.raises(ConfigError, match=rf"^env\.id: .*{message}"):
        make(f"{__name__}:{name}", **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeaklyTyped(Countdown):
    """Its first state is a Python number, as the times in gymnax's are."""

    def reset(self, key):
        _, observation = super().reset(key)
        return self.start, observation


@pytest.mark.parametrize("name", ["Catch-v0", f"{__name__}:WeaklyTyped"])
def test_jax_suite_steps_without_compiling_again(name):
    environment = make(name, max_episode_steps=17)  # no other test has its functions
    environment.reset()
    for _ in range(3):
        environment.step(np.zeros(1, np.int32))
    assert environment._batch.step_jitted._cache_size() == 1


def test_tasks_that_are_made_from_the_same_are_one_task():
    def task(size, wrappers=()):
        config = EnvConfig(suite="jax", id="a", options={"size": size}, wrappers=wrappers)
        return shared_task(config, object)

    first = task(1)
    assert first is task(1) is task(1, wrappers=("module:Wrapper",)) is not task(1.0)
    for size in range(2, 10):
        task(size)
    assert task(1) is not first, "tasks are kept for ever"
