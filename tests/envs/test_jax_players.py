"""Tasks in JAX with several players."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import EnvConfig
from sebulba.envs import make_environment
from sebulba.errors import ConfigError
from tests.envs.leavers import Leavers

IN, STAY = 0, 1


def make(name, *, num_envs=1, wrappers=(), **options):
    config = EnvConfig(suite="jax", id=name, options=options, wrappers=wrappers)
    return make_environment(config, num_envs=num_envs, seed=0)


def test_players_leave_the_corridor_one_after_another():
    environment = make("Corridor-v0", players=3, cells=4, steps=9)
    row = environment.reset()
    cells = row.observation[:, :4].argmax(axis=-1)
    assert environment.spec.num_players == 3 and (cells > 0).all()
    for step in range(1, cells.max() + 1):
        row = environment.step(np.full(3, IN, np.int32))
        inside = np.mean(cells >= step)
        np.testing.assert_array_equal(row.terminated, cells <= step)
        expected = np.select([cells == step, cells > step], [1.0, -0.1 * inside], 0.0)
        np.testing.assert_allclose(row.reward, expected, rtol=1e-6)
    assert environment.step(np.full(3, IN, np.int32)).is_first.all()


def test_players_that_stay_in_the_corridor_are_truncated():
    environment = make("Corridor-v0", players=2, steps=3)
    environment.reset()
    rows = [environment.step(np.full(2, STAY, np.int32)) for _ in range(3)]
    assert rows[-1].truncated.all() and not any(row.terminated.any() for row in rows)


def test_the_action_of_a_player_that_is_out_reaches_no_task():
    environment = make("tests.envs.leavers:Leavers")
    row = environment.reset()
    while not row.done.any():
        row = environment.step(np.full(3, 3, np.int32))
    is_out = row.done
    state = environment.step(np.full(3, 3, np.int32))
    assert (state.observation[~is_out, 2] == 3).all()
    frozen = environment.whole_state.row
    np.testing.assert_array_equal(
        np.asarray(frozen.observation)[0][is_out], row.observation[is_out]
    )


@dataclasses.dataclass(frozen=True)
class ForgetsPlayers:
    """A wrapper without `num_players`."""

    task: Leavers

    def __getattr__(self, name):
        if name == "num_players":
            raise AttributeError(name)
        return getattr(self.task, name)


def test_a_wrapper_that_loses_the_number_of_players_is_refused():
    with pytest.raises(ConfigError, match=r"env.wrappers\[0\]: .* without num_players"):
        make("tests.envs.leavers:Leavers", wrappers=(f"{__name__}:ForgetsPlayers",))


class OneReward(Leavers):
    """Pays the team, not the players."""

    def step(self, state, action, key):
        state, observation, reward, *flags = super().step(state, action, key)
        return state, observation, jnp.sum(reward), *flags


def test_a_task_that_does_not_return_a_reward_of_each_player_is_refused():
    message = r"expected step.s reward to be float32\[3\], got float32\[\]"
    with pytest.raises(ConfigError, match=message):
        make(f"{__name__}:OneReward")


def test_the_state_of_a_task_without_players_has_no_row():
    environment = make("Catch-v0")
    environment.reset()
    assert environment.whole_state.row is None
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(environment.whole_state))


def test_the_tide_is_in_the_state_alone_and_leaves_a_return_as_it_is():
    environment = make("Tides-v0", num_envs=4, players=2, kinds=3, steps=6, swell=5.0, state=True)
    row = environment.reset()
    assert row.observation["observation"].shape == (8, 4)
    total = np.zeros(8)
    for step in range(6):
        seen, state = row.observation["observation"], row.observation["state"]
        np.testing.assert_allclose(seen[:, 3], step / 6, rtol=1e-6)
        fish = seen[:, :3].reshape(4, 2, 3)
        np.testing.assert_array_equal(state[:, 1:].reshape(4, 2, 6)[:, 1], fish.reshape(4, 6))
        action = seen[:, :3].argmax(axis=1).astype(np.int32)
        action[1::2] = (action[1::2] + 1) % 3  # The second player is wrong.
        row = environment.step(action)
        np.testing.assert_allclose(row.reward, 0.5 + 5.0 * (2 * state[:, 0] - 1), rtol=1e-6)
        np.testing.assert_array_equal(row.observation["state"][:, 0], 1 - state[:, 0])
        total += row.reward
    assert row.terminated.all() and not row.truncated.any()
    np.testing.assert_allclose(total, 3.0, rtol=1e-5)


def test_a_task_gives_its_state_only_if_it_is_asked_for():
    assert make("Tides-v0").spec.observation.shape == (5,)
    with pytest.raises(ConfigError, match=r"env.options.steps: expected an even number"):
        make("Tides-v0", steps=3)
