"""The arithmetic of single questions, on numbers made by hand."""

import dataclasses
import types

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.check import (
    acting,
    direction,
    learner_devices,
    memory,
    parts,
    perturbation,
    policy,
    priorities,
    ratios,
    recording,
    result,
    stored_policy,
    temperature,
    training,
    update_run,
    values,
)
from sebulba.toolkit import distributions
from tests.check.faulty_base import faulty
from tests.check.test_faults import R2D2
from tests.check.test_perturbation import recorded
from tests.check.test_settings import subject_of

LEAVES = {"online": np.zeros(2), "target": np.zeros(2)}


def some_updates(copies, publishes=range(9)):
    changes = np.ones((9, 2), bool)
    changes[:, 1] = np.isin(np.arange(9), copies)
    return update_run.UpdateRun(
        paths=[path for path, _ in jax.tree_util.tree_leaves_with_path(LEAVES)],
        changes=changes,
        gradient_sizes=np.array([1.0, 0.0]),
        publishes=np.isin(np.arange(9), publishes),
        first=None,
    )


@pytest.mark.parametrize("copies", [(2, 5, 8), (0, 3, 6), (3, 6)])
def test_a_target_network_may_be_copied_before_or_after_the_first_period(copies):
    assert parts.wrong_period(some_updates(copies)) is None


@pytest.mark.parametrize("copies", [(4, 7), (1, 3, 5, 7), range(9)])
def test_another_target_period_than_the_declared_one_is_found(copies):
    answer = parts.wrong_period(some_updates(copies))
    assert answer.detail.startswith("networks.target (updates ")


def test_actors_that_get_new_networks_with_copies_only_are_told_apart():
    assert parts.publishes_copies_only(some_updates((2, 5, 8), publishes=(2, 5, 8)))
    assert not parts.publishes_copies_only(some_updates((2, 5, 8)))
    assert not parts.publishes_copies_only(some_updates(range(9)))


@pytest.mark.parametrize(("first", "fixed"), [(0.0, []), (5.0, [1])])
def test_a_part_that_never_changes_may_stay_random_but_not_a_copy(first, fixed):
    initial = {"online": np.arange(2.0), "target": np.arange(first, first + 2.0)}
    assert parts.fixed_leaves(some_updates(copies=()), lambda: initial).tolist() == fixed
    assert parts.fixed_leaves(some_updates(copies=(2,)), lambda: initial).tolist() == []


def test_an_action_of_several_choices_is_legal_if_all_of_them_are():
    space = gymnasium.spaces.MultiDiscrete([2, 3])
    mask = np.array([True, False, False, True, True])
    action = np.array([[[0, 1], [0, 0], [1, 1]]])
    legal = acting._is_legal(action, np.broadcast_to(mask, (1, 3, 5)), space)
    assert legal.tolist() == [[True, False, False]]


