"""Observations of which a part is for the value function only."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.errors import ConfigError
from sebulba.toolkit.critic_observation import CriticObservation, SameObservation
from sebulba.types import EnvironmentSpec


def shape(*axes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(axes, dtype)


def spec_of(observation, choices=None):
    return EnvironmentSpec(
        observation=observation, action_space=gymnasium.spaces.Discrete(2), choices=choices
    )


def split(observation, key="state", choices=None):
    return CriticObservation(spec_of(observation, choices), key, setting="agent.key")


def test_the_policy_sees_what_is_left_of_a_dict_or_the_only_other_part():
    two = split({"a": shape(2), "b": shape(3), "state": shape(4)})
    assert two.policy_environment.observation == {"a": shape(2), "b": shape(3)}
    one = split({"observation": shape(2), "state": {"x": shape(4)}})
    assert one.policy_environment.observation == shape(2)
    complete = {"observation": np.ones(2), "state": {"x": np.zeros(4)}}
    assert one.of_policy(complete) is complete["observation"]
    assert one.of_policy(complete["observation"]) is complete["observation"]
    seen, of_value = one.of_value(complete["observation"], complete)
    assert seen is complete["observation"] and of_value is complete["state"]


@pytest.mark.parametrize("has_state_inside", [False, True])
def test_the_part_of_the_policy_is_completed_with_zeros(has_state_inside):
    inside = {"state": shape(2)} if has_state_inside else {"a": shape(2), "b": shape(3)}
    critic = split({"observation": inside, "state": shape(4, dtype=jnp.int32)})
    seen = jax.tree.map(lambda leaf: np.ones((5, 6, *leaf.shape)), inside)
    completed = critic.completed(seen, (5, 6))
    assert completed["observation"] is seen
    assert completed["state"].shape == (5, 6, 4) and completed["state"].dtype == jnp.int32
    assert critic.completed(completed, (5, 6)) is completed


def test_the_choices_of_each_part_stay_with_it():
    choices = ((), (range(3),), (range(2), range(4)))
    observation = {"a": shape(2), "b": shape(dtype=jnp.int32), "state": shape(2, dtype=jnp.int32)}
    critic = split(observation, choices=choices)
    assert critic.policy_environment.choices == choices[:2]
    assert critic.choices == choices[2:]
    assert split(observation, "a", choices).policy_environment.choices == choices[1:]
    assert split(observation, "a", choices).choices == choices[:1]
    assert dataclasses.replace(critic.policy_environment).observation_leaves[1].choices


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (shape(3), r"agent.key: expected an .* Dict with the key 'state', got .*env.options.state"),
        ({"a": shape(1), "states": shape(1)}, "got 'state'; did you mean states"),
        ({"state": shape(1)}, "expected one of several keys .* state, got 'state'"),
    ],
)
def test_an_observation_without_two_parts_is_refused_by_the_setting(observation, message):
    with pytest.raises(ConfigError, match=message):
        split(observation)


def test_without_a_part_both_see_the_observation():
    observation, features = {"a": np.ones(2)}, np.ones(3)
    same = SameObservation()
    assert same.of_policy(observation) is observation
    assert same.of_value(features, observation) is features
    assert same.completed(observation, (5, 6)) is observation
