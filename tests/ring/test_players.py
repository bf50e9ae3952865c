"""Several players of an environment as rows of the batch: weights, counts and statistics."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config.loading import load_config
from sebulba.errors import ConfigError
from sebulba.types import EnvStep, Trajectory
from tests.envs.leavers import FIRST_LEAVES
from tests.ring_parts import follow_episodes
from tests.rings import act, close, make_ring, run_ring

FLAGS = ["--actor.threads-per-device", "1", "--run.mode", "serial", "--learner.policy-lag", "0"]
FLAGS += ["--agent.hidden-sizes", "[8]", "--agent.num-epochs", "1"]


def config_of(*flags, env=("--env.id", "tests.envs.leavers:Leavers")):
    return load_config("configs/ppo_corridor.yaml", [*FLAGS, *env, *flags])


def make_one(config, num_devices=1):
    return make_ring(config, devices=jax.devices()[:num_devices])


def team_rows(seed, num_rows, num_envs, num_players):
    """Return `[R, N · P]` rows of players that leave at random, in episodes of their teams."""
    rng = np.random.default_rng(seed)
    shape = (num_rows, num_envs, num_players)
    terminated, truncated, is_first = (np.zeros(shape, bool) for _ in range(3))
    reward = rng.normal(size=shape).astype(np.float32)
    for t in range(num_rows):
        for n in range(num_envs):
            if t == 0 or (terminated | truncated)[t - 1, n].all():
                is_first[t, n], reward[t, n] = True, 0
                continue
            for p in range(num_players):
                if (terminated | truncated)[t - 1, n, p]:
                    terminated[t, n, p], truncated[t, n, p] = (
                        terminated[t - 1, n, p],
                        truncated[t - 1, n, p],
                    )
                    reward[t, n, p] = 0
                elif rng.random() < 0.2:
                    which = terminated if rng.random() < 0.5 else truncated
                    which[t, n, p] = True
    flat = (num_rows, num_envs * num_players)
    return EnvStep(
        observation=np.zeros((*flat, 1), np.float32),
        reward=reward.reshape(flat),
        terminated=terminated.reshape(flat),
        truncated=truncated.reshape(flat),
        is_first=is_first.reshape(flat),
    )


def episodes_by_hand(rows, num_players):
    """Return `(mean return, length, environment, returns)` of each team's episode, in order."""
    num_rows, num_streams = rows.reward.shape
    episodes = []
    begun = {}
    for t in range(num_rows):
        for env in range(num_streams // num_players):
            players = range(env * num_players, (env + 1) * num_players)
            if rows.is_first[t, players[0]]:
                begun[env] = t
            was_over = t > begun[env] and all(rows.done[t - 1, p] for p in players)
            if not was_over and all(rows.done[t, p] for p in players):
                returns = [sum(rows.reward[begun[env] : t + 1, p]) for p in players]
                episodes.append((np.mean(returns), t - begun[env], env, returns))
    return episodes


@pytest.mark.parametrize("num_players", [2, 3])
@pytest.mark.parametrize(("num_rows", "num_envs"), [(60, 4), (400, 3)])
def test_a_teams_episode_ends_with_its_last_player_and_has_the_mean_return(
    num_rows, num_envs, num_players
):
    rows = team_rows(num_rows, num_rows + 1, num_envs, num_players)
    action = np.zeros(rows.reward.shape, np.int32)[:-1]
    trajectory = Trajectory(env_steps=rows, action=action, extras={})
    num_episodes, ended = follow_episodes({}, trajectory, max_finished=20, num_players=num_players)
    expected = episodes_by_hand(jax.tree.map(lambda x: x[:-1], rows), num_players)
    assert num_episodes == len(expected) > 10
    episodes = ended.episodes
    expected = expected[-len(episodes) :]
    got = (episodes.episode_return, episodes.episode_length, ended.env[ended.has_ended])
    for column, of_all in zip(got, zip(*expected, strict=True), strict=False):
        np.testing.assert_allclose(column, of_all, rtol=1e-4, atol=1e-5)
    for player in range(num_players):
        name = f"return_of_player_{player}"
        returns = [each[3][player] for each in expected]
        np.testing.assert_allclose(episodes.reduced[name], returns, rtol=1e-4, atol=1e-5)


class LastReward:
    """The reward of an episode's last row."""

    def init(self, num_envs):
        return jnp.zeros(num_envs)

    def update(self, state, env_step, action, extras):
        return state, env_step.reward


def test_a_player_that_is_out_keeps_the_result_of_its_reducer():
    rows = team_rows(1, 61, 3, 2)
    action = np.zeros(rows.reward.shape, np.int32)[:-1]
    trajectory = Trajectory(env_steps=rows, action=action, extras={})
    _, ended = follow_episodes({"last": LastReward()}, trajectory, num_players=2)
    expected, begun = [], {}
    for t in range(60):
        for env in range(3):
            players = (2 * env, 2 * env + 1)
            if rows.is_first[t, players[0]]:
                begun[env] = t
            elif rows.done[t, players].all():
                leave = [begun[env] + np.argmax(rows.done[begun[env] : t + 1, p]) for p in players]
                expected.append(np.mean([rows.reward[leave[i], p] for i, p in enumerate(players)]))
    np.testing.assert_allclose(ended.episodes.reduced["last"], expected, rtol=1e-5)


def test_a_player_that_is_out_is_not_learned_from():
    ring = make_one(config_of("--actor.trajectory-length", "40"))
    delivery = act(ring)
    rows, valid = delivery.unroll.trajectory.env_steps, np.asarray(delivery.unroll.trajectory.valid)
    close(ring)
    elapsed = np.asarray(rows.observation[:-1, :, 1])
    late = np.asarray(rows.done)[:, ::3].argmax(axis=0) - FIRST_LEAVES
    for b in range(valid.shape[1]):
        env, player = divmod(b, 3)
        length = FIRST_LEAVES + 2 * player + late[env]
        team_length = FIRST_LEAVES + 4 + late[env]
        first_episode = valid[: team_length + 1, b]
        assert first_episode.tolist() == [t < length for t in range(team_length + 1)]
        assert elapsed[team_length, b] == length  # its final row, until the last has left
    assert delivery.info.env_steps == valid.sum()
    lengths = delivery.info.episodes.episode_length
    assert set(lengths.tolist()) <= {FIRST_LEAVES + 4 + r for r in range(4)}


def test_rollouts_of_whole_episodes_hold_one_episode_of_each_team():
    config = config_of("--actor.rollout", "episodes", "--actor.trajectory-length", "20")
    ring = make_one(config)
    delivery = act(ring)
    valid = np.asarray(delivery.unroll.trajectory.valid)
    close(ring)
    assert delivery.info.num_episodes == config.actor.num_envs
    lengths = valid.sum(axis=0).reshape(-1, 3)
    np.testing.assert_array_equal(lengths - lengths[:, :1], [[0, 2, 4]] * config.actor.num_envs)
    assert sorted(delivery.info.episodes.episode_length) == sorted(lengths[:, 2])


def test_each_player_has_a_return_in_the_rows_of_metrics():
    config = config_of("--run.total-env-steps", "4000", "--run.log-interval-env-steps", "2000")
    rows = run_ring(make_one(config), mode="serial")
    last = rows[-1]
    returns = [last[f"episode/return_of_player_{player}"] for player in range(3)]
    assert np.mean(returns) == pytest.approx(last["episode_return_mean"], rel=1e-4)
    assert returns == sorted(returns)  # who leaves later has received more


def test_learner_devices_get_the_players_of_whole_environments():
    config = config_of("--actor.num-envs", "4")
    ring = make_one(dataclasses.replace(config), num_devices=3)
    assert len(ring.learner.learner_devices.devices) == 2
    delivery = act(ring)
    is_done = delivery.unroll.trajectory.env_steps.terminated
    assert {shard.data.shape[1] for shard in is_done.addressable_shards} == {6}
    close(ring)


def test_environments_that_learner_devices_would_split_are_refused():
    with pytest.raises(ConfigError, match=r"a multiple of the 2 devices .* got 3\. Set 2 or 4"):
        config_of("--actor.num-envs", "3", "--devices.learner", "[1, 2]")
    config = config_of("--actor.num-envs", "4", "--devices.learner", "[1, 2]")
    ring = make_one(config, num_devices=3)
    close(ring)


def test_one_program_learns_the_same_of_players_as_actors_and_learner():
    states = []
    for mode in ("serial", "anakin"):
        config = config_of("--run.total-env-steps", "4000", env=())
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, mode=mode))
        ring = make_one(config)
        run_ring(ring, mode=mode)
        states.append(jax.tree.map(np.asarray, ring.learner.state.networks))
    chex.assert_trees_all_close(*states, rtol=1e-4, atol=1e-5)
