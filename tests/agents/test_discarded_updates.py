"""Phases of agents where some updates are discarded because they are not finite."""

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit.minibatches import next_minibatch
from sebulba.types import Clock
from sebulba_agents.config import PPOConfig
from sebulba_agents.ppo import PPO
from tests.compiled import jitted
from tests.on_policy import LENGTH, NUM_ENVS, act_along_stream, make_run_spec, make_stream

NUM_UPDATES = 4


def learn(bad_steps, *, num_cycles=3, **changes):
    """Take updates as the learner does, and discard some.

    Returns:
        Per step: the number of observations merged into the moments, and the entries learned from.
    """
    config = PPOConfig(hidden_sizes=(8,), normalize_observations=True, **changes)
    agent = PPO(config, make_run_spec())
    networks = jitted(agent.init_networks)(jax.random.key(0))
    opt_state = jitted(agent.init_opt_state)(networks)
    experience = agent.init_experience(networks, NUM_ENVS)
    grad = jax.jit(jax.grad(agent.loss, has_aux=True))
    optimize, update = jitted(agent.optimize), jitted(agent.update_experience)
    initial, trajectory = act_along_stream(agent, networks, make_stream(done_probability=0.0))
    merged, chosen, previous = [], [], -1
    for step in range(num_cycles * NUM_UPDATES):
        if step % NUM_UPDATES == 0:
            experience = update(networks, experience, initial, initial, trajectory, jnp.int32(0))
        clock = Clock.at(step, previous_step=previous)
        grads, (after, _) = grad(networks, experience, jax.random.key(step), clock)
        if step not in bad_steps:
            networks, opt_state = optimize(networks, opt_state, grads, after, clock)
            experience, previous = after, step
        merged.append(int(networks.normalization.observation[0].count))
        chosen.append(np.asarray(next_minibatch(after, clock, config.num_minibatches)))
    return merged, chosen


def test_moments_move_with_a_cycles_last_update_also_after_a_discarded_one():
    rows = LENGTH * NUM_ENVS
    merged, _ = learn({5}, num_epochs=2, num_minibatches=2)
    assert merged == [rows * cycles for cycles in (0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3)]


def test_moments_leave_out_a_cycle_whose_last_update_is_discarded():
    rows = LENGTH * NUM_ENVS
    merged, _ = learn({3}, num_epochs=2, num_minibatches=2)
    assert merged == [rows * cycles for cycles in (0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2)]


def test_applied_updates_of_an_epoch_never_learn_twice_from_an_entry():
    _, chosen = learn({4}, num_epochs=2, num_minibatches=2)
    # The epoch of steps 4 and 5 lost its first half.
    orders = [np.sort(np.concatenate(chosen[i : i + 2])) for i in (0, 2, 6, 8, 10)]
    np.testing.assert_array_equal(orders, [np.arange(LENGTH * NUM_ENVS)] * 5)
    assert not np.array_equal(chosen[3], chosen[5])
