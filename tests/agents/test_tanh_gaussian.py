import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba_agents import tanh_gaussian

# Each is one program: called as they are, they would be one for each operation.
log_prob = jax.jit(tanh_gaussian.tanh_gaussian_log_prob)
sample_action = jax.jit(tanh_gaussian.tanh_gaussian_sample)


def test_log_prob_golden():
    mean, log_std = np.array([[0.3, -1.2], [-0.5, 0.2]], np.float32)
    pre_tanh = mean + np.exp(log_std) * np.array([0.7, -1.1], np.float32)
    np.testing.assert_allclose(np.tanh(pre_tanh), [0.619733, -0.987724], atol=1e-6)
    np.testing.assert_allclose(log_prob(pre_tanh, mean, log_std), 1.809849, atol=2e-6)


def test_log_prob_is_the_naive_formula_where_that_is_exact():
    rng = np.random.default_rng(0)
    mean, log_std, noise = rng.normal(size=(3, 50, 2))
    pre_tanh = mean + np.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    slope = np.log(1.0 - np.tanh(pre_tanh) ** 2)
    is_exact = (np.abs(pre_tanh) < 5.0).all(axis=-1)
    got = np.asarray(log_prob(*(x.astype(np.float32) for x in (pre_tanh, mean, log_std))))
    assert is_exact.sum() > 20
    np.testing.assert_allclose(
        got[is_exact], (gaussian - slope).sum(axis=-1)[is_exact], rtol=1e-4, atol=1e-4
    )


def test_density_over_actions_integrates_to_one():
    pre_tanh = np.linspace(-9.0, 9.0, 20_001, dtype=np.float32)
    mean, log_std = np.full((20_001, 1), 0.4), np.full((20_001, 1), -0.3)
    parameters = (mean.astype(np.float32), log_std.astype(np.float32))
    density = np.exp(log_prob(pre_tanh[:, None], *parameters))
    np.testing.assert_allclose(np.trapezoid(density, np.tanh(pre_tanh)), 1.0, atol=1e-3)


@pytest.mark.parametrize("end", [-20.0, 20.0])
def test_log_prob_and_its_gradients_stay_finite_far_out(end):
    arguments = np.array([[end], [end - 1.0], [0.0]], np.float32)
    value, grads = jax.jit(jax.value_and_grad(log_prob, argnums=(0, 1, 2)))(*arguments)
    # In float64: the Gaussian's log density of noise 1, less log(1 − tanh²(20)) = log 4 − 40.
    np.testing.assert_allclose(value, -0.5 - 0.5 * np.log(2 * np.pi) - (np.log(4) - 40), rtol=1e-6)
    np.testing.assert_allclose(grads, [[-1.0 + 2.0 * np.sign(end)], [1.0], [0.0]], atol=1e-5)


def test_sample_gives_the_density_of_what_it_draws():
    mean, log_std = np.full((4000, 2), 0.5, np.float32), np.full((4000, 2), -1.0, np.float32)
    sample = sample_action(jax.random.key(0), mean, log_std)
    pre_tanh = np.arctanh(sample.action)
    np.testing.assert_allclose(sample.log_prob, log_prob(pre_tanh, mean, log_std), atol=1e-3)
    np.testing.assert_allclose(np.mean(pre_tanh, axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(np.std(pre_tanh, axis=0), np.exp(-1.0), atol=0.02)


def test_sample_is_differentiable_in_the_parameters():
    def mean_action(mean, log_std):
        return jnp.sum(sample_action(jax.random.key(1), mean, log_std).action)

    mean, log_std = np.array([[0.3], [-0.5]], np.float32)
    grads = jax.jit(jax.grad(mean_action, argnums=(0, 1)))(mean, log_std)
    noise = np.asarray(jax.random.normal(jax.random.key(1), (1,)))
    slope = 1.0 - np.tanh(mean + np.exp(log_std) * noise) ** 2
    np.testing.assert_allclose(grads[0], slope, rtol=1e-5)
    np.testing.assert_allclose(grads[1], slope * np.exp(log_std) * noise, rtol=1e-5)
