"""Wrappers around single environments, and frame stacks."""

import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiDiscrete

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.envs.actions import discretized
from sebulba.errors import ConfigError
from sebulba.toolkit.frame_stack import newest_frame, rebuild_stacks
from sebulba.types import FrameStack
from tests.envs.cases import play, random_actions

HERE = "tests.envs.wrapped"
STACK = "sebulba.envs.frame_stack:FrameStack"
GYMNASIUM_STACK = "gymnasium.wrappers:FrameStackObservation"
BINS = "sebulba.envs.gymnasium_wrappers:DiscretizedBoxes"
TASK_BINS = "sebulba.envs.discretized:Discretized"
MASK_FROM_INFO = "sebulba.envs.gymnasium_wrappers:MaskFromInfo"


def make(suite, name, *wrappers, num_envs=2, **options):
    config = EnvConfig(suite=suite, id=name, options=options, wrappers=wrappers)
    return make_environment(config, num_envs=num_envs, seed=1)


def stream_of(environment, num_steps=30, *, fused=False):
    actions = random_actions(environment.spec.action_space, num_envs=2, num_steps=num_steps)
    stream = play(environment, actions, fused=fused)
    environment.close()
    return stream


@pytest.mark.parametrize(
    ("wrappers", "expected"),
    [
        ([f"{HERE}:AddToReward"], 2.0),
        ([{f"{HERE}:AddToReward": {"amount": 2}}], 3.0),
        ([f"{HERE}:AddToReward", {f"{HERE}:TimesReward": {"factor": 3.0}}], 6.0),
        ([{f"{HERE}:TimesReward": {"factor": 3.0}}, f"{HERE}:AddToReward"], 4.0),
    ],
)
def test_gymnasium_wrappers_are_applied_from_the_inside(wrappers, expected):
    environment = make("gymnasium", "CartPole-v1", *wrappers)
    environment.reset()
    np.testing.assert_array_equal(environment.step(np.zeros(2, np.int32)).reward, expected)
    assert "wrappers" not in environment.settings()
    environment.close()


@pytest.mark.parametrize(
    ("suite", "name", "wrapper"),
    [("gymnasium", "Units-v0", BINS), ("jax", "UnitsTask", TASK_BINS)],
)
def test_numbers_become_evenly_spaced_choices_next_to_discrete_parts(suite, name, wrapper):
    name = f"tests.envs.units:{name}"
    with pytest.raises(ConfigError, match=f"{BINS}.*around a JAX.*{TASK_BINS}"):
        make(suite, name, kind="mixed")
    environment = make(suite, name, {wrapper: {"bins": 9}}, num_envs=3, kind="mixed")
    assert environment.spec.action_space == MultiDiscrete([3, 9, 9, 9], dtype=np.int32)
    contexts = environment.reset().observation.argmax(axis=-1)
    # The best values are at 1/8, 3/8, 5/8 and 7/8 of each range, counted on in each context.
    best = [[c % 3, *(2 * (np.array([c, c + 1, c]) % 4) + 1)] for c in contexts]
    row = environment.step(np.array(best, np.int32))
    np.testing.assert_allclose(row.reward, 1.0)
    with pytest.raises(ConfigError, match="bins of at least 2, got 1"):
        make(suite, name, {wrapper: {"bins": 1}}, kind="mixed")


@pytest.mark.slow
def test_structured_actions_and_masks_cross_to_worker_processes():
    streams = []
    for mode in ("sync", "async"):
        environment = make(
            "gymnasium",
            "tests.envs.units:Units-v0",
            MASK_FROM_INFO,
            kind="dict",
            masks="structured",
            vectorization_mode=mode,
        )
        streams.append(stream_of(environment))
    jax.tree.map(np.testing.assert_array_equal, *streams)
    assert streams[0].action_mask.shape == (31, 2, 16)


def test_numbers_without_bounds_are_not_discretized():
    with pytest.raises(ConfigError, match="actions with bounds to discretize, got Box"):
        discretized(Dict(a=Box(0.0, np.inf, (2,))), 11)


