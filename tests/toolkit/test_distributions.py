"""Distributions against NumPy, and against the statistics of their own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    legal_only,
)

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]], np.float32)
LOGITS = jnp.log(PROBABILITIES) + jnp.array([[3.0], [-200.0]])


def test_categorical_log_prob_of_unnormalised_logits():
    action = jnp.array([2, 1], jnp.int32)
    np.testing.assert_allclose(
        Categorical(logits=LOGITS).log_prob(action), np.log([0.1, 0.5]), rtol=1e-4
    )


def test_categorical_log_prob_keeps_leading_axes():
    logits = jnp.zeros((5, 2, 3))
    log_probs = Categorical(logits=logits).log_prob(jnp.zeros((5, 2), jnp.int32))
    np.testing.assert_allclose(log_probs, np.full((5, 2), -np.log(3)), rtol=1e-6)


def test_categorical_entropy_and_kl_equal_their_sums():
    p, q = PROBABILITIES.astype(np.float64)
    np.testing.assert_allclose(
        Categorical(logits=LOGITS).entropy(),
        [-(p * np.log(p)).sum(), -(q * np.log(q)).sum()],
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        Categorical(logits=LOGITS[0]).kl(Categorical(logits=LOGITS[1])),
        (p * np.log(p / q)).sum(),
        rtol=1e-4,
    )
    np.testing.assert_array_equal(
        Categorical(logits=LOGITS).kl(Categorical(logits=LOGITS)), [0.0, 0.0]
    )


def test_categorical_sample_has_the_probabilities_of_its_logits():
    num_draws = 20_000
    logits = jnp.broadcast_to(LOGITS, (num_draws, 2, 3))
    draws = Categorical(logits=logits).sample(jax.random.key(0))
    assert draws.shape == (num_draws, 2) and draws.dtype == jnp.int32
    counts = np.stack([np.bincount(column, minlength=3) for column in np.asarray(draws).T])
    expected = num_draws * PROBABILITIES
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1)
    assert (chi_square < 13.8).all(), chi_square  # 2 degrees of freedom, p = 0.001


def test_categorical_mode_is_the_likeliest_action():
    mode = Categorical(logits=LOGITS).mode()
    np.testing.assert_array_equal(mode, [0, 1])
    assert mode.dtype == jnp.int32


@pytest.mark.parametrize(
    "function",
    [
        lambda logits: Categorical(logits=logits).entropy(),
        lambda logits: Categorical(logits=logits).kl(Categorical(logits=jnp.zeros_like(logits))),
        lambda logits: Categorical(logits=logits).kl(Categorical(logits=2.0 * logits)),
        lambda logits: Categorical(logits=logits).log_prob(jnp.int32(1)),
    ],
)
def test_an_impossible_action_leaves_values_and_gradients_finite(function):
    value, gradient = jax.value_and_grad(function)(jnp.array([1.0, 2.0, -jnp.inf]))
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


def test_an_impossible_action_is_never_drawn_and_adds_no_entropy():
    logits = jnp.array([0.0, -jnp.inf, 0.0])
    np.testing.assert_allclose(Categorical(logits=logits).entropy(), np.log(2), rtol=1e-6)
    draws = Categorical(logits=jnp.broadcast_to(logits, (1000, 3))).sample(jax.random.key(1))
    assert set(np.unique(draws)) == {0, 2}


def test_multi_categorical_is_independent_choices():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(4, size)).astype(np.float32) for size in (2, 3)]
    others = [rng.normal(size=(4, size)).astype(np.float32) for size in (2, 3)]
    action = jnp.array([[0, 2], [1, 0], [1, 1], [0, 0]], jnp.int32)
    policy, other = (
        MultiCategorical(choices=tuple(Categorical(logits=jnp.asarray(x)) for x in each))
        for each in (logits, others)
    )
    # The same as one choice among all pairs.
    pairs, other_pairs = (
        Categorical(logits=jnp.asarray((x[:, :, None] + y[:, None, :]).reshape(4, 6)))
        for x, y in (logits, others)
    )
    pair = 3 * action[:, 0] + action[:, 1]
    np.testing.assert_allclose(policy.log_prob(action), pairs.log_prob(pair), rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), pairs.entropy(), rtol=1e-5)
    np.testing.assert_allclose(policy.kl(other), pairs.kl(other_pairs), rtol=1e-4)
    np.testing.assert_array_equal(3 * policy.mode()[:, 0] + policy.mode()[:, 1], pairs.mode())


def test_the_choices_of_a_draw_are_independent_of_each_other():
    even = Categorical(logits=jnp.zeros((4000, 2)))
    draws = MultiCategorical(choices=(even, even)).sample(jax.random.key(0))
    assert draws.shape == (4000, 2) and draws.dtype == jnp.int32
    counts = np.bincount(2 * draws[:, 0] + draws[:, 1], minlength=4)
    assert (((counts - 1000.0) ** 2) / 1000.0).sum() < 16.3  # 3 degrees of freedom, p = 0.001


def test_gaussian_log_prob_and_entropy_are_the_golden_ones():
    standard = DiagonalGaussian(mean=jnp.zeros((1, 1)), log_std=jnp.zeros((1, 1)))
    # log 1/√(2π), and ½·log(2πe).
    np.testing.assert_allclose(standard.log_prob(jnp.zeros((1, 1))), [-0.9189385], rtol=1e-6)
    np.testing.assert_allclose(standard.entropy(), [1.4189385], rtol=1e-6)
    policy = DiagonalGaussian(mean=jnp.array([[0.3, -1.2]]), log_std=jnp.array([[-0.5, 0.2]]))
    # −½·(0.7² + 1.1²) + 0.5 − 0.2 − log 2π, at 0.7 and −1.1 deviations from the mean.
    action = policy.mean + jnp.exp(policy.log_std) * jnp.array([[0.7, -1.1]])
    np.testing.assert_allclose(policy.log_prob(action), [-2.3878771], rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), [2.5378771], rtol=1e-5)
    np.testing.assert_array_equal(policy.mode(), policy.mean)


def test_gaussian_draws_have_its_moments_and_the_divergence_of_their_densities():
    mean, log_std = jnp.array([0.5, -2.0]), jnp.array([-1.0, 0.5])
    policy = DiagonalGaussian(
        mean=jnp.broadcast_to(mean, (50_000, 2)), log_std=jnp.broadcast_to(log_std, (50_000, 2))
    )
    other = DiagonalGaussian(mean=policy.mean + 0.2, log_std=policy.log_std + 0.3)
    draws = policy.sample(jax.random.key(0))
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(jnp.log(draws.std(axis=0)), log_std, atol=0.02)
    log_ratio = policy.log_prob(draws) - other.log_prob(draws)
    np.testing.assert_allclose(policy.kl(other)[0], log_ratio.mean(), atol=0.01)
    np.testing.assert_allclose(-policy.log_prob(draws).mean(), policy.entropy()[0], atol=0.02)
    np.testing.assert_array_equal(policy.kl(policy)[0], 0.0)


def test_illegal_actions_have_neither_probability_nor_gradient():
    logits, mask = jnp.array([[1.0, 5.0, 2.0], [0.5, 0.0, 9.0]]), jnp.array([[1, 0, 1]] * 2, bool)

    def policy(logits):
        return legal_only(Categorical(logits=logits), mask)

    legal = Categorical(logits=logits[:, ::2])
    np.testing.assert_allclose(policy(logits).entropy(), legal.entropy(), rtol=1e-6)
    np.testing.assert_allclose(
        policy(logits).log_prob(jnp.array([2, 0])), legal.log_prob(jnp.array([1, 0])), rtol=1e-6
    )
    np.testing.assert_array_equal(policy(logits).mode(), [2, 2])
    for function in (
        lambda x: policy(x).entropy().sum(),
        lambda x: policy(x).log_prob(jnp.array([2, 0])).sum(),
        lambda x: policy(x).kl(policy(2.0 * x)).sum(),
    ):
        gradient = jax.grad(function)(logits)
        assert (gradient[:, 1] == 0.0).all() and (gradient[:, ::2] != 0.0).all()


def test_a_mask_of_several_choices_is_split_among_them():
    choices = tuple(Categorical(logits=jnp.zeros((500, size))) for size in (2, 3))
    mask = jnp.broadcast_to(jnp.array([0, 1, 1, 0, 1], bool), (500, 5))
    draws = legal_only(MultiCategorical(choices=choices), mask).sample(jax.random.key(0))
    assert set(np.unique(draws[:, 0])) == {1} and set(np.unique(draws[:, 1])) == {0, 2}
    gaussian = DiagonalGaussian(mean=jnp.zeros((500, 2)), log_std=jnp.zeros((500, 2)))
    with pytest.raises(TypeError, match="expected a discrete policy"):
        legal_only(gaussian, mask)
    assert legal_only(gaussian, None) is gaussian
