"""What the host counts: arrays, whose sizes do not grow with environments or episodes."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import ActorConfig, Config, DevicesConfig, EnvConfig, LearnerConfig, RunConfig
from sebulba.devices.memory import num_bytes
from sebulba.ring.calls import seconds_of_call
from sebulba.ring.state import joined_boundaries, restore, state_of
from tests.ring_parts import info_of
from tests.rings import act, close, learn, make_ring, program_of_cycles, publish
from tests.toys import ToyConfig

WINDOW = 30


def make_config(num_envs, *, suite="jax", task="Bandit-v0"):
    """Return a run on a bandit, whose episodes have one step."""
    return Config(
        env=EnvConfig(suite=suite, id=task),
        devices=DevicesConfig(actor=(0,), learner=(0,)),
        actor=ActorConfig(threads_per_device=1, num_envs=num_envs, trajectory_length=8),
        learner=LearnerConfig(policy_lag=0),
        run=RunConfig(total_env_steps=100_000, return_window=WINDOW, mode="serial"),
        agent=ToyConfig(),
    )


def test_an_actor_hands_over_the_last_episodes_as_arrays_and_their_number():
    ring = make_ring(make_config(512))
    info = info_of(act(ring))
    close(ring)
    assert info.num_episodes == 512 * 4
    assert len(info.episodes) == WINDOW
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(info.episodes))
    numbers = [value for name, value in vars(info).items() if name != "episodes"]
    assert all(type(number) is int for number in numbers)


def test_what_a_call_of_one_program_hands_back_does_not_grow_with_the_environments():
    sizes = set()
    for num_envs in (512, 2048):
        ring = make_ring(make_config(num_envs))
        sizes.add(num_bytes(program_of_cycles(ring).shapes))
        close(ring)
    (size,) = sizes
    assert size < 20 * WINDOW


def test_few_rows_are_handed_back_unselected():
    ring = make_ring(make_config(128))
    infos = [info_of(act(ring)), info_of(act(ring))]
    shapes = program_of_cycles(ring).shapes
    close(ring)
    assert shapes.ended[0].has_ended.shape == (8 * 128,)
    assert [info.num_episodes for info in infos] == [128 * 4, 128 * 4]
    for info in infos:
        assert info.episodes.episode_length.tolist() == [1] * 128 * 4


def test_only_the_cycles_that_ran_come_back():
    ring = make_ring(make_config(128))
    program = dataclasses.replace(program_of_cycles(ring), capacity=1000)
    close(ring)
    records = jax.numpy.zeros((1000, num_bytes(program.shapes)), np.uint8)
    assert records.nbytes > 256 << 10
    for num_cycles, expected in ((1, 1), (5, 8), (8, 8), (700, 1000)):
        of_cycles = program.of_cycles(records, num_cycles)
        assert len(of_cycles) == expected
        assert len(program.read(of_cycles, num_cycles).num_discarded) == num_cycles


@pytest.mark.parametrize("is_of_an_earlier_version", [False, True])
def test_a_checkpoint_holds_the_episodes_that_end_where_environments_are_recreated(
    is_of_an_earlier_version,
):
    config = make_config(4, suite="gymnasium", task="CartPole-v1")
    ring = make_ring(config)
    publish(ring)
    # Until an episode ends with a trajectory's last row.
    while not len((stored := stored_of(ring))["returns"]):
        learn(ring, [act(ring)])
    arrays, meta = state_of(ring)
    meta = json.loads(json.dumps(meta))
    if is_of_an_earlier_version:
        records = zip(stored["returns"], stored["lengths"], strict=True)
        meta["actors"]["boundaries"] = [
            {
                "finished": [
                    {"episode_return": episode_return, "episode_length": length, "reduced": {}}
                    for episode_return, length in records
                ],
                "num_interrupted": stored["num_interrupted"],
            }
        ]
    of_two_streams = joined_boundaries(meta["actors"]["boundaries"] * 2)
    assert of_two_streams["lengths"] == stored["lengths"] * 2
    assert of_two_streams["num_interrupted"] == stored["num_interrupted"] * 2
    resumed = make_ring(config)
    restore(resumed, arrays, meta)
    (boundary,) = [point.boundary for point in resumed.points]
    assert boundary.finished.episode_return.tolist() == stored["returns"]
    assert boundary.finished.episode_length.tolist() == stored["lengths"]
    assert boundary.num_interrupted == stored["num_interrupted"]
    publish(resumed)
    info = info_of(act(resumed))
    close(ring)
    close(resumed)
    num_before = len(stored["returns"])
    assert info.episodes_cut == boundary.num_interrupted
    assert info.episodes.has_results[:num_before].tolist() == [False] * num_before
    first = jax.tree.map(lambda leaf: leaf[:num_before], info.episodes)
    chex.assert_trees_all_equal(first, boundary.finished)


def stored_of(ring):
    """Return the boundary that a checkpoint stores of the ring's only actor."""
    return state_of(ring)[1]["actors"]["boundaries"][0]


def test_a_call_that_copies_a_large_replay_takes_longer():
    small, large = jnp.zeros(1000), jnp.zeros(25_000_000)
    assert seconds_of_call((small, (), (), ())) == pytest.approx(0.25)
    assert seconds_of_call((large, (), (), ())) == pytest.approx(1.0, rel=0.01)
