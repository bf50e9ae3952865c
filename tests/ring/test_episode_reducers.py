"""Custom per-episode metrics: computed in the act cycle, written to the rows of metrics."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.hosts.agreement import message_type, read_infos, write_infos
from sebulba.run import training
from sebulba.types import Trajectory
from tests.faults.runs import make_config
from tests.ring_parts import (
    assert_same_infos,
    follow_episodes,
    load_reducers,
    make_episodes,
    make_info,
)
from tests.streams import random_env_steps


class FirstValueError:
    """The agent's value at an episode's start minus the episode's return."""

    def init(self, num_envs):
        return {"value": jnp.zeros(num_envs), "episode_return": jnp.zeros(num_envs)}

    def update(self, state, env_step, action, extras):
        value = jnp.where(env_step.is_first, extras["value"], state["value"])
        episode_return = state["episode_return"] + env_step.reward
        return {"value": value, "episode_return": episode_return}, value - episode_return


class NumLeft:
    """The number of times that action 0 was selected; the last row's action is ignored."""

    def init(self, num_envs):
        return jnp.zeros(num_envs)

    def update(self, state, env_step, action, extras):
        state = state + jnp.where(env_step.done, 0.0, (action == 0).astype(jnp.float32))
        return state, state


def track(reducers, env_steps, actions, values):
    """Returns the episodes that finish within the rows."""
    after_the_last = jax.tree.map(lambda x: np.concatenate([x, x[-1:]]), env_steps)
    trajectory = Trajectory(env_steps=after_the_last, action=actions, extras={"value": values})
    _, ended = follow_episodes(reducers, trajectory)
    return ended.episodes


def test_reducers_see_value_rewards_and_actions_of_their_episode_alone():
    num_rows, num_envs = 40, 3
    env_steps = random_env_steps(0, num_rows - 1, num_envs)
    env_steps.is_first[0] = True
    rng = np.random.default_rng(1)
    actions = rng.integers(0, 2, (num_rows, num_envs))
    values = rng.normal(size=(num_rows, num_envs)).astype(np.float32)
    reducers = {"first": FirstValueError(), "left": NumLeft()}
    episodes = track(reducers, env_steps, actions, values)
    expected = []
    starts = np.zeros(num_envs, int)
    for t in range(num_rows):
        for b in range(num_envs):
            if env_steps.is_first[t, b]:
                starts[b] = t
            if env_steps.done[t, b] and t > starts[b]:
                span = slice(starts[b], t + 1)
                value = values[starts[b], b]
                left = np.sum(actions[starts[b] : t, b] == 0)
                expected.append((value - env_steps.reward[span, b].sum(), left))
    got = np.stack([episodes.reduced["first"], episodes.reduced["left"]], axis=1)
    assert len(expected) > 5
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_run_writes_the_means_of_its_reducers(tmp_path):
    """On Catch every episode has nine choices."""
    reducers = {"chosen": "tests.ring.test_episode_reducers:NumChosen"}
    config = make_config(tmp_path / "run", run={"episode_reducers": reducers})
    assert training.train_to_exit_code(config) == 0
    rows = [
        json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert rows[-1]["episode/chosen"] == 9.0


class NumChosen:
    """Env steps of the episode."""

    def init(self, num_envs):
        return jnp.zeros(num_envs)

    def update(self, state, env_step, action, extras):
        state = state + jnp.where(env_step.done, 0.0, jnp.ones_like(state))
        return state, state


def test_hosts_report_reduced_episodes_to_each_other():
    episodes = make_episodes([1, 2], [3, 4], has_results=[True, False], a=[0.5, 0], b=[2, 0])
    info = make_info(episodes, env_steps=7)
    message = np.zeros((), message_type(1, 4, ("a", "b")))
    write_infos(message["unrolls"], [info], ("a", "b"))
    assert_same_infos(read_infos(message["unrolls"], ("a", "b")), [info])


def test_an_unknown_reducer_names_its_key():
    with pytest.raises(ConfigError, match=r"run\.episode_reducers\.error"):
        load_reducers({"error": "tests.ring.test_episode_reducers:Nothing"})


class NeedsSize:
    """Is constructed with an argument."""

    def __init__(self, size):
        self.size = size


class InitOnly:
    def init(self, num_envs):
        return ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NeedsSize", r"NeedsSize\(\) raised TypeError: .*'size'"),
        ("InitOnly", r"InitOnly has no method update"),
    ],
)
def test_what_is_no_reducer_is_refused_by_its_key(name, message):
    with pytest.raises(ConfigError, match=rf"^run\.episode_reducers\.mine: .*{message}"):
        load_reducers({"mine": f"{__name__}:{name}"})
