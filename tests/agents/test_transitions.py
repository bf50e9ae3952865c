"""Single transitions from replay against a slow walk along the stream."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.devices.learner_devices import PER_DEVICE, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.errors import ConfigError
from sebulba.toolkit.replay import TransitionReplay
from sebulba.toolkit.replay.transitions import fold
from sebulba.types import Clock, EnvStep, FrameStack, Trajectory
from sebulba_agents.replay_config import DDQNConfig
from tests.streams import random_env_steps
from tests.toys import one_actor_run_spec

LENGTH, NUM_ENVS, NUM_TRAJECTORIES, GAMMA = 4, 3, 6, 0.9
CONFIG = DDQNConfig(
    discount=GAMMA, batch_size=64, replay_capacity=NUM_ENVS * 16, min_replay_rows=20
)
RUN_SPEC = one_actor_run_spec(num_envs=NUM_ENVS, trajectory_length=LENGTH, num_actions=5)
ROWS = NUM_TRAJECTORIES * LENGTH


def stream(seed=0):
    """`[ROWS + 1, NUM_ENVS]` rows and the actions `[ROWS, NUM_ENVS]`, each action different."""
    env_steps = random_env_steps(seed, ROWS, NUM_ENVS)
    return env_steps, np.arange(ROWS * NUM_ENVS, dtype=np.int32).reshape(ROWS, NUM_ENVS)


def fill(agent_replay, env_steps, action):
    """Return the replay's state after the stream's trajectories."""
    add, state = jax.jit(agent_replay.add), agent_replay.init()
    for begin in range(0, ROWS, LENGTH):
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), env_steps),  # noqa: B023
            action=jnp.asarray(action[begin : begin + LENGTH]),
            extras=(),
        )
        state = add(state, trajectory, jnp.int32(0))
    return state


def slow_transition(env_steps, t, b, n):
    """Return the reward, the discount and the row arrived at, reward by reward."""
    total, factor = 0.0, 1.0
    for k in range(t + 1, t + n + 1):
        total += factor * float(env_steps.reward[k, b])
        factor *= GAMMA * (1.0 - float(env_steps.terminated[k, b]))
        if env_steps.terminated[k, b] or env_steps.truncated[k, b]:
            break
    return total, factor, k


@pytest.mark.parametrize("n_step", [1, 3])
def test_sample_gives_the_transitions_of_the_stream(n_step):
    env_steps, action = stream()
    agent_replay = TransitionReplay(CONFIG, RUN_SPEC, n_step=n_step)
    state = fill(agent_replay, env_steps, action)
    batch = jax.jit(agent_replay.sample)(state, jax.random.key(0), Clock.at())
    endings = set()
    for i in range(64):
        t, b = divmod(int(batch.action[i]), NUM_ENVS)
        reward, discount, k = slow_transition(env_steps, t, b, n_step)
        np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-5)
        np.testing.assert_array_equal(batch.observation[i], env_steps.observation[t, b])
        np.testing.assert_array_equal(batch.next_observation[i], env_steps.observation[k, b])
        endings.add((bool(env_steps.terminated[k, b]), bool(env_steps.truncated[k, b])))
    assert endings == {(True, False), (False, True), (False, False)}
    np.testing.assert_array_equal(batch.weight, 1.0)


@pytest.mark.parametrize("priority_exponent", [0.0, 0.6])
def test_sample_draws_every_valid_transition_and_no_other(priority_exponent):
    env_steps, action = stream()
    config = dataclasses.replace(CONFIG, batch_size=4000)
    agent_replay = TransitionReplay(config, RUN_SPEC, priority_exponent=priority_exponent)
    state = fill(agent_replay, env_steps, action)
    batch = jax.jit(agent_replay.sample)(state, jax.random.key(0), Clock.at())
    oldest = ROWS - 16
    valid = ~env_steps.done[oldest : ROWS - 1]  # the last row's arrival is not stored yet
    expected = set(action[oldest : ROWS - 1][valid].tolist())
    assert set(batch.action.tolist()) == expected
    assert int(batch.num_transitions) == len(expected) < valid.size


def test_new_transitions_get_the_greatest_priority_but_for_invalid_ones():
    env_steps, action = stream()
    agent_replay = TransitionReplay(CONFIG, RUN_SPEC, priority_exponent=0.5)
    state = fill(agent_replay, env_steps, action)
    batch = jax.jit(agent_replay.sample)(state, jax.random.key(0), Clock.at())
    state = jax.jit(agent_replay.update_priorities)(state, batch.ids, jnp.full(64, -9.0))
    rows = jax.tree.map(lambda x: jnp.asarray(x[: LENGTH + 1]), env_steps)
    done = jnp.zeros((LENGTH + 1, NUM_ENVS), bool).at[1, 0].set(True)
    rows = dataclasses.replace(
        rows,
        terminated=done,
        truncated=jnp.zeros_like(done),
        is_first=jnp.concatenate([env_steps.done[ROWS - 1 : ROWS], done[:-1]]),
    )
    trajectory = Trajectory(env_steps=rows, action=jnp.asarray(action[:LENGTH]), extras=())
    state = jax.jit(agent_replay.add)(state, trajectory, jnp.int32(0))
    # Starts ROWS … ROWS + LENGTH − 2 of the ring of 16 are complete now, and so is ROWS − 1.
    slots = [(ROWS + i) % 16 for i in range(LENGTH - 1)]
    expected = np.full((NUM_ENVS, LENGTH - 1), 3.0)
    expected[0, 1] = 0.0
    np.testing.assert_allclose(state.mass[:, slots], expected, rtol=1e-4)


def test_update_priorities_leaves_uniform_replay_alone():
    agent_replay = TransitionReplay(CONFIG, RUN_SPEC)
    state = fill(agent_replay, *stream())
    batch = jax.jit(agent_replay.sample)(state, jax.random.key(0), Clock.at())
    assert agent_replay.update_priorities(state, batch.ids, jnp.ones(64)) is state


def test_rewards_are_clipped_each():
    env_steps, action = stream()
    env_steps = dataclasses.replace(env_steps, reward=env_steps.reward * np.float32(10))
    agent_replay = TransitionReplay(CONFIG, RUN_SPEC, n_step=2, reward_clip=1.0)
    state = fill(agent_replay, env_steps, action)
    batch = jax.jit(agent_replay.sample)(state, jax.random.key(0), Clock.at())
    clipped = dataclasses.replace(env_steps, reward=np.clip(env_steps.reward, -1.0, 1.0))
    expected = [slow_transition(clipped, *divmod(a, NUM_ENVS), 2)[0] for a in batch.action.tolist()]
    np.testing.assert_allclose(batch.reward, expected, rtol=1e-5, atol=1e-6)


def test_fold_golden():
    rows = np.zeros((4, 3), bool)
    terminated, truncated = rows.copy(), rows.copy()
    terminated[2, 1] = truncated[2, 2] = True
    env_steps = EnvStep(
        observation=(), reward=(), terminated=terminated, truncated=truncated, is_first=rows
    )
    reward = jnp.tile(jnp.array([[100.0], [1.0], [2.0], [4.0]]), (1, 3))
    env_steps = jax.tree.map(jnp.asarray, env_steps)
    total, discount, length = fold(env_steps, reward, 0.5)
    np.testing.assert_allclose(total, [3.0, 2.0, 2.0])
    np.testing.assert_allclose(discount, [0.125, 0.0, 0.25])
    np.testing.assert_array_equal(length, [3, 2, 2])


def test_devices_with_fewer_valid_transitions_weigh_less():
    """Each draws half of the batch, so a transition among few is drawn more often."""
    env_steps, action = stream()
    never = env_steps.terminated.copy()
    never[:, 0] = False
    others = np.arange(NUM_ENVS) > 0
    env_steps = dataclasses.replace(
        env_steps,
        terminated=never,
        truncated=env_steps.truncated & others,
        is_first=env_steps.is_first & others,
    )
    devices = [[0, 1], [1, 2]]
    run_spec = dataclasses.replace(RUN_SPEC, num_envs=4, num_learner_devices=2)
    config = dataclasses.replace(CONFIG, replay_capacity=64)
    agent_replay = TransitionReplay(config, run_spec)
    states = [
        fill(agent_replay, jax.tree.map(lambda x: x[:, envs], env_steps), action[:, envs])  # noqa: B023
        for envs in devices
    ]

    def weights(state, key):
        state, key = jax.tree.map(lambda x: x[0], (state, key))
        batch = agent_replay.sample(state, key, Clock.at())
        return batch.weight[None], batch.num_transitions[None]

    learners = LearnerDevices(jax.devices()[:2])
    mapped = map_over_learner_devices(weights, learners, out_specs=(PER_DEVICE, PER_DEVICE))
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    weight, counts = mapped(
        learners.split(stacked), learners.split(jax.random.split(jax.random.key(0)))
    )
    counts = np.asarray(counts)
    # In proportion to the share of a transition in all, as one replay of all would draw it.
    expected = np.tile((counts / np.mean(counts))[:, None], (1, 32))
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
    assert counts[0] > counts[1]


def test_frames_stored_once_come_back_as_stacks():
    env_steps, action = stream()
    rng = np.random.default_rng(0)
    newest = rng.integers(0, 256, (ROWS + 1, NUM_ENVS, 2, 2), np.uint8)
    stacks = []
    for t in range(ROWS + 1):
        repeated = np.repeat(newest[t][:, None], 3, axis=1)
        pushed = np.concatenate([stacks[-1][:, 1:], newest[t][:, None]], 1) if t else repeated
        is_first = env_steps.is_first[t] | (t == 0)
        stacks.append(np.where(is_first[:, None, None, None], repeated, pushed))
    is_first = env_steps.is_first.copy()
    is_first[0] = True
    env_steps = dataclasses.replace(env_steps, observation=np.stack(stacks), is_first=is_first)
    environment = dataclasses.replace(
        RUN_SPEC.environment, observation=jax.ShapeDtypeStruct((3, 2, 2), jnp.uint8)
    )
    run_spec = dataclasses.replace(RUN_SPEC, environment=environment)
    agent_replay = TransitionReplay(CONFIG, run_spec, stack=FrameStack(size=3, axis=0))
    state = fill(agent_replay, env_steps, action)
    assert state.rows.env_step.observation.shape == (NUM_ENVS, 16, 2, 2)
    batch = jax.jit(agent_replay.sample)(state, jax.random.key(0), Clock.at())
    t, b = np.divmod(np.asarray(batch.action), NUM_ENVS)
    np.testing.assert_array_equal(batch.observation, env_steps.observation[t, b])
    np.testing.assert_array_equal(batch.next_observation, env_steps.observation[t + 1, b])
    assert not env_steps.done[t, b].any()


@pytest.mark.parametrize(
    "config, run_spec, message",
    [
        ({"batch_size": 6}, {"num_learner_devices": 4}, "agent.batch_size: expected a multiple"),
        ({"min_replay_rows": 2}, {}, "agent.min_replay_rows: expected at least 3"),
        ({"replay_capacity": 3}, {}, "agent.replay_capacity: 3 rows are 0 for each of 3"),
    ],
)
def test_sizes_that_do_not_fit_name_the_key(config, run_spec, message):
    with pytest.raises(ConfigError, match=message):
        TransitionReplay(
            dataclasses.replace(CONFIG, **config),
            dataclasses.replace(RUN_SPEC, **run_spec),
        )


@pytest.mark.slow
def test_sample_gives_the_mask_of_the_observation_that_a_transition_arrives_at():
    mask = jax.ShapeDtypeStruct((3,), bool)
    environment = dataclasses.replace(RUN_SPEC.environment, action_mask=mask)
    agent_replay = TransitionReplay(CONFIG, dataclasses.replace(RUN_SPEC, environment=environment))
    env_steps, action = stream()
    env_steps = dataclasses.replace(env_steps, action_mask=env_steps.observation > 0)
    state = fill(agent_replay, env_steps, action)
    sample = agent_replay.sample(state, jax.random.key(0), Clock.at())
    np.testing.assert_array_equal(sample.next_action_mask, sample.next_observation > 0)
