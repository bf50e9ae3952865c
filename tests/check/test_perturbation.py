"""Each perturbation changes what it means to change, by a stated size."""

import gymnasium
import jax
import numpy as np
import pytest

from sebulba.check import behaviour
from sebulba.check.perturbation import Perturbation, is_valid, other_rewards, other_values
from sebulba.check.recording import RecordedTrajectory
from sebulba.check.stored_policy import stored_log_probs, stored_policies
from sebulba.toolkit.distributions import Categorical, DiagonalGaussian, MultiCategorical
from sebulba.types import EnvStep, Trajectory
from tests.check.test_shipped import check_shipped, failures

ROWS = (4, 3)  # T, B


TWO = gymnasium.spaces.Discrete(2, dtype=np.int32)
THREE = gymnasium.spaces.Discrete(3, dtype=np.int32)
PAIRS = gymnasium.spaces.MultiDiscrete([2, 2], dtype=np.int32)
BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))


def recorded(action, extras, space=TWO):
    """Return a trajectory without ends, as recorded."""
    length, width = ROWS
    rng = np.random.default_rng(0)
    nowhere = np.zeros((length + 1, width), bool)
    env_steps = EnvStep(
        observation=rng.random((length + 1, width, 2), np.float32),
        reward=rng.random((length + 1, width), np.float32),
        terminated=nowhere,
        truncated=nowhere,
        is_first=nowhere,
    )
    trajectory = Trajectory(env_steps=env_steps, action=action, extras=extras)
    fields = dict.fromkeys(("initial_state", "final_state", "networks"))
    return RecordedTrajectory(
        actor_id=0, cycle=0, trajectory=trajectory, action_space=space, **fields
    )


def change(field, item, **options):
    perturbation = Perturbation(field=field, rows=is_valid, **options)
    return perturbation, perturbation.apply([item])[0]


def policy_of(kind, num_actions=2):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(*ROWS, num_actions)).astype(np.float32)
    if kind == "uniform":
        return Categorical(logits=np.zeros_like(logits)), np.zeros(ROWS, np.int32)
    if kind == "categorical":
        return Categorical(logits=logits), rng.integers(num_actions, size=ROWS, dtype=np.int32)
    if kind == "choices":
        choices = (Categorical(logits=logits), Categorical(logits=-logits))
        return MultiCategorical(choices=choices), np.zeros((*ROWS, 2), np.int32)
    mean = rng.normal(size=(*ROWS, 3)).astype(np.float32)
    action = (mean + rng.normal(size=mean.shape)).astype(np.float32)
    return DiagonalGaussian(mean=mean, log_std=np.zeros_like(mean)), action


@pytest.mark.parametrize("kind", ["uniform", "categorical", "choices", "gaussian"])
def test_another_stored_policy_changes_the_log_probability_of_every_action(kind):
    policy, action = policy_of(kind)
    space = {"choices": PAIRS, "gaussian": BOX}.get(kind, TWO)
    item = recorded(action, {"policy": policy}, space)
    perturbation, changed = change("extras", item)
    (before,), (after,) = map(stored_log_probs, (item, changed))
    assert np.min(np.abs(after - before)) > 0.2
    assert len([*perturbation.entries([item])]) == np.prod(ROWS)


def test_a_policy_that_is_certain_cannot_be_changed_and_counts_no_entry():
    logits = np.broadcast_to(np.float32([40.0, 0.0]), (*ROWS, 2))
    item = recorded(np.zeros(ROWS, np.int32), {"policy": Categorical(logits=logits)})
    perturbation, changed = change("extras", item)
    assert np.isfinite(jax.nn.log_softmax(changed.trajectory.extras["policy"].logits)).all()
    assert [*perturbation.entries([item])] == []


@pytest.mark.parametrize("shape", [(2, 5), (11,)])
def test_a_distribution_of_returns_is_no_policy(shape):
    atoms = Categorical(logits=np.zeros((*ROWS, *shape), np.float32))
    item = recorded(np.zeros(ROWS, np.int32), {"returns": atoms})
    assert stored_policies(item) == {}
    _, changed = change("extras", item)
    assert np.ptp(np.asarray(changed.trajectory.extras["returns"].logits), axis=-1).min() > 0.5


def test_no_mean_over_an_axis_moves_as_far_as_other_values_do():
    zeros = np.zeros((6, 6, 6), np.float32)
    for leaf in (zeros, zeros.astype(np.complex64)):
        shift = other_values(leaf)
        assert np.abs(shift).min() >= 0.25
        for axis in range(3):
            spread = np.abs(shift - shift.mean(axis=axis, keepdims=True))
            assert spread.min(axis=axis).max() > 0.1


def test_rewards_change_their_sign_and_a_tenth_at_least():
    reward = np.linspace(0.0, 0.9, 50, dtype=np.float32)
    assert np.all(other_rewards(reward) < 0.0)
    assert np.abs(other_rewards(reward) - reward).min() >= np.float32(0.1)


@pytest.mark.parametrize("limit", [None, 0.05, 1.0])
def test_rewards_beyond_a_bound_count_as_changed_within_it(limit):
    item = recorded(np.zeros(ROWS, np.int32), ())
    perturbation, changed = change("reward", item, reward_clip=limit)
    bound = np.inf if limit is None else limit
    pair = (np.clip(each.trajectory.env_steps.reward, -bound, bound) for each in (item, changed))
    assert np.abs(np.subtract(*pair)).min() >= min(0.1, bound)
    assert len([*perturbation.entries([item])]) == (ROWS[0] + 1) * ROWS[1]


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (gymnasium.spaces.Discrete(2), np.zeros(ROWS, np.int32)),
        (gymnasium.spaces.Box(-1.0, 1.0, (2,)), np.full((*ROWS, 2), 0.5, np.float32)),
    ],
)
def test_every_action_has_another_one(space, action):
    item = recorded(action, (), space)
    perturbation, changed = change("action", item)
    assert np.abs(changed.trajectory.action - action).min() >= 0.49
    assert len([*perturbation.entries([item])]) == np.prod(ROWS)


def test_an_only_action_has_no_other_one():
    space = gymnasium.spaces.Discrete(1, dtype=np.int32)
    item = recorded(np.zeros(ROWS, np.int32), (), space)
    perturbation, _ = change("action", item)
    assert [*perturbation.entries([item])] == []


def test_the_log_probability_of_an_action_changes_apart_from_that_of_the_mode():
    policy, action = policy_of("uniform", num_actions=3)
    action = np.resize(np.int32([1, 2]), ROWS)
    item = recorded(action, {"policy": policy}, THREE)
    base, other_action, other_mode = (
        behaviour._with_policies(item, each).trajectory.extras["policy"]
        for each in (behaviour._base, behaviour._actions_changed, behaviour._modes_changed)
    )

    def gap(other, taken):
        return float(np.max(np.abs(other.log_prob(taken) - base.log_prob(taken))))

    mode = np.asarray(base.mode())
    assert all(np.array_equal(each.mode(), mode) for each in (other_action, other_mode))
    assert (gap(other_action, mode), gap(other_mode, action)) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert gap(other_action, action) > 0.25 and gap(other_mode, mode) > 0.1


def test_the_stored_policy_of_two_actions_is_found_in_the_loss():
    assert failures(check_shipped("impala_cartpole", 8, only=["correction"])) == {}


@pytest.mark.slow
def test_values_relative_to_moments_of_rewards_are_learned():
    normalised = {"normalize_rewards": True, "reward_clip": 10.0, "normalize_observations": True}
    assert failures(check_shipped("ppo_cartpole", 8, only=["values"], **normalised)) == {}
