"""How R2D2 acts, what the replay keeps of it, and which settings it refuses."""

import dataclasses
import functools

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit import replay
from sebulba.toolkit.exploration import exploration_epsilons
from sebulba_agents.r2d2 import R2D2, sequence_stride
from sebulba_agents.replay_config import R2D2Config
from tests.agents.r2d2_life import (
    BURN_IN,
    CONFIG,
    LEARN,
    LENGTH,
    NUM_ACTIONS,
    RUN_SPEC,
    check_stored_memory,
    draw,
    jitted_act,
    live,
    random_rows,
    remember,
    slow_priority,
    slow_td_error,
    unrolled_q,
)
from tests.compiled import jitted


def test_epsilons_of_eight_and_of_256_environments():
    ladder = functools.partial(exploration_epsilons, first=0, base=0.4, exponent=7.0)
    golden = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655]
    np.testing.assert_allclose(ladder(count=8, total=8), golden, atol=5e-7)
    many = ladder(count=256, total=256)
    np.testing.assert_allclose(many[jnp.array([0, -1])], [0.4, 6.5536e-4], rtol=1e-5)
    np.testing.assert_allclose(ladder(count=1, total=1), [0.4])


def test_epsilons_go_on_from_actor_to_actor():
    agent = R2D2(CONFIG, dataclasses.replace(RUN_SPEC, num_actors=2, num_envs=4))
    states = [agent.init_actor_state((), 4, jax.random.key(0), actor_id) for actor_id in (0, 1)]
    np.testing.assert_allclose(
        jnp.concatenate([state.epsilon for state in states]),
        [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655],
        atol=5e-7,
    )


def test_new_sequences_get_the_priority_of_the_actors_own_q(lived):
    _, _, trajectories, experience = lived
    rows = jax.tree.map(
        lambda *x: np.concatenate([np.asarray(each)[:LENGTH] for each in x]),
        *[(t.env_steps, t.extras) for _, _, t in trajectories],
    )
    checked = 0
    for start in range(2 * LENGTH, 5 * LENGTH + 1, LENGTH):
        for b in range(8):
            learned = slice(start + BURN_IN, start + BURN_IN + LEARN + 1)
            step, q = jax.tree.map(lambda x: x[learned, b], rows)  # noqa: B023
            td_error = slow_td_error(step, q.taken, q.greatest)
            valid = ~(step.terminated | step.truncated)[:-1]
            expected = slow_priority(td_error, valid) ** 0.9
            slot = start // LENGTH % 6
            np.testing.assert_allclose(experience.mass[b, slot], expected, rtol=1e-4, atol=1e-4)
            checked += 1
    assert checked == int(draw(experience).num_sequences) == 32


def test_sequences_of_nothing_but_repeated_final_rows_are_never_drawn(lived):
    agent, networks, trajectories, _ = lived

    def with_player_out(trajectory):
        env_steps = trajectory.env_steps
        env_steps = dataclasses.replace(
            env_steps,
            terminated=env_steps.terminated.at[:, 3].set(True),
            is_first=env_steps.is_first.at[:, 3].set(False),
        )
        return dataclasses.replace(trajectory, env_steps=env_steps)

    out = [(first, last, with_player_out(each)) for first, last, each in trajectories]
    experience = remember(agent, networks, out)
    is_drawn = np.asarray(experience.mass > 0.0).any(axis=1)
    np.testing.assert_array_equal(is_drawn, np.arange(8) != 3)


def test_stored_memory_is_that_of_a_fresh_replay_of_the_actor(lived):
    agent, networks, trajectories, experience = lived
    check_stored_memory(agent, networks, trajectories, draw(experience))


@pytest.mark.slow
def test_rows_of_trajectories_longer_than_what_is_learned_are_all_learned_from():
    config = dataclasses.replace(CONFIG, learn_length=2)
    agent = R2D2(config, RUN_SPEC)
    networks = jitted(agent.init_networks)(jax.random.key(0))
    trajectories = live(agent, networks, random_rows(8 * LENGTH + 1), 8)
    experience = remember(agent, networks, trajectories)
    sample = replay.sample(agent._replay_spec, experience, jax.random.key(0), 400)
    learned = {start + BURN_IN + t for start in sample.ids.start.tolist() for t in range(2)}
    # Rows 8 … 31 are stored; the first have no burn-in, the last no row to bootstrap from.
    assert learned == set(range(12, 30))
    check_stored_memory(agent, networks, trajectories, sample)


@pytest.mark.parametrize(
    ("length", "learn_length", "expected"), [(64, 16, 16), (20, 16, 10), (8, 16, 8), (40, 80, 40)]
)
def test_the_default_stride_is_the_greatest_that_learns_from_every_row(
    length, learn_length, expected
):
    run_spec = dataclasses.replace(RUN_SPEC, trajectory_length=length)
    assert sequence_stride(R2D2Config(learn_length=learn_length), run_spec) == expected


@pytest.mark.parametrize("stride", [0, 3, 20])
def test_a_stride_that_skips_rows_names_both_keys(stride):
    run_spec = dataclasses.replace(RUN_SPEC, trajectory_length=20)
    message = r"agent\.stride: .* actor\.trajectory_length 20 .* agent\.learn_length 16"
    with pytest.raises(ConfigError, match=message):
        sequence_stride(R2D2Config(stride=stride), run_spec)


