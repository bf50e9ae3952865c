"""The arithmetic of single questions, on numbers made by hand."""

import types

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.check import acting, direction, ratios, stored_policy, updates
from sebulba.toolkit import distributions

LEAVES = {"online": np.zeros(2), "target": np.zeros(2)}


def wrong_period(copies, publishes=range(9)):
    changes = np.ones((9, 2), bool)
    changes[:, 1] = np.isin(np.arange(9), copies)
    run = updates.UpdateRun(
        paths=[path for path, _ in jax.tree_util.tree_leaves_with_path(LEAVES)],
        changes=changes,
        gradient_sizes=np.array([1.0, 0.0]),
        publishes=np.isin(np.arange(9), publishes),
        first=None,
    )
    answer = updates.wrong_period(run)
    return answer and answer.detail


@pytest.mark.parametrize("copies", [(2, 5, 8), (0, 3, 6), (3, 6)])
def test_a_target_network_may_be_copied_before_or_after_the_first_period(copies):
    assert wrong_period(copies) is None


@pytest.mark.parametrize("copies", [(4, 7), (1, 3, 5, 7), range(9)])
def test_another_target_period_than_the_declared_one_is_found(copies):
    assert wrong_period(copies).startswith("networks.target (updates ")


def test_actors_that_get_the_target_network_are_found():
    assert wrong_period((2, 5, 8), publishes=(2, 5, 8)).startswith("actor_networks (updates 0 … 8)")


def test_an_action_of_several_choices_is_legal_if_all_of_them_are():
    space = gymnasium.spaces.MultiDiscrete([2, 3])
    mask = np.array([True, False, False, True, True])
    action = np.array([[[0, 1], [0, 0], [1, 1]]])
    legal = acting._is_legal(action, np.broadcast_to(mask, (1, 3, 5)), space)
    assert legal.tolist() == [[True, False, False]]


@pytest.mark.parametrize(("num_taken", "status"), [(1, "unclear"), (2, "fail")])
def test_a_greedy_action_that_changes_in_one_row_is_no_preference(num_taken, status):
    """Networks are the number of rows of 16 whose greedy action is the rewarded one."""

    def acted(networks):
        return (np.arange(16) < networks).astype(np.int32)[:, None], []

    trainer = types.SimpleNamespace(
        policy=types.SimpleNamespace(acted=acted),
        sensitivity=types.SimpleNamespace(items=[], networks=num_taken, networks_of=lambda _: 2),
        train=lambda items, start, *, num_updates: 0,
    )
    answer, _ = direction._reward_twice(trainer, 1)
    assert answer.status == status


E = float(np.exp(0.5))


@pytest.mark.parametrize(
    ("likelier", "rarer", "fault"),
    [
        (1.0 / E, E, ""),  # importance weights
        (1.0 / E, 1.0, ""),  # clipped at 1
        (1.0 / E, 0.0, ""),  # PPO
        (0.8, 1.25, ""),  # divided by their mean
        (1.8, -3.7, ""),  # a penalty of the distance to the behaviour policy
        (0.99, 1.02, ""),  # a value function outweighs the policy
        (1.0, 0.0, "clipped"),  # a bound of ratios without weights
        (1.0, E, "clipped"),  # clipped at 1 from below
        (1.0, 1.0 / E, "clipped"),  # of the opposite sign, clipped at 1
        (E, 1.0 / E, "excessive"),  # of the opposite sign
        (1.0 / E**2, E**2, "excessive"),  # applied twice
        (np.nan, 1.0, ""),
    ],
)
def test_weights_that_no_importance_weight_has_are_faults(likelier, rarer, fault):
    weights = ratios._Weights(likelier=likelier, rarer=rarer, leaf="", acts=True)
    assert weights.is_clipped_wrongly == (fault == "clipped")
    assert weights.is_excessive == (fault == "excessive")


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_the_stored_policy_of_an_action_changes_by_the_shift_alone(shift):
    logits = np.float32([[[0.3, -np.inf, 0.1, -1.0], [1.0, 0.0, 0.0, 0.0]]])
    policy = distributions.Categorical(logits=logits)
    changed = stored_policy.shifted(policy, np.int32([[2, 0]]), np.float32([[shift, 0.0]]))
    before, after = (jax.nn.log_softmax(each.logits) for each in (policy, changed))
    np.testing.assert_allclose(after[0, 0, 2] - before[0, 0, 2], shift, rtol=1e-5)
    np.testing.assert_allclose(after[0, 0, 0] - after[0, 0, 3], 1.3, rtol=1e-5)
    np.testing.assert_allclose(np.exp(after).sum(axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(after[0, 1], before[0, 1])


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_the_stored_density_of_an_action_changes_by_the_shift_alone(shift):
    rng = np.random.default_rng(0)
    mean, log_std, action = rng.normal(size=(3, 1, 2, 4)).astype(np.float32)
    policy = distributions.DiagonalGaussian(mean=mean, log_std=log_std)
    after = stored_policy.shifted(policy, action, np.float32([[shift, 0.0]]))
    change = after.log_prob(action) - policy.log_prob(action)
    np.testing.assert_allclose(change, [[shift, 0.0]], atol=1e-5)
