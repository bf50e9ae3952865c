"""A learner cycle in one jitted call, and with one call for each update."""

import dataclasses
import functools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config.loading import load_config
from sebulba.devices.mapping import Mapped
from sebulba.devices.memory import num_bytes
from sebulba.pytree import without_key
from sebulba.ring.update import LearnerState
from sebulba.toolkit.convolutions import convolve
from tests import rings
from tests.extras import needs_search
from tests.ring.test_learner import make_item, make_learner
from tests.ring_parts import activities_in_calls, is_slow_in_a_loop, published, update
from tests.rings import act_in_turn, close, learn, publish
from tests.toys import ToyAgent

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


class ConvolvingAgent(ToyAgent):
    """Its loss has a convolution, which adds nothing."""

    def loss(self, networks, experience, key, clock):
        loss, rest = super().loss(networks, experience, key, clock)
        image = loss * jnp.zeros((1, 1, 4, 4))
        return loss + jax.lax.conv(image, jnp.ones((1, 1, 2, 2)), (1, 1), "SAME").sum(), rest


@pytest.mark.parametrize(
    ("agent_class", "cycle", "calls"),
    [
        (ToyAgent, "auto", 1),
        (ToyAgent, "update_by_update", 3),
        (ConvolvingAgent, "auto", 3),
        (ConvolvingAgent, "one_program", 1),
    ],
)
def test_updates_share_a_call_unless_a_cpu_would_convolve_in_a_loop(agent_class, cycle, calls):
    settings = {"agent_class": agent_class, "cycle": cycle}
    learner, learner_devices = make_learner(updates_per_cycle=3, **settings)
    metrics = update(learner, [make_item(learner_devices)])
    assert len(metrics) == calls
    assert sum(each["loss"].size for each in metrics) == learner.num_updates == 3


@pytest.mark.parametrize("cycle", ["auto", "update_by_update"])
def test_the_first_call_of_a_program_is_a_compilation(cycle, monkeypatch):
    learner, learner_devices = make_learner(updates_per_cycle=3, cycle=cycle)
    begun = activities_in_calls(learner, monkeypatch)
    for number in range(2):
        update(learner, [make_item(learner_devices, number)])
    # Update by update, only the first call adds trajectories.
    calls = 1 if cycle == "auto" else 3
    first = ["compile"] if calls == 1 else ["compile", "compile", "update"]
    assert begun == [*first, *["update"] * calls]


def test_gradients_of_the_toolkits_convolutions_are_fast_in_a_loop():
    def loss(convolve, kernel):
        return jnp.square(convolve(jnp.ones((2, 9, 9, 3)), kernel)).sum()

    own = functools.partial(convolve, stride=2, padding="SAME")
    plain = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(2, 2),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    kernel = jnp.ones((3, 3, 3, 4))
    for function, expected in ((own, False), (plain, True)):
        jaxpr = jax.make_jaxpr(jax.grad(functools.partial(loss, function)))(kernel)
        assert is_slow_in_a_loop(jaxpr, "cpu") == expected


def test_a_convolution_that_the_platform_does_not_compute_does_not_count():
    def convolve(x):
        return jax.lax.conv(x, jnp.ones((1, 1, 2, 2)), (1, 1), "SAME")

    @jax.jit
    def choose(x):
        return jax.lax.platform_dependent(x, cpu=jnp.sin, default=convolve)

    image = jnp.zeros((1, 1, 4, 4))
    is_slow = functools.partial(is_slow_in_a_loop, platform="cpu")
    assert not is_slow(jax.make_jaxpr(jax.grad(lambda x: choose(x).sum()))(image))
    assert is_slow(jax.make_jaxpr(jax.grad(lambda x: convolve(x).sum()))(image))
    assert not is_slow_in_a_loop(jax.make_jaxpr(convolve)(image), "gpu")


@pytest.mark.parametrize("num_devices", [1, 4])
def test_updates_are_the_same_in_one_call_and_in_several(num_devices):
    learned = []
    for cycle in ("one_program", "update_by_update"):
        learner, learner_devices = make_learner(num_devices, updates_per_cycle=3, cycle=cycle)
        metrics = []
        for number in range(3):
            metrics += update(learner, [make_item(learner_devices, number)])
        metrics = jax.tree.map(lambda *leaves: np.concatenate(leaves), *metrics)
        learned.append((as_numbers(learner.state), published(learner), metrics))
    chex.assert_trees_all_close(*learned, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("impala_recall", "ppo_recall", "sac_bandit", "r2d2_recall"),
        pytest.param("gumbel_muzero_catch", marks=needs_search),
    ],
)
def test_shipped_agents_learn_the_same_in_one_call_and_in_several(name):
    flags = ["--learner.policy-lag", "0", "--devices.actor", "[0]", "--devices.learner", "[0]"]
    config = load_config(str(CONFIGS / f"{name}.yaml"), flags)

    def make_ring(cycle):
        changed = dataclasses.replace(config.learner, cycle=cycle)
        return rings.make_ring(dataclasses.replace(config, learner=changed))

    ring, other = make_ring("one_program"), make_ring("update_by_update")
    publish(ring)
    while ring.learner.num_cycles < 20 or ring.learner.num_updates < 40:
        items = act_in_turn(ring)
        update(other.learner, items)
        learn(ring, items)
    for each in (ring, other):
        close(each)
    assert ring.learner.num_updates == other.learner.num_updates
    chex.assert_trees_all_close(
        as_numbers(ring.learner.state), as_numbers(other.learner.state), rtol=1e-6, atol=1e-7
    )


def as_numbers(state):
    """Return a learner's state with typed keys as integers."""
    return jax.tree.map(without_key, state)


# One update in a learner cycle: XLA could fuse writing the new rows into reading a sample.
ONE_UPDATE = {
    "env.id": "Catch-v0",
    "actor.threads_per_device": 1,
    "actor.num_envs": 1,
    "actor.trajectory_length": 8,
    "agent.batch_size": 8,
    "agent.replay_ratio": 1.0,
    "agent.min_replay_rows": 8,
    "agent.replay_capacity": 50_000,
}


def test_no_update_copies_a_replay_on_a_cpu(monkeypatch):
    ring = rings.make_ring(load_config(str(CONFIGS / "ddqn_bandit.yaml"), ONE_UPDATE))
    call, temporary = Mapped.__call__, []

    def measured_call(mapped, *args):
        if isinstance(args[0], LearnerState):
            temporary.append(temporary_bytes(mapped.trace(*args)))
        return call(mapped, *args)

    monkeypatch.setattr(Mapped, "__call__", measured_call)
    publish(ring)
    for _ in range(3):
        learn(ring, act_in_turn(ring))
    close(ring)
    assert ring.learner.num_updates > 0
    assert max(temporary) < num_bytes(ring.learner.state.experience) / 10


def test_one_program_copies_no_replay_from_cycle_to_cycle_on_a_cpu():
    config = load_config(str(CONFIGS / "ddqn_bandit.yaml"), ONE_UPDATE | {"run.mode": "anakin"})
    ring = rings.make_ring(config)
    traced = rings.trace_program_of_cycles(ring)
    close(ring)
    assert temporary_bytes(traced) < num_bytes(ring.learner.state.experience) / 10


def temporary_bytes(traced):
    """Return the bytes that a traced program needs beside its arguments and results."""
    return traced.lower().compile().memory_analysis().temp_size_in_bytes
