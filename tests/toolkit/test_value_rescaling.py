"""The rescaling of values: published numbers, and a round trip in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.value_rescaling import inverse_rescale, rescale


@pytest.mark.parametrize(
    ("x", "rescaled"),
    [
        (0.0, 0.0),
        (0.01, 0.0049975621),
        (1.0, 0.415214),
        (3.0, 1.003),
        (10.0, 2.326625),
        (99.0, 9.099),
        (-1000.0, -31.638584),
        (1e4, 109.005),
        (1e6, 1999.0005),
    ],
)
def test_rescale_matches_golden_numbers(x, rescaled):
    x = jnp.float32(x)
    np.testing.assert_allclose(rescale(x), rescaled, rtol=2e-6)
    np.testing.assert_allclose(rescale(-x), -rescaled, rtol=2e-6)
    np.testing.assert_allclose(inverse_rescale(rescale(x)), x, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.0])
def test_round_trip_keeps_float32_precision_over_ten_decades(epsilon):
    size = jnp.logspace(-4, 6, 10_001)
    x = jnp.concatenate([-size, size])
    np.testing.assert_allclose(inverse_rescale(rescale(x, epsilon), epsilon), x, rtol=1e-6)


def test_gradients_at_zero_are_those_of_the_formula():
    np.testing.assert_allclose(jax.grad(rescale)(0.0), 0.5 + 1e-3, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(inverse_rescale)(0.0), 1 / (0.5 + 1e-3), rtol=1e-6)
