"""R2D2's loss against hand-fed numbers and a slow reference, over every kind of ending."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.devices.learner_devices import PER_DEVICE, REPLICATED, LearnerDevices
from sebulba.devices.mapping import map_over_learner_devices
from sebulba.toolkit import replay
from sebulba.toolkit.reductions import LEARNER_AXIS
from sebulba.toolkit.replay import SequenceIds
from sebulba.types import Clock, EnvironmentSpec, Trajectory
from sebulba_agents.q_learning import sequence_priority
from sebulba_agents.r2d2 import R2D2, ActorQ
from tests.agents.r2d2_life import (
    BURN_IN,
    CONFIG,
    LEARN,
    LENGTH,
    NUM_ACTIONS,
    RUN_SPEC,
    draw,
    jitted_loss,
    random_rows,
    remember,
    replay_spec,
    slow_priority,
    slow_td_error,
    unrolled_q,
)
from tests.agents.target_periods import check_copies_to_the_target
from tests.compiled import jitted


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
    sample = draw(experience)
    loss, priority, _ = jitted_loss(agent)(networks, sample)

    online, target = (
        unrolled_q(agent, p, sample.sequences) for p in (networks.online, networks.target)
    )
    weights = (np.asarray(sample.probability) * float(sample.num_sequences)) ** -0.6
    weights /= weights.max()
    losses = []
    for b in range(16):
        step = jax.tree.map(lambda x: np.asarray(x)[BURN_IN:, b], sample.sequences.rows.env_step)  # noqa: B023
        action = np.asarray(sample.sequences.rows.action)[BURN_IN:, b]
        q, row = online[BURN_IN:, b], np.arange(LEARN + 1)
        td_error = slow_td_error(step, q[row, action], target[BURN_IN:, b][row, q.argmax(axis=-1)])
        valid = ~(step.terminated | step.truncated)[:-1]
        np.testing.assert_allclose(priority[b], slow_priority(td_error, valid), rtol=1e-4)
        losses.append(weights[b] * 0.5 * np.sum(td_error**2))
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    flags = sample.sequences.rows.env_step
    assert flags.terminated[BURN_IN:].any() and flags.truncated[BURN_IN:].any()


def test_gradient_through_burn_in_and_autoreset_rows_is_exactly_zero(lived):
    agent, networks, _, experience = lived
    sample = draw(experience)
    env_step = sample.sequences.rows.env_step

    def loss(observation, lstm):
        rows = dataclasses.replace(
            sample.sequences.rows, env_step=dataclasses.replace(env_step, observation=observation)
        )
        recurrent = dataclasses.replace(sample.sequences.recurrent, lstm=lstm)
        sequences = replay.Sequences(rows=rows, recurrent=recurrent)
        return jitted_loss(agent)(networks, dataclasses.replace(sample, sequences=sequences))[0]

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
    sample = draw(experience)
    grads = jax.jit(jax.grad(lambda networks: agent.loss_of_sample(networks, sample, 0.6)[0]))(
        networks
    )
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads.target))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads.online))


@pytest.mark.parametrize("ending", ["truncated", "terminated", None])
def test_nothing_after_an_episodes_end_reaches_back(lived, ending):
    agent, networks, _, experience = lived
    sample = draw(experience)
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
        return jitted_loss(agent)(networks, dataclasses.replace(sample, sequences=sequences))[1]

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
    sample = draw(experience)

    def loss(probability):
        changed = dataclasses.replace(sample, probability=jnp.zeros(16).at[:2].set(probability))
        return float(jitted_loss(agent)(networks, changed)[0])

    # A probability of 0 weighs 0, so these are the losses of the first and of the second alone.
    first, second = loss(jnp.array([0.3, 0.0])), loss(jnp.array([0.0, 0.3]))
    expected = first + 0.25**0.6 * second
    np.testing.assert_allclose(loss(jnp.array([0.1, 0.4])), expected, rtol=1e-5)
    assert first > 0.0 and second > 0.0


def test_loss_writes_the_new_priorities_of_what_it_sampled(lived):
    agent, networks, _, experience = lived
    key = jax.random.key(0)
    _, (updated, _) = jitted(agent.loss)(networks, experience, key, Clock.at())
    sample = draw(experience)
    _, priority, _ = jitted_loss(agent)(networks, sample)
    slot = sample.ids.start // LENGTH % 6
    np.testing.assert_allclose(updated.mass[sample.ids.stream, slot], priority**0.9, rtol=1e-4)
    drawn = np.zeros((8, 6), bool)
    drawn[np.asarray(sample.ids.stream), np.asarray(slot)] = True
    np.testing.assert_array_equal(updated.mass[~drawn], experience.mass[~drawn])


def test_one_and_four_learner_devices_take_the_same_step(lived):
    agent, networks, trajectories, whole = lived
    four = R2D2(CONFIG, dataclasses.replace(RUN_SPEC, num_learner_devices=4))
    shards = [remember(four, networks, trajectories, slice(2 * d, 2 * d + 2)) for d in range(4)]
    samples = [draw(shards[d], seed=d, num_sequences=4, num_envs=2) for d in range(4)]
    opt_state = jitted(agent.init_opt_state)(networks)

    ids = SequenceIds(
        stream=jnp.concatenate([s.ids.stream + 2 * d for d, s in enumerate(samples)]),
        start=jnp.concatenate([s.ids.start for s in samples]),
    )
    together = replay.Sample(
        sequences=jax.jit(replay.read, static_argnums=0)(replay_spec(), whole, ids),
        ids=ids,
        probability=jnp.concatenate([s.probability for s in samples]),
        num_sequences=samples[0].num_sequences,
    )

    def step(agent, networks, opt_state, sample, average=lambda x: x):
        loss = lambda networks: agent.loss_of_sample(networks, sample, 0.6)[0]  # noqa: E731
        value, grads = average(jax.value_and_grad(loss)(networks))
        experience = agent.init_experience(networks, 8)
        return *agent.optimize(networks, opt_state, grads, experience, Clock.at()), value

    def on_device(networks, opt_state, sample):
        sample = jax.tree.map(lambda x: x[0], sample)
        return step(four, networks, opt_state, sample, lambda x: jax.lax.pmean(x, LEARNER_AXIS))

    learners = LearnerDevices(jax.devices()[:4])
    mapped = map_over_learner_devices(on_device, learners, out_specs=(REPLICATED,) * 3)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *samples)
    results = mapped(
        learners.replicate(networks), learners.replicate(opt_state), learners.split(stacked)
    )
    expected = jax.jit(step, static_argnums=0)(agent, networks, opt_state, together)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), results, expected)
    assert not np.allclose(results[2], 0.0)
    assert jax.tree.leaves(learners.split(stacked))[0].sharding.spec == PER_DEVICE


def test_optimize_copies_to_the_target_once_a_period_also_after_a_discarded_update(lived):
    agent, networks, _, experience = lived
    check_copies_to_the_target(agent, networks, experience)


def test_replay_ratio_metric_is_the_configured_one(lived):
    agent, networks, _, experience = lived
    # 8 trajectories of 32 rows: 56 rows beyond the minimum, 16 × 56 / 96 = 9.33 updates.
    _, (_, metrics) = jitted(agent.loss)(networks, experience, jax.random.key(0), Clock.at(9))
    assert sum(agent.num_updates_per_cycle(cycle) for cycle in range(8)) == 9
    np.testing.assert_allclose(metrics["replay_ratio"], 10 * 96 / 56)


def test_frames_stored_once_give_the_same_loss_as_whole_stacks():
    is_first = random_rows(8 * LENGTH + 1, 2).is_first
    rng = np.random.default_rng(0)
    newest = rng.integers(0, 256, (8 * LENGTH + 1, 2, 10, 10), np.uint8)
    stacks = []
    for t in range(8 * LENGTH + 1):
        repeated = np.repeat(newest[t][:, None], 4, axis=1)
        pushed = np.concatenate([stacks[-1][:, 1:], newest[t][:, None]], 1) if t else repeated
        stacks.append(np.where(is_first[t][:, None, None, None], repeated, pushed))
    stream = dataclasses.replace(random_rows(8 * LENGTH + 1, 2), observation=np.stack(stacks))
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
            observation=jax.ShapeDtypeStruct((4, 10, 10), jnp.uint8),
            action_space=gymnasium.spaces.Discrete(NUM_ACTIONS),
        ),
    )
    config = dataclasses.replace(CONFIG, network="small", batch_size=4, replay_capacity=56)
    whole = R2D2(config, run_spec)
    once = R2D2(dataclasses.replace(config, frame_stack=4), run_spec)
    networks = jax.jit(whole.init_networks)(jax.random.key(0))
    state = whole.init_actor_state(networks.online, 2, jax.random.key(0), 0)
    losses = []
    for agent in (whole, once):
        experience, update = agent.init_experience(networks, 2), jitted(agent.update_experience)
        for trajectory in trajectories:
            experience = update(networks, experience, state, state, trajectory, jnp.int32(0))
        assert experience.rows.env_step.observation.shape[2:] == (
            (4, 10, 10) if agent is whole else (10, 10)
        )
        # Only one sequence, so that both draw the same.
        mass = jnp.zeros_like(experience.mass).at[1, 4].set(1.0)
        experience = dataclasses.replace(experience, mass=mass)
        loss, (_, metrics) = jitted(agent.loss)(networks, experience, jax.random.key(0), Clock.at())
        assert float(metrics["replay_sequences"]) == 1.0
        losses.append(float(loss))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