def test_learners_q_is_the_actors(lived):
    agent, networks, _, experience = lived
    sequences = draw(experience).sequences
    q = unrolled_q(agent, networks.online, sequences)
    taken = np.take_along_axis(q, np.asarray(sequences.rows.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(sequences.rows.extras.taken, taken, atol=1e-5)
    np.testing.assert_allclose(sequences.rows.extras.greatest, q.max(-1), atol=1e-5)


def test_actors_get_the_online_parameters_only(lived):
    agent, networks, _, _ = lived
    assert agent.actor_networks(networks) is networks.online


def test_act_forgets_at_the_first_row_of_an_episode(lived):
    agent, networks, trajectories, _ = lived
    fresh = agent.init_actor_state(networks.online, 8, jax.random.key(7), 0)
    worn = dataclasses.replace(trajectories[3][0], key=fresh.key)
    row = jax.tree.map(lambda x: x[0], random_rows(1))
    _, clean, state = jitted(agent.act, static_argnames="greedy")(
        networks.online, fresh, row, greedy=True
    )
    _, after, other = jitted(agent.act, static_argnames="greedy")(
        networks.online, worn, row, greedy=True
    )
    np.testing.assert_array_equal(clean.greatest, after.greatest)
    chex.assert_trees_all_equal(state.memory, other.memory)
    continues = dataclasses.replace(row, is_first=np.zeros(8, bool))
    _, remembered, _ = jitted(agent.act, static_argnames="greedy")(
        networks.online, worn, continues, greedy=True
    )
    assert not np.allclose(remembered.greatest, clean.greatest)


def test_act_explores_at_the_rate_of_each_environment(lived):
    agent, networks, _, _ = lived
    state = agent.init_actor_state(networks.online, 8, jax.random.key(0), 0)
    state = dataclasses.replace(state, epsilon=jnp.array([0.0] * 4 + [1.0] * 4))
    row = jax.tree.map(lambda x: x[0], random_rows(1))
    greedy, _, _ = jitted(agent.act, static_argnames="greedy")(
        networks.online, state, row, greedy=True
    )
    actions = []
    for _ in range(150):
        action, extras, state = jitted_act(agent)(networks.online, state, row)
        actions.append(np.asarray(action))
        np.testing.assert_allclose(extras.taken[:4], extras.greatest[:4], rtol=1e-6)
    actions = np.stack(actions)
    np.testing.assert_array_equal(actions[:, :4], np.tile(greedy[:4], (150, 1)))
    shares = np.bincount(actions[:, 4:].reshape(-1), minlength=NUM_ACTIONS) / 600
    np.testing.assert_allclose(shares, 1 / 3, atol=0.07)


@pytest.mark.parametrize("replay_ratio, updates", [(0.75, 39), (1.0, 52), (10.0, 522)])
def test_num_updates_keep_the_replay_ratio_exactly(replay_ratio, updates):
    config = dataclasses.replace(CONFIG, replay_ratio=replay_ratio)
    agent = R2D2(config, RUN_SPEC)
    counts = [agent.num_updates_per_cycle(cycle) for cycle in range(163)]
    # 32 rows a cycle; an update learns from 96; learning starts after 200.
    learned = replay_ratio * (163 * 32 - 200) / 96
    assert sum(counts) == int(learned) == updates
    assert counts[:6] == [0] * 6
    assert max(counts[8:]) - min(counts[8:]) <= 1


@pytest.mark.parametrize(
    "config, run_spec, message",
    [
        ({"batch_size": 6}, {"num_learner_devices": 4}, "agent.batch_size: expected a multiple"),
        ({"min_replay_rows": 79}, {}, "agent.min_replay_rows: expected at least 80"),
        ({"replay_capacity": 100}, {}, "agent.replay_capacity: 100 rows are 12 for each of 8"),
        ({"frame_stack": 4}, {}, "agent.frame_stack: expected one observation with 4 frames"),
        (
            {"network": "dqn"},
            {},
            r"agent.network: dqn expects an image.* got .*\(2,\)",
        ),
    ],
)
def test_sizes_that_do_not_fit_name_the_key(config, run_spec, message):
    with pytest.raises(ConfigError, match=message):
        R2D2(dataclasses.replace(CONFIG, **config), dataclasses.replace(RUN_SPEC, **run_spec))


def test_continuous_actions_are_refused():
    environment = dataclasses.replace(
        RUN_SPEC.environment, action_space=gymnasium.spaces.Box(-1.0, 1.0, (2,))
    )
    with pytest.raises(ConfigError, match="Discrete action space"):
        R2D2(CONFIG, dataclasses.replace(RUN_SPEC, environment=environment))


def test_lost_lives_and_frames_stored_once_are_refused(lived):
    _, networks, trajectories, experience = lived
    initial_state, final_state, trajectory = trajectories[0]
    environment = dataclasses.replace(
        RUN_SPEC.environment, observation=jax.ShapeDtypeStruct((2, 3), jnp.float32)
    )
    stacking = R2D2(
        dataclasses.replace(CONFIG, frame_stack=2),
        dataclasses.replace(RUN_SPEC, environment=environment),
    )
    env_steps = dataclasses.replace(
        trajectory.env_steps, episode_over=trajectory.env_steps.is_first
    )
    trajectory = dataclasses.replace(trajectory, env_steps=env_steps)
    with pytest.raises(ConfigError, match="episodic_life false"):
        stacking.update_experience(
            networks, experience, initial_state, final_state, trajectory, jnp.int32(0)
        )