def test_gymnasium_wrappers_are_applied_in_worker_processes():
    environment = make(
        "gymnasium",
        "tests.envs.masked:Masked-v0",
        MASK_FROM_INFO,
        {f"{HERE}:TimesReward": {"factor": 3.0}},
        num_envs=1,
        vectorization_mode="async",
    )
    first = environment.reset()
    legal = np.argmax(first.action_mask, axis=-1).astype(np.int32)
    assert environment.step(legal).reward == [3.0]
    environment.close()


@pytest.mark.parametrize("fused", [False, True])
def test_jax_wrappers_are_put_around_the_task(fused):
    plain = stream_of(make("jax", "Catch-v0"), fused=fused)
    environment = make(
        "jax", "Catch-v0", f"{HERE}:ScaledTask", {f"{HERE}:ScaledTask": {"factor": 5}}
    )
    assert environment.settings()["rows"] == 10
    scaled = stream_of(environment, fused=fused)
    assert plain.reward.any()
    np.testing.assert_array_equal(scaled.reward, 10.0 * plain.reward)
    np.testing.assert_array_equal(scaled.observation, plain.observation)


@pytest.mark.parametrize("fill", ["repeat", "zeros"])
@pytest.mark.parametrize("suite", ["jax", "gymnasium"])
def test_frame_stacks_can_be_stored_as_single_frames(suite, fill):
    if suite == "jax":
        name, wrappers = "Catch-v0", [{STACK: {"size": 3, "fill": fill}}]
    else:
        padding = {"repeat": "reset", "zeros": "zero"}[fill]
        name, wrappers = (
            "tests.envs.masked:Masked-v0",
            [{GYMNASIUM_STACK: {"stack_size": 3, "padding_type": padding}}, MASK_FROM_INFO],
        )
    environment = make(suite, name, *wrappers)
    (size,) = make(suite, name).spec.observation.shape
    assert environment.spec.observation.shape == (3, size)
    stream = stream_of(environment)
    assert stream.is_first[1:].any()
    kept = FrameStack(size=3, axis=0, fill=fill)
    frames, starts = newest_frame(jnp.array(stream.observation), kept), jnp.array(stream.is_first)
    context = kept.num_context_rows
    frames, starts = (jnp.concatenate([x[:context], x]) for x in (frames, starts))
    np.testing.assert_array_equal(rebuild_stacks(frames, starts, kept), stream.observation)


def test_frame_stack_concatenates_on_an_axis_and_keeps_the_mask_and_the_picture():
    task = "tests.envs.masked:MaskedTask"
    environment = make("jax", task, {STACK: {"size": 2, "axis": -1}})
    frame = make("jax", task).spec.observation
    assert environment.spec.observation == jax.ShapeDtypeStruct((2 * frame.shape[0],), frame.dtype)
    assert environment.spec.action_mask is not None
    assert environment.reset().action_mask.shape == (2, 3)
    pictured = make("jax", "Catch-v0", {STACK: {"size": 2}})
    pictured.reset()
    assert pictured.render().shape == (10, 5, 3)


