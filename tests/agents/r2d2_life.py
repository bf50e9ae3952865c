"""A small R2D2 agent, streams with every kind of ending to live on, and the slow reference."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit import replay
from sebulba.types import EnvStep, Trajectory
from sebulba_agents.replay_config import R2D2Config
from tests.compiled import jitted
from tests.toys import one_actor_run_spec

BURN_IN, LEARN, LENGTH, NUM_ACTIONS = 4, 6, 4, 3
CONFIG = R2D2Config(
    hidden_sizes=(8,),
    lstm_size=8,
    dueling_size=8,
    burn_in=BURN_IN,
    learn_length=LEARN,
    n_step=3,
    batch_size=16,
    replay_capacity=8 * 6 * LENGTH,
    min_replay_rows=200,
    target_period=2,
)
RUN_SPEC = one_actor_run_spec(
    num_envs=8, trajectory_length=LENGTH, num_actions=NUM_ACTIONS, observation_size=2
)


def random_rows(num_rows, num_envs=8, seed=0):
    """Rows that keep the stream contract, with terminations and truncations."""
    rng = np.random.default_rng(seed)
    ends = rng.random((num_rows, num_envs)) < 0.2
    done = np.zeros_like(ends)
    for t in range(1, num_rows):
        done[t] = ends[t] & ~done[t - 1]
    is_first = np.concatenate([np.ones((1, num_envs), bool), done[:-1]])
    terminated = done & (rng.random(done.shape) < 0.5)
    reward = np.where(is_first, 0.0, 3.0 * rng.normal(size=done.shape))
    return EnvStep(
        observation=rng.normal(size=(num_rows, num_envs, 2)).astype(np.float32),
        reward=reward.astype(np.float32),
        terminated=terminated,
        truncated=done & ~terminated,
        is_first=is_first,
    )


@functools.cache
def jitted_act(agent):
    return jax.jit(functools.partial(agent.act, greedy=False))


@functools.cache
def jitted_loss(agent):
    """Jitted `(networks, sample) -> loss, priority, metrics`."""
    return jax.jit(functools.partial(agent.loss_of_sample, importance_exponent=0.6))


def live(agent, networks, stream, num_trajectories, num_envs=8):
    """Acts along the stream; returns each trajectory with the actor state before its row 0."""
    online = agent.actor_networks(networks)
    actor_state = agent.init_actor_state(online, num_envs, jax.random.key(7), 0)
    lived = []
    for begin in range(0, num_trajectories * LENGTH, LENGTH):
        initial_state, actions, extras = actor_state, [], []
        for t in range(begin, begin + LENGTH):
            row = jax.tree.map(lambda x: x[t], stream)  # noqa: B023
            action, extra, actor_state = jitted_act(agent)(online, actor_state, row)
            actions.append(action)
            extras.append(extra)
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), stream),  # noqa: B023
            action=jnp.stack(actions),
            extras=jax.tree.map(lambda *x: jnp.stack(x), *extras),
        )
        lived.append((initial_state, actor_state, trajectory))
    return lived


def remember(agent, networks, lived, envs=slice(None)):
    """Return the replay after the trajectories of these environments."""

    def split(state):
        per_env = jax.tree.map(lambda x: x[envs], (state.memory, state.epsilon))
        return dataclasses.replace(state, memory=per_env[0], epsilon=per_env[1])

    update = jitted(agent.update_experience)
    num_envs = len(range(8)[envs])
    experience = agent.init_experience(networks, num_envs)
    for initial_state, final_state, trajectory in lived:
        trajectory = jax.tree.map(lambda x: x[:, envs], trajectory)
        experience = update(
            networks, experience, split(initial_state), split(final_state), trajectory, jnp.int32(0)
        )
    return experience


def replay_spec(num_envs=8):
    return replay.ReplaySpec(
        num_actors=1,
        num_envs=num_envs,
        trajectory_length=LENGTH,
        capacity=6 * LENGTH,
        sequence_length=BURN_IN + LEARN,
        stride=LENGTH,
        priority_exponent=CONFIG.priority_exponent,
    )


@functools.partial(jax.jit, static_argnames=("num_sequences", "num_envs"))
def draw(experience, seed=0, num_sequences=16, num_envs=8):
    return replay.sample(replay_spec(num_envs), experience, jax.random.key(seed), num_sequences)


@functools.cache
def jitted_unroll(agent):
    return jax.jit(agent.network.apply)


def unrolled_q(agent, params, sequences):
    """Q of all rows, in one unroll without a burn-in."""
    rows = sequences.rows
    last_action = jnp.concatenate([sequences.recurrent.last_action[None], rows.action[:-1]])
    q, _ = jitted_unroll(agent)(
        params,
        rows.env_step.observation,
        reward=rows.env_step.reward,
        last_action=last_action,
        is_first=rows.env_step.is_first,
        state=sequences.recurrent.lstm,
    )
    return np.asarray(q, np.float64)


def check_stored_memory(agent, networks, trajectories, sample):
    """Compare the memory of sampled sequences with that of the actor's stream, unrolled again."""
    action = np.concatenate([t.action for _, _, t in trajectories])
    sample = jax.tree.map(np.asarray, sample)
    stream = random_rows(8 * LENGTH + 1)
    assert len(set(sample.ids.start.tolist())) > 1
    for start in set(sample.ids.start.tolist()):
        before = jax.tree.map(lambda x: x[:start], stream)  # noqa: B023
        _, lstm = jitted_unroll(agent)(
            networks.online,
            before.observation,
            reward=before.reward,
            last_action=np.concatenate([np.zeros((1, 8), np.int32), action[: start - 1]]),
            is_first=before.is_first,
            state=agent.network.initial_state(8),
        )
        starts_here = np.asarray(sample.ids.start) == start
        env = np.asarray(sample.ids.stream)[starts_here]
        stored = jax.tree.map(lambda x: x[starts_here], sample.sequences.recurrent)  # noqa: B023
        np.testing.assert_array_equal(stored.last_action, action[start - 1, env])
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, np.asarray(y)[env], atol=1e-5),  # noqa: B023
            stored.lstm,
            lstm,
        )


def _h(x, epsilon=1e-3):
    return np.sign(x) * (np.sqrt(abs(x) + 1.0) - 1.0) + epsilon * x


def _h_inverse(y, epsilon=1e-3):
    root = np.sqrt(1.0 + 4.0 * epsilon * (abs(y) + 1.0 + epsilon))
    return np.sign(y) * (((root - 1.0) / (2.0 * epsilon)) ** 2 - 1.0)


def slow_td_error(step, taken_q, bootstrap_q, n=3, discount=0.997):
    """One sequence `[m + 1]`, transition by transition, reward by reward."""
    done = np.asarray(step.terminated | step.truncated)
    td_error = np.zeros(LEARN)
    for t in range(LEARN):
        if done[t]:
            continue
        total, factor = 0.0, 1.0
        for k in range(t + 1, min(t + n, LEARN) + 1):
            total += factor * float(step.reward[k])
            factor *= discount * (1.0 - float(step.terminated[k]))
            if done[k]:
                break
        td_error[t] = _h(total + factor * _h_inverse(bootstrap_q[k])) - taken_q[t]
    return td_error


def slow_priority(td_error, valid):
    size = np.abs(td_error)[valid]
    return 0.9 * size.max() + 0.1 * size.mean() if valid.any() else 0.0
