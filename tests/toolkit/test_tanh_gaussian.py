import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.tanh_gaussian import tanh_gaussian_log_prob, tanh_gaussian_sample


def test_log_prob_golden():
    mean, log_std = jnp.array([0.3, -1.2]), jnp.array([-0.5, 0.2])
    pre_tanh = mean + jnp.exp(log_std) * jnp.array([0.7, -1.1])
    np.testing.assert_allclose(jnp.tanh(pre_tanh), [0.619733, -0.987724], atol=1e-6)
    np.testing.assert_allclose(tanh_gaussian_log_prob(pre_tanh, mean, log_std), 1.809849, atol=2e-6)


def test_log_prob_is_the_naive_formula_where_that_is_exact():
    rng = np.random.default_rng(0)
    mean, log_std, noise = rng.normal(size=(3, 50, 2))
    pre_tanh = mean + np.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    slope = np.log(1.0 - np.tanh(pre_tanh) ** 2)
    is_exact = (np.abs(pre_tanh) < 5.0).all(axis=-1)
    got = tanh_gaussian_log_prob(*(jnp.asarray(x, jnp.float32) for x in (pre_tanh, mean, log_std)))
    assert is_exact.sum() > 20
    np.testing.assert_allclose(
        got[is_exact], (gaussian - slope).sum(axis=-1)[is_exact], rtol=1e-4, atol=1e-4
    )


def test_density_over_actions_integrates_to_one():
    mean, log_std = jnp.full((20_001, 1), 0.4), jnp.full((20_001, 1), -0.3)
    pre_tanh = jnp.linspace(-9.0, 9.0, 20_001)
    density = jnp.exp(tanh_gaussian_log_prob(pre_tanh[:, None], mean, log_std))
    np.testing.assert_allclose(
        np.trapezoid(np.asarray(density), np.tanh(np.asarray(pre_tanh))), 1.0, atol=1e-3
    )


@pytest.mark.parametrize("end", [-20.0, 20.0])
def test_log_prob_and_its_gradients_stay_finite_far_out(end):
    arguments = (jnp.array([end]), jnp.array([end - 1.0]), jnp.array([0.0]))
    value, grads = jax.value_and_grad(tanh_gaussian_log_prob, argnums=(0, 1, 2))(*arguments)
    # In float64: the Gaussian's log density of noise 1, less log(1 − tanh²(20)) = log 4 − 40.
    np.testing.assert_allclose(value, -0.5 - 0.5 * np.log(2 * np.pi) - (np.log(4) - 40), rtol=1e-6)
    np.testing.assert_allclose(grads, [[-1.0 + 2.0 * np.sign(end)], [1.0], [0.0]], atol=1e-5)


def test_sample_gives_the_density_of_what_it_draws():
    mean, log_std = jnp.full((4000, 2), 0.5), jnp.full((4000, 2), -1.0)
    sample = tanh_gaussian_sample(jax.random.key(0), mean, log_std)
    pre_tanh = jnp.arctanh(sample.action)
    np.testing.assert_allclose(
        sample.log_prob, tanh_gaussian_log_prob(pre_tanh, mean, log_std), atol=1e-3
    )
    np.testing.assert_allclose(jnp.mean(pre_tanh, axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(jnp.std(pre_tanh, axis=0), np.exp(-1.0), atol=0.02)


def test_sample_is_differentiable_in_the_parameters():
    def mean_action(mean, log_std):
        return jnp.sum(tanh_gaussian_sample(jax.random.key(1), mean, log_std).action)

    mean, log_std = jnp.array([0.3]), jnp.array([-0.5])
    grads = jax.grad(mean_action, argnums=(0, 1))(mean, log_std)
    noise = jax.random.normal(jax.random.key(1), (1,))
    slope = 1.0 - jnp.tanh(mean + jnp.exp(log_std) * noise) ** 2
    np.testing.assert_allclose(grads[0], slope, rtol=1e-5)
    np.testing.assert_allclose(grads[1], slope * jnp.exp(log_std) * noise, rtol=1e-5)
