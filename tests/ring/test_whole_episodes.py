"""Rollouts of complete episodes: one per environment and trajectory, under the stream contract."""

import dataclasses
import itertools

import chex
import jax
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from tests.ring.test_act_cycle import NUM_ENVS, Cycles
from tests.ring_parts import compilations
from tests.rings import make_ring

LENGTH = 40
CATCH = EnvConfig(suite="jax", id="Catch-v0")
CARTPOLE = EnvConfig(suite="envpool", id="CartPole-v1")
GYMNASIUM = EnvConfig(suite="gymnasium", id="CartPole-v1")
KINDS = [(CATCH, "fused"), (CARTPOLE, "fused"), (CARTPOLE, "stepped"), (GYMNASIUM, "stepped")]


def run(env_config, kind, length=LENGTH):
    cycles = Cycles(env_config, kind, length=length, whole_episodes=True)
    return cycles, [_on_host(cycles.run()) for _ in range(4)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0].suite}-{kind[1]}")
def cycles_and_results(request):
    return run(*request.param)


def _on_host(result):
    return jax.tree.map(np.asarray, dataclasses.replace(result, final_state=None))


def test_a_trajectory_is_one_episode_of_each_environment(cycles_and_results):
    cycles, results = cycles_and_results
    for result in results:
        rows, valid = result.trajectory.env_steps, result.trajectory.valid
        assert rows.is_first[0].all() and not rows.is_first[1:-1].any() and rows.is_first[-1].all()
        lengths = valid.sum(axis=0)
        assert (valid == (np.arange(LENGTH)[:, None] < lengths)).all()
        assert result.env_steps == lengths.sum()
        episodes = result.ended.episodes
        assert sorted(episodes.episode_length) == sorted(lengths)
        np.testing.assert_allclose(sorted(episodes.episode_return), sorted(rows.reward.sum(axis=0)))
    assert set(compilations(cycles.act_cycle)) == {1}


def test_a_final_row_is_repeated_with_reward_0(cycles_and_results):
    _, results = cycles_and_results
    for result in results:
        rows = result.trajectory.env_steps
        for b, length in enumerate(result.trajectory.valid.sum(axis=0)):
            final = slice(length, LENGTH)
            observation, done = rows.observation[final, b], rows.done[final, b]
            assert done.all() and (observation == observation[0]).all()
            for flag in (rows.terminated, rows.truncated):
                assert (flag[final, b] == flag[length, b]).all()
            assert (rows.reward[length + 1 :, b] == 0).all()


def test_extras_of_every_row_are_of_its_observation(cycles_and_results):
    """An agent may bootstrap from a value that it stored at the final row."""
    cycles, results = cycles_and_results
    for result in results:
        observations = result.trajectory.env_steps.observation[:-1]
        logits = observations @ np.asarray(cycles.networks["weights"])
        np.testing.assert_allclose(result.trajectory.extras["logits"], logits, rtol=1e-5, atol=1e-6)


def test_the_last_row_is_the_next_trajectorys_first(cycles_and_results):
    _, results = cycles_and_results
    for before, after in itertools.pairwise(results):
        last = jax.tree.map(lambda x: x[-1], before.trajectory.env_steps)
        chex.assert_trees_all_equal(last, jax.tree.map(lambda x: x[0], after.trajectory.env_steps))


def test_every_trajectory_has_other_episodes(cycles_and_results):
    _, results = cycles_and_results
    firsts = [result.trajectory.env_steps.observation[0].tobytes() for result in results]
    assert len(set(firsts)) > 1


@pytest.mark.parametrize("env_config", [CATCH, CARTPOLE], ids=lambda config: config.suite)
def test_fused_and_stepped_cycles_give_the_same_episodes(env_config):
    fused, stepped = (
        Cycles(env_config, kind, length=LENGTH, whole_episodes=True)
        for kind in ("fused", "stepped")
    )
    for _ in range(3):
        chex.assert_trees_all_equal(fused.run(), stepped.run())


@pytest.mark.parametrize("kind", ["fused", "stepped"])
def test_an_episode_longer_than_the_trajectory_is_truncated(kind):
    _, results = run(CARTPOLE, kind, length=6)
    for result in results:
        rows = result.trajectory.env_steps
        assert result.trajectory.valid.all(axis=1).tolist() == [True] * 5 + [False]
        assert rows.truncated[5].all() and not rows.terminated.any()
        assert result.num_episodes == NUM_ENVS


def test_acting_stops_with_the_longest_episode():
    cycles = Cycles(CATCH, "fused", length=LENGTH, whole_episodes=True)
    cycles.run()
    # Catch's episodes have 9 env steps; the toy agent counts the rows that it has acted from.
    assert np.asarray(cycles.carry.actor_state.count).tolist() == [9] * NUM_ENVS


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (["--env.suite", "ale", "--env.id", "pong"], "cannot be reset together"),
        (["--env.id", "Pong-v5", "--env.options", "{episodic_life: true}"], "but not the game"),
    ],
)
def test_environments_that_cannot_reset_together_are_refused(env, message):
    flags = ["--actor.rollout", "episodes", "--actor.num-envs", "2", "--actor.cycle", "stepped"]
    config = load_config("configs/random_cartpole.yaml", [*flags, *env])
    with pytest.raises(ConfigError, match=f"actor.rollout: .*{message}"):
        make_ring(config, devices=jax.devices()[:1])


def test_a_trajectory_too_short_for_a_step_is_refused():
    flags = ["--actor.rollout", "episodes", "--actor.trajectory-length", "1"]
    with pytest.raises(ConfigError, match=r"trajectory.length: expected at least 2"):
        load_config("configs/random_cartpole.yaml", flags)
