"""Skills: drawn per episode, and rewarded for states that distinguish them."""

import csv
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.config import DevicesConfig
from sebulba.config.loading import load_config
from sebulba.run import training
from sebulba.types import Clock, Trajectory
from sebulba_agents.config import SkillsConfig
from sebulba_agents.skills import SkillsAgent
from tests.compiled import jitted
from tests.on_policy import LENGTH, NUM_ENVS, make_run_spec, make_stream, to_device

NUM_SKILLS = 4


@pytest.fixture(scope="module")
def acted():
    """Return agent, networks, and a trajectory that was acted from a stream with resets."""
    config = SkillsConfig(num_skills=NUM_SKILLS, hidden_sizes=(8,), reward_weight=0.5)
    agent = SkillsAgent(config, make_run_spec())
    networks = jitted(agent.init_networks)(jax.random.key(0))
    env_steps = to_device(make_stream())
    state = initial = agent.init_actor_state(networks, NUM_ENVS, jax.random.key(1), 0)
    act = jitted(agent.act, static_argnames="greedy")
    rows = []
    for t in range(LENGTH):
        row = jax.tree.map(lambda x, t=t: x[t], env_steps)
        action, extras, state = act(networks, state, row, greedy=False)
        rows.append((action, extras))
    action, extras = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    trajectory = Trajectory(env_steps=env_steps, action=action, extras=extras)
    return agent, networks, initial, state, trajectory


def test_a_skill_is_drawn_where_an_episode_begins_and_kept_until_its_end(acted):
    *_, trajectory = acted
    skill = np.asarray(trajectory.extras.skill)
    is_first = np.asarray(trajectory.env_steps.is_first[:-1])
    changes = skill[1:] != skill[:-1]
    assert changes.any() and not changes[~is_first[1:]].any()
    assert skill.min() >= 0 and skill.max() < NUM_SKILLS


def test_the_learner_is_rewarded_for_states_that_reveal_the_skill(acted):
    agent, networks, initial, final, trajectory = acted
    experience = jitted(agent.update_experience)(
        networks,
        agent.init_experience(networks, NUM_ENVS),
        initial,
        final,
        trajectory,
        jnp.int32(0),
    )
    posterior = jax.nn.softmax(
        agent._discriminate(networks.discriminator, trajectory.env_steps.observation).logits
    )
    skill = np.asarray(trajectory.extras.skill)
    valid = np.asarray(trajectory.valid)
    q = np.take_along_axis(np.asarray(posterior)[1:], skill[..., None], axis=-1)[..., 0]
    expected = np.log(q) + np.log(NUM_SKILLS) + 0.5 * np.asarray(trajectory.env_steps.reward)[1:]
    got = np.asarray(experience.trajectory.env_steps.reward)[1:]
    np.testing.assert_allclose(got[valid], expected[valid], rtol=1e-5, atol=1e-6)
    shown = np.asarray(experience.trajectory.env_steps.observation["skill"]).argmax(axis=-1)
    np.testing.assert_array_equal(shown[:-1], skill)
    np.testing.assert_array_equal(shown[1:][valid], skill[valid])


def test_the_skill_of_a_terminated_row_has_no_effect(acted):
    agent, networks, initial, final, trajectory = acted
    is_over = trajectory.env_steps.terminated[:-1]
    assert is_over.any()

    @jax.jit
    def loss(trajectory):
        experience = agent.init_experience(networks, NUM_ENVS)
        experience = agent.update_experience(
            networks, experience, initial, final, trajectory, jnp.int32(0)
        )
        return agent.loss(networks, experience, jax.random.key(0), Clock.at())[0]

    def with_others(rows):
        skill = trajectory.extras.skill
        skill = jnp.where(rows, (skill + 1) % NUM_SKILLS, skill)
        extras = dataclasses.replace(trajectory.extras, skill=skill)
        return dataclasses.replace(trajectory, extras=extras)

    assert loss(with_others(is_over)) == loss(trajectory)
    assert loss(with_others(~is_over)) != loss(trajectory)


@pytest.mark.slow
def test_skills_in_a_room_become_distinguishable(tmp_path):
    """By chance a discriminator is right a quarter of the time."""
    flags = ["--run-dir", str(tmp_path / "run"), "--seed", "1011"]
    config = load_config("configs/skills_room.yaml", [*flags, "--run.total-env-steps", "40_000"])
    config = dataclasses.replace(config, devices=DevicesConfig(actor=(0,), learner=(0,)))
    assert training.train_to_exit_code(config) == 0
    with (tmp_path / "run" / "metrics.csv").open() as file:
        accuracy = [float(row["discriminator_accuracy"]) for row in csv.DictReader(file)]
    assert accuracy[0] < 0.5 and accuracy[-1] > 0.7
