"""The stream contract, for every adapter. A new adapter adds one line to `CASES`."""

import dataclasses
import functools
import importlib.util

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.types import EnvStep

NUM_ENVS = 3
NUM_STEPS = 60  # several episodes of every case
LIMIT = 5  # shorter than any episode that ends by itself, but of the bandit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An environment, and how it is stepped."""

    suite: str
    id: str
    fused: bool = False
    always_one_step: bool = False
    options: tuple[tuple[str, int], ...] = ()  # where an episode would not end by itself
    terminates: bool = True

    @property
    def limit(self):
        """The options that truncate episodes after `LIMIT` steps."""
        if self.suite == "ale":  # Which counts frames, those before the first row included.
            frames = 4 * LIMIT
            return {"max_num_frames_per_episode": frames, "noop_max": 0, "use_fire_reset": False}
        return {"max_episode_steps": LIMIT}

    def make(self, *, seed=7, num_envs=NUM_ENVS, **options):
        """Makes the environments."""
        options = dict(self.options) | options
        config = EnvConfig(suite=self.suite, id=self.id, options=options)
        return make_environment(config, num_envs=num_envs, seed=seed)


CASES = {
    **{
        name: Case(
            suite="ale",
            id="breakout",
            fused=name.endswith("fused"),
            # Or no episode would end within so few steps.
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
    "gymnasium-composite": Case(suite="gymnasium", id="tests.envs.composite:Composite-v0"),
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
    """Parametrizes a test over the cases that fulfil the condition."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=name, marks=needs_ale if case.suite == "ale" else ())
            for name, case in CASES.items()
            if condition(case)
        ],
    )


all_cases = over()
stepped_cases = over(lambda case: not case.fused)
fused_cases = over(lambda case: case.fused)
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
    """Returns actions that differ everywhere."""
    if isinstance(space, gymnasium.spaces.Box):
        return -actions
    return ((actions + 1) % num_choices(space)).astype(space.dtype)


def choose(condition, actions, others):
    """Returns `actions` `[T, B, ...]` where `condition` `[T, B]`, else `others`."""
    return np.where(condition.reshape(*condition.shape, *[1] * (actions.ndim - 2)), actions, others)


def play(environment, actions, *, fused=False) -> EnvStep:
    """Returns the stream `[T + 1, B, ...]` of `actions` `[T, B]`, as NumPy."""
    first = environment.reset()
    if fused:
        scan = jax.jit(lambda state: jax.lax.scan(environment.fused().step, state, actions)[1])
        rest = jax.tree.map(np.asarray, scan(environment.fused().state))
        return jax.tree.map(lambda x, xs: np.concatenate([x[None], xs]), first, rest)
    rows = [first, *(environment.step(action) for action in actions)]
    return jax.tree.map(lambda *xs: np.stack(xs), *rows)


@functools.cache
def random_stream(case: Case, *, seed=7, **options) -> tuple[EnvStep, np.ndarray]:
    """Returns the stream of random actions, and the actions."""
    environment = case.make(seed=seed, **options)
    actions = random_actions(environment.spec.action_space)
    stream = play(environment, actions, fused=case.fused)
    environment.close()
    return stream, actions


def assert_same(a: EnvStep, b: EnvStep):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def is_same(a: EnvStep, b: EnvStep) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


@all_cases
def test_stream_matches_the_spec(case):
    environment = case.make()
    stream, _ = random_stream(case)
    rows = (NUM_STEPS + 1, NUM_ENVS)

    def check(spec, leaf):
        assert (leaf.shape, leaf.dtype) == ((*rows, *spec.shape), spec.dtype)

    jax.tree.map(check, environment.spec.observation, stream.observation)
    assert environment.num_envs == NUM_ENVS
    assert (stream.reward.shape, stream.reward.dtype) == (rows, np.float32)
    for flag in (stream.terminated, stream.truncated, stream.is_first):
        assert (flag.shape, flag.dtype) == (rows, np.bool_)
    environment.close()


@all_cases
def test_stream_resets_on_the_row_after_an_end(case):
    stream, _ = random_stream(case)
    assert stream.is_first[0].all()
    np.testing.assert_array_equal(stream.is_first[1:], stream.done[:-1])
    assert stream.done.any(axis=0).all()


@all_cases
def test_stream_reset_rows_pay_nothing_and_end_nothing(case):
    stream, _ = random_stream(case)
    assert np.count_nonzero(stream.reward) > 0
    assert not stream.reward[stream.is_first].any()
    assert not stream.done[stream.is_first].any()


@all_cases
def test_stream_ignores_the_action_of_a_final_row(case):
    stream, actions = random_stream(case)
    environment = case.make()
    other = other_actions(environment.spec.action_space, actions)
    done = stream.done[:-1]
    assert done.any()
    assert_same(play(environment, choose(done, other, actions), fused=case.fused), stream)
    environment.close()
    environment = case.make()
    assert not is_same(play(environment, choose(done, actions, other), fused=case.fused), stream)
    environment.close()


@over(lambda case: not case.always_one_step)
def test_stream_truncates_at_the_limit(case):
    stream, _ = random_stream(case, **case.limit)
    row = np.arange(NUM_STEPS + 1)[:, None] % (LIMIT + 1)
    everywhere = np.ones((1, NUM_ENVS), bool)
    np.testing.assert_array_equal(stream.is_first, (row == 0) & everywhere)
    np.testing.assert_array_equal(stream.truncated, (row == LIMIT) & everywhere)
    assert not stream.terminated.any()


@over(lambda case: case.terminates)
def test_stream_terminates_without_truncating(case):
    stream, _ = random_stream(case)
    assert stream.terminated.any()
    assert not stream.truncated.any()


@all_cases
def test_stream_differs_between_environments_and_episodes(case):
    stream, _ = random_stream(case)
    rows = stream.is_first.shape
    leaves = jax.tree.leaves(stream.observation)
    observation = np.concatenate([leaf.reshape(*rows, -1) for leaf in leaves], axis=-1)
    is_first = stream.is_first
    starts = [observation[is_first[:, b], b] for b in range(NUM_ENVS)]
    count = min(len(start) for start in starts)
    assert not np.array_equal(starts[0][:count], starts[1][:count])
    assert not np.array_equal(starts[1][:count], starts[2][:count])
    assert len(np.unique(starts[0], axis=0)) > 1


@all_cases
def test_stream_is_a_function_of_the_seed(case):
    stream, actions = random_stream(case)
    again, other = case.make(), case.make(seed=8)
    assert_same(play(again, actions, fused=case.fused), stream)
    assert not is_same(play(other, actions, fused=case.fused), stream)
    again.close()
    other.close()


@fused_cases
def test_fused_stream_equals_the_stepped_one(case):
    stream, _ = random_stream(case)
    assert_same(stream, random_stream(dataclasses.replace(case, fused=False))[0])


@fused_cases
def test_fused_stream_goes_on_where_the_stepped_one_stands(case):
    stream, actions = random_stream(case)
    environment = case.make()
    environment.reset()
    # An end at the border: the traceable step has to know of it.
    border = int(np.argmax(stream.done.any(axis=1)))
    for action in actions[:border]:
        environment.step(action)
    fused = environment.fused()
    step = jax.jit(fused.step)
    state, rows = fused.state, []
    for action in actions[border : border + 5]:
        state, row = step(state, action)
        rows.append(row)
    assert_same(
        jax.tree.map(lambda *xs: np.stack(xs), *rows),
        jax.tree.map(lambda x: x[border + 1 : border + 6], stream),
    )
    environment.close()


@fused_cases
def test_fused_step_keeps_types_and_may_be_donated_its_state(case):
    environment = case.make()
    row = environment.reset()
    fused = environment.fused()
    action = random_actions(environment.spec.action_space)[0]
    state, next_row = jax.jit(fused.step, donate_argnums=0)(fused.state, action)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(fused.state))

    def check(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not getattr(b, "weak_type", False)

    jax.tree.map(check, (fused.state, row), (state, next_row))
    environment.close()


@fused_cases
def test_fused_step_refuses_wrong_actions_when_traced(case):
    environment = case.make()
    environment.reset()
    fused = environment.fused()
    good = random_actions(environment.spec.action_space)[0]
    wrong = np.float32 if good.dtype == np.int32 else np.int32
    for bad in (good[:-1], good[:, None], good.astype(wrong)):
        with pytest.raises(ValueError, match="expected an action of"):
            jax.eval_shape(fused.step, fused.state, bad)
    environment.close()


@fused_cases
def test_fused_before_reset_says_so(case):
    environment = case.make()
    with pytest.raises(RuntimeError, match="reset"):
        environment.fused()
    environment.close()


@stepped_cases
def test_step_hands_out_arrays_that_are_the_callers(case):
    stream, actions = random_stream(case)
    environment = case.make()
    rows = [environment.reset()]
    for t, action in enumerate(actions):
        rows.append(environment.step(action))
        if t >= 3:  # not written to by three steps ...
            assert_same(rows[t - 3], jax.tree.map(lambda x, t=t: x[t - 3], stream))
        if t >= 4:  # ... and writing to them changes nothing.
            jax.tree.map(lambda x: x.fill(1), rows[t - 4])
        assert_same(rows[-1], jax.tree.map(lambda x, t=t: x[t + 1], stream))
    environment.close()


@stepped_cases
def test_step_refuses_wrong_actions(case):
    environment = case.make()
    environment.reset()
    good = random_actions(environment.spec.action_space)[0]
    is_continuous = isinstance(environment.spec.action_space, gymnasium.spaces.Box)
    outside = (np.nan, np.inf) if is_continuous else (100, -2)
    for bad in (
        good[:-1],
        np.append(good, good),
        good[:, None],
        good.astype(np.int64),
        good.astype(np.float64),
        list(good),
        *(np.full_like(good, value) for value in outside),
    ):
        with pytest.raises(ValueError, match="expected"):
            environment.step(bad)
    environment.step(good)
    environment.close()


@all_cases
def test_close_may_be_called_twice_and_before_reset(case):
    environment = case.make()
    environment.close()
    environment.close()


@cartpole_cases
def test_cartpole_rows_are_those_of_a_single_environment(case):
    stream, actions = random_stream(case)
    single = gymnasium.make("CartPole-v1").unwrapped
    single.reset()
    for t, b in np.argwhere(~stream.done[:-1]):
        single.state = stream.observation[t, b].astype(np.float64)
        single.steps_beyond_terminated = None
        observation, reward, terminated, _, _ = single.step(int(actions[t, b]))
        np.testing.assert_allclose(stream.observation[t + 1, b], observation, atol=1e-5)
        assert stream.reward[t + 1, b] == reward
        assert stream.terminated[t + 1, b] == terminated
    single.close()


@cartpole_cases
def test_cartpole_final_observations_are_out_of_bounds_and_first_ones_are_not(case):
    stream, _ = random_stream(case)
    angle = np.abs(stream.observation[..., 2])
    assert (angle[stream.done] > 0.2095).all()
    assert (angle[stream.is_first] <= 0.05).all()


def test_envpool_and_gymnasium_give_the_same_flags():
    flags = [
        (stream.is_first, stream.terminated, stream.truncated, stream.reward)
        for name in ("envpool", "gymnasium")
        for stream, _ in [random_stream(CASES[name], max_episode_steps=LIMIT)]
    ]
    np.testing.assert_array_equal(flags[0], flags[1])


@over(lambda case: case.id == "Pendulum-v1")
def test_continuous_actions_are_scaled_to_the_bounds_of_the_environment(case):
    """Torque goes from -2 to 2: the reward charges for it, and the pendulum feels it."""
    stream, actions = random_stream(case)
    single = gymnasium.make("Pendulum-v1").unwrapped
    single.reset()
    checked = 0
    for t, b in np.argwhere(~stream.done[:-1]):
        cosine, sine, velocity = stream.observation[t, b].astype(np.float64)
        single.state = np.array([np.arctan2(sine, cosine), velocity])
        observation, reward, *_ = single.step(2.0 * actions[t, b])
        np.testing.assert_allclose(stream.observation[t + 1, b], observation, atol=1e-4)
        np.testing.assert_allclose(stream.reward[t + 1, b], reward, atol=1e-3)
        checked += 1
    assert checked > 100
    single.close()
