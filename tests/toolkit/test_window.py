"""The window of the newest trajectories."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.window import Window, init_window, push
from sebulba.types import EnvStep, Trajectory
from tests.toys import OBSERVATION_SIZE, ToyAgent, ToyConfig, ToyState, toy_run_spec

LENGTH, NUM_ENVS = 5, 4


def make_trajectory(number, episode_over=None):
    """Return a trajectory that has its number in every leaf."""
    rows, steps = (LENGTH + 1, NUM_ENVS), (LENGTH, NUM_ENVS)
    flags = np.full(rows, number % 2 == 1)
    return Trajectory(
        env_steps=EnvStep(
            observation=np.full((*rows, OBSERVATION_SIZE), number, np.float32),
            reward=np.full(rows, number, np.float32),
            terminated=flags,
            truncated=flags,
            is_first=flags,
            episode_over=episode_over,
        ),
        action=np.full(steps, number, np.int32),
        extras={
            "logits": np.full((*steps, 2), number, np.float32),
            "count": np.full(steps, number, np.int32),
        },
    )


def make_window(num_trajectories):
    run_spec = toy_run_spec(trajectories_per_cycle=num_trajectories, trajectory_length=LENGTH)
    agent = ToyAgent(ToyConfig(), run_spec)
    networks = jax.jit(agent.init_networks)(jax.random.key(0))
    init = jax.jit(
        lambda networks: init_window(
            agent, networks, run_spec, NUM_ENVS, keep=lambda state: state.count
        )
    )
    return init(networks)


# As in a run: one program, and not one for each operation.
jitted_push = jax.jit(push)


def push_number(window, number, **kwargs):
    count = np.full(NUM_ENVS, number, np.int32)
    return jitted_push(window, count, make_trajectory(number, **kwargs))


def columns(window):
    """Return the trajectory numbers along the environment axis of every leaf."""
    window = jax.device_get(window)
    leaves = [window.trajectory.action, window.trajectory.extras["count"]]
    leaves += [window.trajectory.env_steps.reward, window.trajectory.env_steps.observation[..., 0]]
    rows = [leaf[0] for leaf in leaves] + [window.initial]
    for row in rows[1:]:
        np.testing.assert_array_equal(row, rows[0])
    return rows[0][::NUM_ENVS].astype(int).tolist()


@pytest.mark.parametrize("num_trajectories", [1, 3])
def test_init_window_has_the_shapes_and_dtypes_of_what_comes(num_trajectories):
    window = make_window(num_trajectories)
    expected = make_trajectory(0)
    wide = jax.tree.map(lambda x: np.concatenate([x] * num_trajectories, axis=1), expected)
    chex.assert_trees_all_equal_shapes_and_dtypes(window.trajectory, wide)
    assert not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(window.trajectory))
    assert window.initial.shape == (num_trajectories * NUM_ENVS,)


def test_push_keeps_shapes_so_that_a_jitted_cycle_compiles_once():
    window = make_window(2)
    pushed = jax.eval_shape(lambda window: push_number(window, 1), window)
    chex.assert_trees_all_equal_shapes_and_dtypes(pushed, window)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(pushed))


def test_a_window_of_one_is_the_newest_trajectory():
    window = make_window(1)
    for number in (1, 2):
        window = push_number(window, number)
        assert columns(window) == [number]
        chex.assert_trees_all_equal(window.trajectory, make_trajectory(number))


def test_a_window_of_three_holds_the_newest_three_and_after_each_cycle_in_their_order():
    window = make_window(3)
    held = []
    for number in range(1, 7):
        window = push_number(window, number)
        held.append(columns(window))
    assert held == [[1, 0, 0], [1, 2, 0], [1, 2, 3], [4, 2, 3], [4, 5, 3], [4, 5, 6]]


def test_valid_belongs_to_each_trajectory_by_itself():
    window = push_number(push_number(make_window(2), 1), 2)
    valid = np.asarray(window.trajectory.valid)
    assert not valid[:, :NUM_ENVS].any() and valid[:, NUM_ENVS:].all()


def test_push_drops_what_only_statistics_need():
    over = np.zeros((LENGTH + 1, NUM_ENVS), bool)
    window = push_number(make_window(1), 1, episode_over=over)
    assert isinstance(window, Window)
    assert window.trajectory.env_steps.episode_over is None


def test_a_recurrent_state_may_be_any_pytree_or_nothing():
    run_spec = toy_run_spec(trajectories_per_cycle=2)
    agent = ToyAgent(ToyConfig(), run_spec)
    networks = jax.jit(agent.init_networks)(jax.random.key(0))

    def keep(state: ToyState):
        return {"twice": (state.count, state.count), "nothing": ()}

    window = init_window(agent, networks, run_spec, NUM_ENVS, keep=keep)
    count = jnp.arange(NUM_ENVS, dtype=jnp.int32)
    window = push(window, {"twice": (count, count + 1), "nothing": ()}, make_trajectory(1))
    np.testing.assert_array_equal(window.initial["twice"][1], [1, 2, 3, 4, 0, 0, 0, 0])
    assert window.initial["nothing"] == ()