@pytest.mark.parametrize(
    ("suite", "wrapper", "message"),
    [
        ("envpool", f"{HERE}:AddToReward", "envpool steps its environments as a batch"),
        ("gymnasium", 3, r"env\.wrappers\[0\]: expected module:Name or .*, got 3"),
        ("gymnasium", "tests.envs.wrapped:AddToRewards", "did you mean AddToReward"),
        ("gymnasium", {f"{HERE}:AddToReward": {"amounts": 1}}, "did you mean amount"),
        ("gymnasium", f"{HERE}:TimesReward", "missing a required argument: 'factor'"),
        (
            "gymnasium",
            {f"{HERE}:Lasts": {"num_steps": -3}},
            r"env\.wrappers\[0\]: tests.envs.wrapped:Lasts raised ValueError: no steps are left"
            r" \(wrapped\.py:\d+: raise ValueError.*\); it was called with .* and .*num_steps: -3",
        ),
        (
            "gymnasium",
            {GYMNASIUM_STACK: {"stack_size": "3"}},
            r"env\.wrappers\[0\]: gymnasium.*:FrameStack.* raised TypeError: .*stack_size: '3'",
        ),
        (
            "gymnasium",
            f"{HERE}:forgets_to_return",
            "expected a Gymnasium environment, got NoneType",
        ),
        (
            "gymnasium",
            {"gymnasium.wrappers.vector:ClipReward": {"min_reward": -1}},
            "expected a wrapper of one environment: gymnasium.wrappers:ClipReward, got",
        ),
    ],
)
def test_a_wrong_wrapper_is_refused(suite, wrapper, message):
    with pytest.raises(ConfigError, match=message):
        make(suite, "CartPole-v1", wrapper)


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (f"{HERE}:AddToReward", "expected a wrapper of MaskedTask, a JAX task, got Gymnasium's"),
        (f"{HERE}:forgets_to_return", "expected a JAX task, got NoneType without observation and"),
        (f"{HERE}:MasklessTask", "got MasklessTask without action_mask"),
        ({STACK: {"size": 0}}, "expects size of at least 1"),
        (
            {f"{HERE}:ScaledTask": {"factor": [2.0, "a"]}},
            r"env\.id: ScaledTask\(MaskedTask.*, factor=\[2\.0, 'a'\]\)\.step raised TypeError: .*"
            r" \(wrapped\.py:\d+: return state, observation, self\.factor \* reward, \*flags\)",
        ),
    ],
)
def test_a_wrong_wrapper_of_a_task_is_refused(wrapper, message):
    with pytest.raises(ConfigError, match=message):
        make("jax", "tests.envs.masked:MaskedTask", wrapper)


def test_gymnasium_refuses_wrappers_of_batches_and_among_the_options():
    with pytest.raises(ConfigError, match=r"env\.options\.wrappers: not supported.*env\.wrappers"):
        make("gymnasium", "CartPole-v1", wrappers=[])
    with pytest.raises(ConfigError, match="vectorization_mode to sync or async"):
        make(
            "gymnasium",
            "CartPole-v1",
            f"{HERE}:AddToReward",
            vectorization_mode="vector_entry_point",
        )


def test_an_id_that_is_registered_on_request_says_how_to_ask(monkeypatch):
    hint = f"{HERE}:register_environments:Asked-v0"
    with pytest.raises(ConfigError, match=f"Set env.id to {hint}, which calls it"):
        make("gymnasium", f"{HERE}:Asked-v0")
    entry = importlib.metadata.EntryPoint(
        "Asked", f"{HERE}:register_environments", "gymnasium.envs"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigError, match=f"set env.id to {HERE}:register_environments:Asked/One"):
        make("gymnasium", "Asked/One-v0")
    make("gymnasium", hint).close()


@pytest.mark.parametrize(
    ("suite", "name", "message"),
    [
        ("gymnasium", "NoSuchThing-v0", "of your own, write module:ID, which imports the module"),
        ("gymnasium", f"{HERE}:Nothing-v0", "Set env.id to .*:register_environments:Nothing-v0"),
        ("gymnasium", "tests.envs.masked:Mask-v0", "did you mean Masked-v0"),
        (
            "gymnasium",
            "tests.streams:Stream-v0",
            r"call gymnasium\.register\('Stream-v0', \.\.\.\) where tests\.streams is imported",
        ),
        (
            "envpool",
            "NoSuchThing-v0",
            "For one of your own, set env.suite gymnasium or jax",
        ),
        ("envpool", "tests.envs.masked:Masked-v0", r"Masked-v0'\. For .* set env.suite gymnasium"),
        ("envpool", "GymV21Environment-v0", "Gymnasium has it: set env.suite gymnasium"),
    ],
)
def test_an_id_that_nobody_has_registered_says_how_to_name_it(suite, name, message):
    with pytest.raises(ConfigError, match=message):
        make(suite, name)
