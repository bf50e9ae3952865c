"""R2D2 against hand-fed numbers and a slow reference, on streams with every kind of ending."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.config import R2D2Config
from agents.q_learning import exploration_epsilons, sequence_priority
from agents.q_optimizer import QNetworks
from agents.r2d2 import R2D2, ActorQ
from sebulba import replay
from sebulba.devices import PER_DEVICE, REPLICATED, LearnerDevices
from sebulba.errors import ConfigError
from sebulba.mapping import map_over_learners
from sebulba.reductions import LEARNER_AXIS
from sebulba.replay import SequenceIds
from sebulba.types import EnvironmentSpec, EnvStep, RunSpec, Trajectory

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
RUN_SPEC = RunSpec(
    environment=EnvironmentSpec(
        observation=jax.ShapeDtypeStruct((2,), jnp.float32),
        action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
    ),
    num_envs=8,
    num_actors=1,
    num_learner_devices=1,
    trajectory_length=LENGTH,
    trajectories_per_cycle=1,
    num_cycles=100,
)


def _stream(num_rows, num_envs=8, seed=0):
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
def _act(agent):
    return jax.jit(functools.partial(agent.act, greedy=False))


@functools.cache
def _loss(agent):
    """Jitted `(networks, sample) -> loss, priority, metrics`."""
    return jax.jit(agent.loss_of_sample)


def _live(agent, networks, stream, num_trajectories, num_envs=8):
    """Acts along the stream; returns each trajectory with the actor state before its row 0."""
    online = agent.actor_networks(networks)
    actor_state = agent.init_actor_state(online, num_envs, jax.random.key(7), 0)
    lived = []
    for begin in range(0, num_trajectories * LENGTH, LENGTH):
        initial_state, actions, extras = actor_state, [], []
        for t in range(begin, begin + LENGTH):
            row = jax.tree.map(lambda x: x[t], stream)  # noqa: B023
            action, extra, actor_state = _act(agent)(online, actor_state, row)
            actions.append(action)
            extras.append(extra)
        trajectory = Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), stream),  # noqa: B023
            action=jnp.stack(actions),
            extras=jax.tree.map(lambda *x: jnp.stack(x), *extras),
        )
        lived.append((initial_state, actor_state, trajectory))
    return lived


def _remember(agent, networks, lived, envs=slice(None)):
    """Returns the replay after the trajectories of these environments."""

    def split(state):
        per_env = jax.tree.map(lambda x: x[envs], (state.memory, state.epsilon))
        return dataclasses.replace(state, memory=per_env[0], epsilon=per_env[1])

    update = jax.jit(agent.update_experience)
    num_envs = len(range(8)[envs])
    experience = agent.init_experience(networks, num_envs)
    for initial_state, final_state, trajectory in lived:
        trajectory = jax.tree.map(lambda x: x[:, envs], trajectory)
        experience = update(
            networks, experience, split(initial_state), split(final_state), trajectory, jnp.int32(0)
        )
    return experience


@pytest.fixture(scope="module")
def lived():
    """An agent, different online and target networks, its life, and its replay."""
    agent = R2D2(CONFIG, RUN_SPEC)
    networks = QNetworks(
        online=jax.jit(agent.init_networks)(jax.random.key(0)).online,
        target=jax.jit(agent.init_networks)(jax.random.key(1)).online,
    )
    trajectories = _live(agent, networks, _stream(8 * LENGTH + 1), 8)
    return agent, networks, trajectories, _remember(agent, networks, trajectories)


def _spec(num_envs=8):
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
def _sample(experience, seed=0, num_sequences=16, num_envs=8):
    return replay.sample(_spec(num_envs), experience, jax.random.key(seed), num_sequences)


@functools.cache
def _unroll(agent):
    return jax.jit(agent.network.apply)


def _q(agent, params, sequences):
    """Q of all rows, in one unroll without a burn-in."""
    rows = sequences.rows
    last_action = jnp.concatenate([sequences.recurrent.last_action[None], rows.action[:-1]])
    q, _ = _unroll(agent)(
        params,
        rows.env_step.observation,
        reward=rows.env_step.reward,
        last_action=last_action,
        is_first=rows.env_step.is_first,
        state=sequences.recurrent.lstm,
    )
    return np.asarray(q, np.float64)


def _h(x, epsilon=1e-3):
    return np.sign(x) * (np.sqrt(abs(x) + 1.0) - 1.0) + epsilon * x


def _h_inverse(y, epsilon=1e-3):
    root = np.sqrt(1.0 + 4.0 * epsilon * (abs(y) + 1.0 + epsilon))
    return np.sign(y) * (((root - 1.0) / (2.0 * epsilon)) ** 2 - 1.0)


def _slow_td_error(step, taken_q, bootstrap_q, n=3, discount=0.997):
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


def _slow_priority(td_error, valid):
    size = np.abs(td_error)[valid]
    return 0.9 * size.max() + 0.1 * size.mean() if valid.any() else 0.0


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


def test_sequence_priority_golden():
    td_error = jnp.array([[1.162688], [2.502966], [1.326625], [1.361646], [-0.935082]])
    priority = sequence_priority(td_error, jnp.ones((5, 1), bool), 0.9)
    np.testing.assert_allclose(priority, [2.398449], atol=3e-6)


def test_sequence_priority_leaves_invalid_transitions_out():
    td_error = jnp.array([[1.0, 5.0], [9.0, 5.0], [3.0, 5.0]])
    valid = jnp.array([[True, False], [False, False], [True, False]])
    priority = sequence_priority(td_error, valid, 0.9)
    np.testing.assert_allclose(priority, [0.9 * 3.0 + 0.1 * 2.0, 0.0], atol=2e-6)


def test_loss_and_priorities_equal_the_slow_reference(lived):
    agent, networks, _, experience = lived
    sample = _sample(experience)
    loss, priority, _ = _loss(agent)(networks, sample)

    online, target = (_q(agent, p, sample.sequences) for p in (networks.online, networks.target))
    weights = (np.asarray(sample.probability) * float(sample.num_sequences)) ** -0.6
    weights /= weights.max()
    losses = []
    for b in range(16):
        step = jax.tree.map(lambda x: np.asarray(x)[BURN_IN:, b], sample.sequences.rows.env_step)  # noqa: B023
        action = np.asarray(sample.sequences.rows.action)[BURN_IN:, b]
        q, row = online[BURN_IN:, b], np.arange(LEARN + 1)
        td_error = _slow_td_error(step, q[row, action], target[BURN_IN:, b][row, q.argmax(axis=-1)])
        valid = ~(step.terminated | step.truncated)[:-1]
        np.testing.assert_allclose(priority[b], _slow_priority(td_error, valid), rtol=1e-4)
        losses.append(weights[b] * 0.5 * np.sum(td_error**2))
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    flags = sample.sequences.rows.env_step
    assert flags.terminated[BURN_IN:].any() and flags.truncated[BURN_IN:].any()


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
            td_error = _slow_td_error(step, q.taken, q.greatest)
            valid = ~(step.terminated | step.truncated)[:-1]
            expected = _slow_priority(td_error, valid) ** 0.9
            slot = start // LENGTH % 6
            np.testing.assert_allclose(experience.mass[b, slot], expected, rtol=1e-4, atol=1e-4)
            checked += 1
    assert checked == int(_sample(experience).num_sequences) == 32


def test_stored_memory_is_that_of_a_fresh_replay_of_the_actor(lived):
    agent, networks, trajectories, experience = lived
    sample = _sample(experience)
    action = jnp.concatenate([t.action for _, _, t in trajectories])
    stream = _stream(8 * LENGTH + 1)
    assert len(set(sample.ids.start.tolist())) > 1
    for start in set(sample.ids.start.tolist()):
        before = jax.tree.map(lambda x: x[:start], stream)  # noqa: B023
        _, lstm = _unroll(agent)(
            networks.online,
            before.observation,
            reward=before.reward,
            last_action=jnp.concatenate([jnp.zeros((1, 8), jnp.int32), action[: start - 1]]),
            is_first=before.is_first,
            state=agent.network.initial_state(8),
        )
        starts_here = np.asarray(sample.ids.start) == start
        env = np.asarray(sample.ids.stream)[starts_here]
        stored = jax.tree.map(lambda x: x[starts_here], sample.sequences.recurrent)  # noqa: B023
        np.testing.assert_array_equal(stored.last_action, action[start - 1, env])
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y[env], atol=1e-6),  # noqa: B023
            stored.lstm,
            lstm,
        )


def test_learners_q_is_the_actors(lived):
    agent, networks, _, experience = lived
    sequences = _sample(experience).sequences
    q = _q(agent, networks.online, sequences)
    taken = np.take_along_axis(q, np.asarray(sequences.rows.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(sequences.rows.extras.taken, taken, atol=1e-5)
    np.testing.assert_allclose(sequences.rows.extras.greatest, q.max(-1), atol=1e-5)


def test_gradient_through_burn_in_and_autoreset_rows_is_exactly_zero(lived):
    agent, networks, _, experience = lived
    sample = _sample(experience)
    env_step = sample.sequences.rows.env_step

    def loss(observation, lstm):
        rows = dataclasses.replace(
            sample.sequences.rows, env_step=dataclasses.replace(env_step, observation=observation)
        )
        recurrent = dataclasses.replace(sample.sequences.recurrent, lstm=lstm)
        sequences = replay.Sequences(rows=rows, recurrent=recurrent)
        return _loss(agent)(networks, dataclasses.replace(sample, sequences=sequences))[0]

    lstm = sample.sequences.recurrent.lstm
    grads, lstm_grads = jax.jit(jax.grad(loss, argnums=(0, 1)))(env_step.observation, lstm)
    has_gradient = np.any(np.asarray(grads) != 0.0, axis=-1)
    assert not has_gradient[:BURN_IN].any()
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(lstm_grads))
    learned = has_gradient[BURN_IN:]
    done = np.asarray(env_step.done)[BURN_IN:]
    assert not learned[-1].any()
    np.testing.assert_array_equal(learned[:-1], ~done[:-1])
    assert done[:-1].any()


def test_target_network_gets_no_gradient(lived):
    agent, networks, _, experience = lived
    sample = _sample(experience)
    grads = jax.jit(jax.grad(lambda networks: agent.loss_of_sample(networks, sample)[0]))(networks)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads.target))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads.online))


@pytest.mark.parametrize("ending", ["truncated", "terminated", None])
def test_nothing_after_an_episodes_end_reaches_back(lived, ending):
    agent, networks, _, experience = lived
    sample = _sample(experience)
    rows = sample.sequences.rows
    last = BURN_IN + LEARN
    flags = {
        name: getattr(rows.env_step, name).at[last - 1].set(name == ending)
        for name in ("terminated", "truncated")
    }
    flags["is_first"] = rows.env_step.is_first.at[last].set(ending is not None)

    def priority(**changes):
        changed = dataclasses.replace(
            rows,
            action=changes.pop("action", rows.action),
            env_step=dataclasses.replace(rows.env_step, **flags, **changes),
        )
        sequences = dataclasses.replace(sample.sequences, rows=changed)
        return _loss(agent)(networks, dataclasses.replace(sample, sequences=sequences))[1]

    expected = priority()
    observation, reward = rows.env_step.observation, rows.env_step.reward
    for same in (
        np.array_equal(priority(observation=observation.at[last].add(9.0)), expected),
        np.array_equal(priority(reward=reward.at[last].add(99.0)), expected),
        np.array_equal(priority(action=(rows.action.at[last - 1].add(1)) % 3), expected),
    ):
        assert same == (ending is not None)


def test_importance_weights_scale_each_sequence(lived):
    agent, networks, _, experience = lived
    sample = _sample(experience)

    def loss(probability):
        changed = dataclasses.replace(sample, probability=jnp.zeros(16).at[:2].set(probability))
        return float(_loss(agent)(networks, changed)[0])

    # A probability of 0 weighs 0, so these are the losses of the first and of the second alone.
    first, second = loss(jnp.array([0.3, 0.0])), loss(jnp.array([0.0, 0.3]))
    expected = first + 0.25**0.6 * second
    np.testing.assert_allclose(loss(jnp.array([0.1, 0.4])), expected, rtol=1e-5)
    assert first > 0.0 and second > 0.0


def test_loss_writes_the_new_priorities_of_what_it_sampled(lived):
    agent, networks, _, experience = lived
    key = jax.random.key(0)
    _, (updated, _) = jax.jit(agent.loss)(networks, experience, key, jnp.int32(0))
    sample = _sample(experience)
    _, priority, _ = _loss(agent)(networks, sample)
    slot = sample.ids.start // LENGTH % 6
    np.testing.assert_allclose(updated.mass[sample.ids.stream, slot], priority**0.9, rtol=1e-4)
    drawn = np.zeros((8, 6), bool)
    drawn[np.asarray(sample.ids.stream), np.asarray(slot)] = True
    np.testing.assert_array_equal(updated.mass[~drawn], experience.mass[~drawn])


def test_one_and_four_learner_devices_take_the_same_step(lived):
    agent, networks, trajectories, whole = lived
    four = R2D2(CONFIG, dataclasses.replace(RUN_SPEC, num_learner_devices=4))
    shards = [_remember(four, networks, trajectories, slice(2 * d, 2 * d + 2)) for d in range(4)]
    samples = [_sample(shards[d], seed=d, num_sequences=4, num_envs=2) for d in range(4)]
    opt_state = jax.jit(agent.init_opt_state)(networks)

    ids = SequenceIds(
        stream=jnp.concatenate([s.ids.stream + 2 * d for d, s in enumerate(samples)]),
        start=jnp.concatenate([s.ids.start for s in samples]),
    )
    together = replay.Sample(
        sequences=jax.jit(replay.read, static_argnums=0)(_spec(), whole, ids),
        ids=ids,
        probability=jnp.concatenate([s.probability for s in samples]),
        num_sequences=samples[0].num_sequences,
    )

    def step(agent, networks, opt_state, sample, average=lambda grads: grads):
        loss = lambda networks: agent.loss_of_sample(networks, sample)[0]  # noqa: E731
        value, grads = jax.value_and_grad(loss)(networks)
        return *agent.optimize(networks, opt_state, average(grads), ()), value

    def on_device(networks, opt_state, sample):
        sample = jax.tree.map(lambda x: x[0], sample)
        return step(four, networks, opt_state, sample, lambda g: jax.lax.pmean(g, LEARNER_AXIS))

    learners = LearnerDevices(jax.devices()[:4])
    mapped = map_over_learners(on_device, learners, out_specs=(REPLICATED,) * 3)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *samples)
    results = mapped(
        learners.replicate(networks), learners.replicate(opt_state), learners.split(stacked)
    )
    expected = jax.jit(step, static_argnums=0)(agent, networks, opt_state, together)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), results, expected)
    assert not np.allclose(results[2], 0.0)
    assert jax.tree.leaves(learners.split(stacked))[0].sharding.spec == PER_DEVICE


def test_optimize_copies_to_the_target_once_a_period(lived):
    agent, networks, _, _ = lived
    opt_state = jax.jit(agent.init_opt_state)(networks)
    grads = jax.tree.map(jnp.ones_like, networks)
    optimize = jax.jit(agent.optimize)
    once, opt_state = optimize(networks, opt_state, grads, ())
    jax.tree.map(np.testing.assert_array_equal, once.target, networks.target)
    twice, opt_state = optimize(once, opt_state, grads, ())
    jax.tree.map(np.testing.assert_array_equal, twice.target, twice.online)
    assert int(opt_state.num_updates) == 2


def test_actors_get_the_online_parameters_only(lived):
    agent, networks, _, _ = lived
    assert agent.actor_networks(networks) is networks.online


def test_act_forgets_at_the_first_row_of_an_episode(lived):
    agent, networks, trajectories, _ = lived
    fresh = agent.init_actor_state(networks.online, 8, jax.random.key(7), 0)
    worn = dataclasses.replace(trajectories[3][0], key=fresh.key)
    row = jax.tree.map(lambda x: x[0], _stream(1))
    _, clean, state = agent.act(networks.online, fresh, row, greedy=True)
    _, after, other = agent.act(networks.online, worn, row, greedy=True)
    np.testing.assert_array_equal(clean.greatest, after.greatest)
    jax.tree.map(np.testing.assert_array_equal, state.memory, other.memory)
    continues = dataclasses.replace(row, is_first=np.zeros(8, bool))
    _, remembered, _ = agent.act(networks.online, worn, continues, greedy=True)
    assert not np.allclose(remembered.greatest, clean.greatest)


def test_act_explores_at_the_rate_of_each_environment(lived):
    agent, networks, _, _ = lived
    state = agent.init_actor_state(networks.online, 8, jax.random.key(0), 0)
    state = dataclasses.replace(state, epsilon=jnp.array([0.0] * 4 + [1.0] * 4))
    row = jax.tree.map(lambda x: x[0], _stream(1))
    greedy, _, _ = agent.act(networks.online, state, row, greedy=True)
    actions = []
    for _ in range(150):
        action, extras, state = _act(agent)(networks.online, state, row)
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


def test_replay_ratio_metric_is_the_configured_one(lived):
    agent, networks, _, experience = lived
    # 8 trajectories of 32 rows: 56 rows beyond the minimum, 16 × 56 / 96 = 9.33 updates.
    _, (_, metrics) = jax.jit(agent.loss)(networks, experience, jax.random.key(0), jnp.int32(9))
    assert sum(agent.num_updates_per_cycle(cycle) for cycle in range(8)) == 9
    np.testing.assert_allclose(metrics["replay_ratio"], 10 * 96 / 56)


def test_frames_stored_once_give_the_same_loss_as_whole_stacks():
    is_first = _stream(8 * LENGTH + 1, 2).is_first
    rng = np.random.default_rng(0)
    newest = rng.integers(0, 256, (8 * LENGTH + 1, 2, 36, 36), np.uint8)
    stacks = []
    for t in range(8 * LENGTH + 1):
        repeated = np.repeat(newest[t][:, None], 4, axis=1)
        pushed = np.concatenate([stacks[-1][:, 1:], newest[t][:, None]], 1) if t else repeated
        stacks.append(np.where(is_first[t][:, None, None, None], repeated, pushed))
    stream = dataclasses.replace(_stream(8 * LENGTH + 1, 2), observation=np.stack(stacks))
    extras = ActorQ(taken=jnp.zeros((LENGTH, 2)), greatest=jnp.ones((LENGTH, 2)))
    trajectories = [
        Trajectory(
            env_steps=jax.tree.map(lambda x: jnp.asarray(x[begin : begin + LENGTH + 1]), stream),  # noqa: B023
            action=jnp.asarray(rng.integers(0, NUM_ACTIONS, (LENGTH, 2)), jnp.int32),
            extras=extras,
        )
        for begin in range(0, 8 * LENGTH, LENGTH)
    ]
    run_spec = dataclasses.replace(
        RUN_SPEC,
        num_envs=2,
        environment=EnvironmentSpec(
            observation=jax.ShapeDtypeStruct((4, 36, 36), jnp.uint8),
            action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
        ),
    )
    config = dataclasses.replace(CONFIG, torso="dqn", batch_size=4, replay_capacity=56)
    whole = R2D2(config, run_spec)
    once = R2D2(dataclasses.replace(config, frame_stack=4), run_spec)
    networks = jax.jit(whole.init_networks)(jax.random.key(0))
    state = whole.init_actor_state(networks.online, 2, jax.random.key(0), 0)
    losses = []
    for agent in (whole, once):
        experience, update = agent.init_experience(networks, 2), jax.jit(agent.update_experience)
        for trajectory in trajectories:
            experience = update(networks, experience, state, state, trajectory, jnp.int32(0))
        assert experience.rows.env_step.observation.shape[2:] == (
            (4, 36, 36) if agent is whole else (36, 36)
        )
        # Only one sequence, so that both draw the same.
        mass = jnp.zeros_like(experience.mass).at[1, 4].set(1.0)
        experience = dataclasses.replace(experience, mass=mass)
        loss, (_, metrics) = jax.jit(agent.loss)(
            networks, experience, jax.random.key(0), jnp.int32(0)
        )
        assert float(metrics["replay_sequences"]) == 1.0
        losses.append(float(loss))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.mark.parametrize(
    "config, run_spec, message",
    [
        ({"batch_size": 6}, {"num_learner_devices": 4}, "agent.batch_size: expected a multiple"),
        ({"min_replay_rows": 79}, {}, "agent.min_replay_rows: expected at least 80"),
        ({"replay_capacity": 100}, {}, "agent.replay_capacity: 100 rows are 12 for each of 8"),
        ({"frame_stack": 4}, {}, "agent.frame_stack: expected one observation with 4 frames"),
        ({"torso": "dqn"}, {}, r"agent.torso: dqn expects one image .* got observations of \(2,\)"),
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
