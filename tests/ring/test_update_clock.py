"""The clock that `Agent.loss` and `Agent.optimize` get, in every way to run a ring."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig, RunConfig
from sebulba.types import Clock
from tests.rings import make_ring, run_config, run_ring
from tests.toys import ToyAgent, ToyConfig

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

BAD_STEPS = (2, 4, 5)


class ClockAgent(ToyAgent):
    """Keeps the clocks of all updates that are not discarded."""

    def init_opt_state(self, networks):
        return {"sgd": super().init_opt_state(networks), "clocks": jnp.full((64, 4), -2, jnp.int32)}

    def optimize(self, networks, opt_state, grads, experience, clock):
        sgd = opt_state["sgd"]
        networks, sgd = super().optimize(networks, sgd, grads, experience, clock)
        row = jnp.array(
            [clock.step, clock.previous_step, *clock.env_step_count.words.astype(jnp.int32)]
        )
        return networks, {"sgd": sgd, "clocks": opt_state["clocks"].at[clock.step].set(row)}


class DiscardingAgent(ClockAgent):
    """Its loss is not a number in some updates."""

    def loss(self, networks, experience, key, clock):
        loss, rest = super().loss(networks, experience, key, clock)
        return jnp.where(jnp.isin(clock.step, jnp.array(BAD_STEPS)), jnp.nan, loss), rest


def make_config(*, mode, agent_class=ClockAgent, learner_devices=(0,), total_env_steps=200):
    """Return a run on a bandit, of whose rows every second one is a reset: not an env step."""
    return Config(
        env=EnvConfig(suite="jax", id="Bandit-v0"),
        devices=DevicesConfig(actor=(0,), learner=learner_devices),
        actor=ActorConfig(threads_per_device=2, num_envs=4, trajectory_length=5),
        learner=LearnerConfig(policy_lag=0, trajectories_per_cycle=2, on_non_finite="skip"),
        run=RunConfig(total_env_steps=total_env_steps, mode=mode),
        agent=ToyConfig(name=f"{__name__}:{agent_class.__name__}", updates_per_cycle=2),
    )


def clocks_of(ring):
    """Return the clocks of the updates that were not discarded: step, previous step, env steps."""
    clocks = np.asarray(ring.learner.state.opt_state["clocks"])
    return [
        (step, previous, low % 2**32 + 2**32 * high)
        for step, previous, low, high in clocks.tolist()
        if step >= 0
    ]


MODES = [("threads", (0,)), ("threads", (0, 1)), ("serial", (0,)), ("anakin", (0,))]


@pytest.mark.parametrize(
    ("mode", "learner_devices", "begin"),
    [
        *((*mode, 0) for mode in MODES),
        *((mode, (0,), 2**32 - 100) for mode in ("threads", "anakin")),
    ],
)
def test_updates_get_their_number_and_the_env_steps_before_their_cycle(
    mode, learner_devices, begin
):
    ring = make_ring(
        make_config(mode=mode, learner_devices=learner_devices, total_env_steps=begin + 200)
    )
    ring.progress.env_steps = begin
    of_cycles = []

    def on_cycle(infos):
        counts = [info.env_steps for info in infos]  # of several cycles, if they are one program
        of_cycles.extend(map(sum, zip(counts[::2], counts[1::2], strict=True)))

    run_ring(ring, mode=mode, on_cycle=on_cycle)
    before = itertools.accumulate(of_cycles[:-1], initial=begin)
    env_steps = [count for count in before for _ in range(2)]
    assert len(set(of_cycles)) > 1 and len(env_steps) > 10
    assert clocks_of(ring) == [(i, i - 1, count) for i, count in enumerate(env_steps)]


@pytest.mark.parametrize("mode", ["serial", "anakin"])
def test_the_previous_step_is_the_last_that_was_not_discarded(mode):
    ring, _, _ = run_config(make_config(mode=mode, agent_class=DiscardingAgent))
    steps = [(step, previous) for step, previous, _ in clocks_of(ring)]
    assert steps[:6] == [(0, -1), (1, 0), (3, 1), (6, 3), (7, 6), (8, 7)]


@pytest.mark.parametrize("mode", ["threads", "anakin"])
def test_a_resumed_run_continues_the_clock(mode, tmp_path):
    whole, _, _ = run_config(make_config(mode=mode))
    half = make_config(mode=mode, total_env_steps=100)
    run_config(half, tmp_path)
    resumed, _, _ = run_config(make_config(mode=mode), tmp_path, which="latest")
    assert clocks_of(resumed) == clocks_of(whole)


@pytest.mark.parametrize("env_steps", [0, 5, 2**24 + 1, 2**32 - 1, 2**32, 3 * 2**32 + 2**20])
def test_env_steps_are_a_float_near_the_exact_count(env_steps):
    clock = Clock.at(3, env_steps=env_steps)
    assert clock.env_steps.dtype == np.float32
    np.testing.assert_allclose(clock.env_steps, env_steps, rtol=1e-7)
    inside = jax.jit(lambda clock: clock.env_steps)(clock)
    np.testing.assert_array_equal(inside, clock.env_steps)


def test_a_clock_of_ones_own_follows_the_step_before_unless_that_was_discarded():
    clocks = [Clock.at(), Clock.at(3), Clock.at(3, previous_step=1)]
    assert [(int(x.step), int(x.previous_step)) for x in clocks] == [(0, -1), (3, 2), (3, 1)]