@pytest.mark.parametrize(
    ("after", "status"),
    [
        ({40: (1, 0), 160: (1, 0), 3: (0, 0), 10: (1, 0)}, "unclear"),  # one row of 16 changes
        ({40: (0, 1), 160: (0, 1), 3: (0, 0), 10: (0, 1)}, "unclear"),
        ({40: (2, 0)}, "pass"),
        ({40: (0, 0), 160: (2, 0)}, "pass"),
        ({40: (0, 2), 160: (9, 0)}, "pass"),  # it learned slowly
        ({40: (9, 9), 160: (9, 9), 3: (0, 0), 10: (0, 0)}, "unclear"),  # whatever the reward is
        ({40: (9, 9), 160: (9, 9), 3: (0, 2), 10: (0, 0)}, "fail"),  # it began in the wrong way
        ({40: (0, 2), 160: (0, 0), 3: (0, 0), 10: (0, 0)}, "fail"),
    ],
)
def test_an_action_has_to_be_preferred_in_two_rows_more_with_rewards_than_with_penalties(
    after, status, monkeypatch
):
    """Networks are the number of rows of 16 whose greedy action is the rewarded one.

    `after` has those after rewards and after penalties, by the number of updates.
    """

    def acted(networks):
        return (np.arange(16) < networks).astype(np.int32)[:, None], []

    item = types.SimpleNamespace(trajectory=types.SimpleNamespace(action=np.ones((1, 1), np.int32)))
    monkeypatch.setattr(direction, "in_steps", lambda items, reward: reward(item).item())
    trainer = types.SimpleNamespace(
        policy=types.SimpleNamespace(acted=acted),
        sensitivity=types.SimpleNamespace(items=[], networks=0, networks_of=lambda _: 0),
        train=lambda reward, start, *, num_updates: after[num_updates][0 if reward > 0.0 else 1],
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


@pytest.mark.parametrize(
    ("gap", "of_orders", "is_accused"),
    [
        (1e-7, 1e-7, False),  # as other orders of the same sum
        (1e-7, 1e-9, True),  # no order explains it
        (1e-3, 1e-3, True),  # the order matters: no rounding
    ],
)
def test_a_gradient_whose_terms_cancel_differs_on_two_devices_by_their_rounding(
    gap, of_orders, is_accused
):
    """The terms of the leaf `bias` cancel to 1e-5; those of `kernel` have a sum of 1."""
    one = types.SimpleNamespace(
        sizes=np.array([1e-5, 1.0]),
        names=["bias", "kernel"],
        rounding_of_orders=lambda: np.full(8, of_orders),
    )
    gradients = np.repeat([1e-5, 1.0], 4)
    others = gradients + np.eye(8)[0] * gap
    samples = [np.stack([each, each]) for each in (gradients, others)]
    failure = learner_devices._difference(samples, one, is_sampled=False)
    assert bool(failure) == is_accused
    assert not failure or failure.startswith("bias, projected")


def test_other_orders_of_the_environments_have_the_same_rows_and_states_in_other_places():
    rows = np.arange(6.0).reshape(2, 3)
    item = recording.RecordedTrajectory(
        actor_id=0,
        cycle=0,
        initial_state={"memory": rows[0], "key": np.arange(3)},
        final_state={"memory": rows[1], "key": np.arange(3)},
        trajectory=rows,
        networks=None,
        action_space=None,
    )
    axes = {"memory": 0, "key": -1}
    found = learner_devices.reordered(item, np.array([2, 0, 1]), axes)
    np.testing.assert_array_equal(found.trajectory, rows[:, [2, 0, 1]])
    np.testing.assert_array_equal(found.initial_state["memory"], [2.0, 0.0, 1.0])
    np.testing.assert_array_equal(found.initial_state["key"], np.arange(3))


def in_bfloat16(number):
    return np.full((2, 2), number, jnp.bfloat16)


def test_gradients_in_bfloat16_have_a_norm_and_the_rounding_of_their_digits():
    leaf = in_bfloat16(1.0)
    assert update_run.norms([leaf]) == 2.0
    assert learner_devices._size(leaf) == 2**16 * learner_devices._size(leaf.astype(np.float32))


def test_numbers_in_bfloat16_are_equal_within_a_tolerance():
    leaf, other = in_bfloat16(1.0), in_bfloat16(1.0 + 2**-7)
    found = result.first_difference(leaf, other, what="leaf", axes=(), tolerance=0.01)
    assert found is None
    assert policy.differs([leaf], [other])


def test_other_values_in_bfloat16_are_other_numbers_of_a_known_distance():
    leaf, lowest = in_bfloat16(0.5), in_bfloat16(-np.inf)
    assert perturbation._distance(leaf, perturbation.other_values(leaf)).min() > 0.2
    assert perturbation._distance(lowest, lowest).max() == 0.0


def test_no_factor_is_measured_between_differences_that_are_rounding():
    """The bias of two actions has gradients (x, −x), which have one direction, rounding or not."""
    more = [np.array([1.0, -1.0]), np.array([1.0, 2.0, 3.0])]
    less = [np.array([1.0 - 1e-6, -1.0 + 1e-6]), np.array([1.5, 2.0, 3.0])]
    bias, kernel = training.differences(more, less)
    assert np.isnan(factor(bias, np.array([1.0, -1.0])))
    np.testing.assert_array_equal(kernel, [-0.5, 0.0, 0.0])


def factor(before, after):
    with np.errstate(invalid="ignore"):
        return training.factor_between(before, after)


@pytest.mark.parametrize(("change", "status"), [(1e-6, "pass"), (1e-2, "fail")])
def test_values_whose_errors_cancel_in_a_bias_may_differ_by_the_rounding_of_others(change, status):
    """The gradients of the bias cancel to 1e-4; those of the kernel are about 1."""
    of_policy = [np.ones(3), np.ones((2, 2)), np.ones(1)]  # moves values of 0 without a reward
    gradients = iter(
        [
            of_policy,
            of_policy,
            [np.ones(3), np.ones((2, 2)), np.full(1, 1e-4)],
            [np.zeros(3), np.ones((2, 2)), np.full(1, 1e-4 + change)],
        ]
    )
    networks = [jnp.zeros(3), jnp.zeros((2, 2)), jnp.zeros(1)]
    spec = types.SimpleNamespace(
        environment=types.SimpleNamespace(action_space=gymnasium.spaces.Box(-1.0, 1.0, (1,)))
    )
    trainer = types.SimpleNamespace(
        subject=types.SimpleNamespace(run_spec=spec),
        sensitivity=types.SimpleNamespace(
            items=[], networks=networks, is_on_policy=False, has_effect=lambda items: False
        ),
        policy=types.SimpleNamespace(is_acting=[True, False, False]),
        mean_gradients=lambda *_: next(gradients),
        place="actor 0",
    )
    function = types.SimpleNamespace(
        trainer=trainer,
        leaves=[False, True, True],
        policy_leaves=[True, False, False],
        zeroed=lambda networks: networks,
    )
    answer = values._depends_on_policy(function)
    assert ("fail" if answer else "pass") == status


@pytest.mark.parametrize(
    ("narrow", "wide", "weight", "status"),
    [
        (0.2, 0.4, 1.0, "pass"),
        (0.4, 0.2, 1.0, "fail"),
        (0.4, 0.401, 1.0, "fail"),  # another weight of the entropy that leaves it as it is
        (0.4, 0.401, 0.0, "unclear"),
        (0.4, 0.399, 0.0, "unclear"),
    ],
)
def test_a_target_entropy_that_moves_neither_the_entropy_nor_its_weight_proves_nothing(
    monkeypatch, narrow, wide, weight, status
):
    """Networks are the weight of the entropy, positive if it is learned for a high target."""

    def trainer_of(subject, sensitivity, *, target_entropy):
        learned = np.float32(np.copysign(weight, target_entropy))
        return types.SimpleNamespace(train=lambda items, *, num_updates: learned)

    monkeypatch.setattr(temperature, "Trainer", trainer_of)
    monkeypatch.setattr(temperature, "chosen", lambda leaves, new, old: new)
    monkeypatch.setattr(temperature, "_weights", lambda trainer, networks: ())
    space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    environment = types.SimpleNamespace(action_space=space)
    trainer = types.SimpleNamespace(
        subject=types.SimpleNamespace(
            discounts=[0.9], run_spec=types.SimpleNamespace(environment=environment)
        ),
        sensitivity=types.SimpleNamespace(items=[], networks=0.0),
        policy=types.SimpleNamespace(
            spread=lambda networks: narrow if np.signbit(networks) else wide, is_acting=[False]
        ),
    )
    assert temperature.check_target_entropy(trainer).status == status


def test_the_high_target_of_discrete_actions_is_near_the_entropy_of_equal_probabilities():
    for space in (gymnasium.spaces.Discrete(6), gymnasium.spaces.MultiDiscrete([2, 3])):
        assert 0.95 * np.log(6) < temperature.high_target(space) < np.log(6)


@pytest.mark.parametrize(
    ("of_reward", "status"),
    [(1.0, "fail"), (1e-7, "skip")],
)
def test_the_weight_of_a_likely_draw_is_not_measured_in_rounding(monkeypatch, of_reward, status):
    """Rewards of likely draws count as often as they are drawn: there are no importance weights."""

    class Loss:
        replay = types.SimpleNamespace(mass=np.ones((2, 1)))
        path, rewards = (), np.full((2, 1), 0.5)

        def gradients(self, rewards, mass, draw):
            return np.array([1.0, of_reward * mass[0, 0] * rewards[0, 0]])

    monkeypatch.setattr(priorities, "_Priorities", lambda *_: Loss())
    evidence = types.SimpleNamespace(
        subject=types.SimpleNamespace(setting=lambda *names: 1.0),
        loss_with=lambda **settings: types.SimpleNamespace(items=[]),
    )
    assert priorities.importance(evidence).status == status


class CountsRows:
    """Always takes action 2, and counts to 3; its memory reaches no further back."""

    def act(self, networks, state, row, *, greedy):
        count, action = jnp.minimum(state["count"] + 1, 3), jnp.full_like(state["last"], 2)
        return action, {"age": count}, {"count": count, "last": action}


def test_a_counter_that_equals_the_last_action_for_once_is_not_taken_for_it():
    item = recorded(np.full((4, 3), 2, np.int32), extras=())
    items = [
        dataclasses.replace(
            item,
            initial_state={"count": np.full(3, 3), "last": np.full(3, 2)},
            final_state={"count": np.full(3, count), "last": np.full(3, 2)},
        )
        for count in (2, 3)
    ]
    (last,) = memory.last_action_leaves(items)
    assert jax.tree_util.keystr(last) == "['last']"
    subject = types.SimpleNamespace(agent=CountsRows(), start_states=[items[0].initial_state])
    axes = {"count": 0, "last": 0}
    assert len([*memory.remembered(subject, items, axes, num_rows=1)]) == 1
    assert [*memory.remembered(subject, items, axes, num_rows=6)] == []


def test_the_burn_in_of_a_wrapped_agent_is_known():
    run_spec = types.SimpleNamespace(trajectory_length=8)
    subject = subject_of(faulty("SameKey", R2D2), run_spec=run_spec)
    assert memory.burn_in_length(subject) == R2D2.burn_in
