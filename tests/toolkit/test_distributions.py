"""Distributions against NumPy, and against the statistics of their own draws."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    entry_of,
    legal_only,
    one_hot,
)
from sebulba.toolkit.policy_heads import CategoricalHead, MultiCategoricalHead

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]], np.float32)
LOGITS = np.log(PROBABILITIES) + np.array([[3.0], [-200.0]], np.float32)


def jitted(method):
    """Return a method as a function of the distribution, as one program."""
    return jax.jit(lambda policy, *args: getattr(policy, method)(*args))


log_prob, entropy, kl, sample, mode = map(jitted, ("log_prob", "entropy", "kl", "sample", "mode"))


def test_categorical_log_prob_of_unnormalised_logits():
    action = np.array([2, 1], np.int32)
    np.testing.assert_allclose(
        log_prob(Categorical(logits=LOGITS), action), np.log([0.1, 0.5]), rtol=1e-4
    )


def test_categorical_log_prob_keeps_leading_axes():
    policy = Categorical(logits=np.zeros((5, 2, 3), np.float32))
    log_probs = log_prob(policy, np.zeros((5, 2), np.int32))
    np.testing.assert_allclose(log_probs, np.full((5, 2), -np.log(3)), rtol=1e-6)


def test_categorical_entropy_and_kl_equal_their_sums():
    p, q = PROBABILITIES.astype(np.float64)
    np.testing.assert_allclose(
        entropy(Categorical(logits=LOGITS)),
        [-(p * np.log(p)).sum(), -(q * np.log(q)).sum()],
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        kl(Categorical(logits=LOGITS[0]), Categorical(logits=LOGITS[1])),
        (p * np.log(p / q)).sum(),
        rtol=1e-4,
    )
    np.testing.assert_array_equal(
        kl(Categorical(logits=LOGITS), Categorical(logits=LOGITS)), [0.0, 0.0]
    )


def test_categorical_sample_has_the_probabilities_of_its_logits():
    num_draws = 20_000
    logits = np.broadcast_to(LOGITS, (num_draws, 2, 3))
    draws = sample(Categorical(logits=logits), jax.random.key(0))
    assert draws.shape == (num_draws, 2) and draws.dtype == jnp.int32
    counts = np.stack([np.bincount(column, minlength=3) for column in np.asarray(draws).T])
    expected = num_draws * PROBABILITIES
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1)
    assert (chi_square < 13.8).all(), chi_square  # 2 degrees of freedom, p = 0.001


def test_categorical_mode_is_the_likeliest_action():
    likeliest = mode(Categorical(logits=LOGITS))
    np.testing.assert_array_equal(likeliest, [0, 1])
    assert likeliest.dtype == jnp.int32


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
    logits = np.array([1.0, 2.0, -np.inf], np.float32)
    value, gradient = jax.jit(jax.value_and_grad(function))(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_an_impossible_action_is_never_drawn_and_adds_no_entropy():
    logits = np.array([0.0, -np.inf, 0.0], np.float32)
    np.testing.assert_allclose(entropy(Categorical(logits=logits)), np.log(2), rtol=1e-6)
    policy = Categorical(logits=np.broadcast_to(logits, (1000, 3)))
    draws = sample(policy, jax.random.key(1))
    assert set(np.unique(draws)) == {0, 2}


def test_multi_categorical_is_independent_choices():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(4, size)).astype(np.float32) for size in (2, 3)]
    others = [rng.normal(size=(4, size)).astype(np.float32) for size in (2, 3)]
    action = np.array([[0, 2], [1, 0], [1, 1], [0, 0]], np.int32)
    policy, other = (
        MultiCategorical(choices=tuple(Categorical(logits=x) for x in each))
        for each in (logits, others)
    )
    # The same as one choice among all pairs.
    pairs, other_pairs = (
        Categorical(logits=(x[:, :, None] + y[:, None, :]).reshape(4, 6))
        for x, y in (logits, others)
    )
    pair = 3 * action[:, 0] + action[:, 1]
    np.testing.assert_allclose(log_prob(policy, action), log_prob(pairs, pair), rtol=1e-5)
    np.testing.assert_allclose(entropy(policy), entropy(pairs), rtol=1e-5)
    np.testing.assert_allclose(kl(policy, other), kl(pairs, other_pairs), rtol=1e-4)
    np.testing.assert_array_equal(np.asarray(mode(policy)) @ [3, 1], mode(pairs))


def test_the_choices_of_a_draw_are_independent_of_each_other():
    even = Categorical(logits=np.zeros((4000, 2), np.float32))
    draws = np.asarray(sample(MultiCategorical(choices=(even, even)), jax.random.key(0)))
    assert draws.shape == (4000, 2) and draws.dtype == np.int32
    counts = np.bincount(2 * draws[:, 0] + draws[:, 1], minlength=4)
    assert (((counts - 1000.0) ** 2) / 1000.0).sum() < 16.3  # 3 degrees of freedom, p = 0.001


def test_gaussian_log_prob_and_entropy_are_the_golden_ones():
    zero = np.zeros((1, 1), np.float32)
    standard = DiagonalGaussian(mean=zero, log_std=zero)
    # log 1/√(2π), and ½·log(2πe).
    np.testing.assert_allclose(log_prob(standard, zero), [-0.9189385], rtol=1e-6)
    np.testing.assert_allclose(entropy(standard), [1.4189385], rtol=1e-6)
    mean, log_std = np.array([[[0.3, -1.2]], [[-0.5, 0.2]]], np.float32)
    policy = DiagonalGaussian(mean=mean, log_std=log_std)
    # −½·(0.7² + 1.1²) + 0.5 − 0.2 − log 2π, at 0.7 and −1.1 deviations from the mean.
    action = mean + np.exp(log_std) * np.array([[0.7, -1.1]], np.float32)
    np.testing.assert_allclose(log_prob(policy, action), [-2.3878771], rtol=1e-5)
    np.testing.assert_allclose(entropy(policy), [2.5378771], rtol=1e-5)
    np.testing.assert_array_equal(mode(policy), mean)


def test_gaussian_draws_have_its_moments_and_the_divergence_of_their_densities():
    mean, log_std = np.array([[0.5, -2.0], [-1.0, 0.5]], np.float32)
    many = np.ones((50_000, 1), np.float32)
    policy = DiagonalGaussian(mean=mean * many, log_std=log_std * many)
    other = DiagonalGaussian(
        mean=policy.mean + np.float32(0.2), log_std=policy.log_std + np.float32(0.3)
    )
    draws = np.asarray(sample(policy, jax.random.key(0)))
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.log(draws.std(axis=0)), log_std, atol=0.02)
    density = np.asarray(log_prob(policy, draws))
    log_ratio = density - np.asarray(log_prob(other, draws))
    np.testing.assert_allclose(kl(policy, other)[0], log_ratio.mean(), atol=0.01)
    np.testing.assert_allclose(-density.mean(), entropy(policy)[0], atol=0.02)
    np.testing.assert_array_equal(kl(policy, policy)[0], 0.0)


def test_illegal_actions_have_neither_probability_nor_gradient():
    logits = np.array([[1.0, 5.0, 2.0], [0.5, 0.0, 9.0]], np.float32)
    mask, action = np.array([[1, 0, 1]] * 2, bool), np.array([2, 0], np.int32)

    def policy(logits):
        return legal_only(Categorical(logits=logits), mask)

    @jax.jit
    def compute(logits):
        of = policy(logits)
        gradients = [
            jax.grad(function)(logits)
            for function in (
                lambda x: policy(x).entropy().sum(),
                lambda x: policy(x).log_prob(action).sum(),
                lambda x: policy(x).kl(policy(2.0 * x)).sum(),
            )
        ]
        return of.entropy(), of.log_prob(action), of.mode(), gradients

    legal = Categorical(logits=logits[:, ::2])
    got_entropy, got_log_prob, got_mode, gradients = compute(logits)
    np.testing.assert_allclose(got_entropy, entropy(legal), rtol=1e-6)
    np.testing.assert_allclose(got_log_prob, log_prob(legal, action // 2), rtol=1e-6)
    np.testing.assert_array_equal(got_mode, [2, 2])
    for gradient in map(np.asarray, gradients):
        assert (gradient[:, 1] == 0.0).all() and (gradient[:, ::2] != 0.0).all()


def test_a_mask_of_several_choices_is_split_among_them():
    choices = tuple(Categorical(logits=np.zeros((500, size), np.float32)) for size in (2, 3))
    mask = np.broadcast_to(np.array([0, 1, 1, 0, 1], bool), (500, 5))
    draw = jax.jit(lambda key: legal_only(MultiCategorical(choices=choices), mask).sample(key))
    draws = np.asarray(draw(jax.random.key(0)))
    assert set(np.unique(draws[:, 0])) == {1} and set(np.unique(draws[:, 1])) == {0, 2}
    zeros = np.zeros((500, 2), np.float32)
    gaussian = DiagonalGaussian(mean=zeros, log_std=zeros)
    with pytest.raises(TypeError, match="expected a discrete policy"):
        legal_only(gaussian, mask)
    assert legal_only(gaussian, None) is gaussian


def test_an_entry_of_each_row_has_the_gradient_of_a_gather():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 5)), jnp.float32)
    index = jnp.asarray(np.random.default_rng(1).integers(0, 5, (3, 4)), jnp.int32)
    weights = jnp.arange(12.0).reshape(3, 4)

    def gathered(rows):
        return jnp.take_along_axis(rows, index[..., None], axis=-1)[..., 0]

    chex.assert_trees_all_equal(entry_of(rows, index), gathered(rows))
    own, plain = (
        jax.grad(lambda rows, take=take: jnp.sum(weights * take(rows)))(rows)
        for take in (lambda rows: entry_of(rows, index), gathered)
    )
    chex.assert_trees_all_equal(own, plain)


def test_an_entry_beyond_the_row_is_nan():
    entries = entry_of(jnp.ones((3, 2)), jnp.asarray([-1, 1, 2], jnp.int32))
    np.testing.assert_array_equal(jnp.isnan(entries), [True, False, True])


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32, jnp.int32])
def test_an_index_of_any_integer_type_finds_one_entry_of_many(dtype):
    rows, index = jnp.arange(400.0)[None], jnp.asarray([3], dtype)
    np.testing.assert_array_equal(entry_of(rows, index), [3.0])
    np.testing.assert_array_equal(jnp.flatnonzero(one_hot(index, 400)), [3])
    policy = Categorical(logits=jnp.zeros((1, 400)))
    np.testing.assert_allclose(policy.log_prob(index), -np.log(400), rtol=1e-6)
    (encoded,) = CategoricalHead(400).encode(index[None])
    assert encoded.sum() == 1.0 and encoded[0, 3] == 1.0
    several = MultiCategoricalHead((300, 2)).encode(jnp.asarray([[[3, 1]]], dtype))
    np.testing.assert_array_equal(np.flatnonzero(several), [3, 301])
