"""Draws follow p^α, and the importance weights undo them."""

import jax
import numpy as np
import pytest

from sebulba.toolkit.replay import priorities
from tests.toolkit.learner_mesh import on_devices

# Each is one program: called as they are, they would be one for each operation.
draw = jax.jit(priorities.draw, static_argnames="num_draws")
importance_weights = jax.jit(priorities.importance_weights)
over_maximum = jax.jit(priorities.over_maximum)
uniform_weights = jax.jit(priorities.uniform_weights)
priority_mass = jax.jit(priorities.priority_mass)

# P(chi² > bound) = 1e-4 for the degrees of freedom used below.
CHI_SQUARE_BOUND = {3: 21.1, 299: 396.0}


def _chi_square(index, expected):
    counts = np.bincount(np.asarray(index), minlength=len(expected))
    return float(np.sum((counts - expected) ** 2 / expected))


def test_priority_mass_and_weights_golden():
    priority = np.array([1.0, 2.0, 4.0, 0.5], np.float32)
    mass = np.asarray(priority_mass(priority, 0.9))
    probability = mass / np.sum(mass)
    np.testing.assert_allclose(probability, [0.145261, 0.271067, 0.505829, 0.077844], atol=1e-6)
    weights = importance_weights(probability, np.int32(4), 0.6)
    np.testing.assert_allclose(weights, (4 * probability) ** -0.6, rtol=1e-5)
    np.testing.assert_allclose(
        over_maximum(weights), [0.687771, 0.473029, 0.325335, 1.0], atol=1e-6
    )


def test_with_full_correction_draws_weigh_one_on_average():
    probability = np.array([0.5, 0.3, 0.2 - 1e-4, 1e-4], np.float32)
    weights = np.asarray(importance_weights(probability, np.int32(4), 1.0))
    np.testing.assert_allclose(weights @ probability, 1.0, rtol=1e-5)


def test_devices_with_more_and_fewer_entries_weigh_draws_alike():
    """Both draw as often, so a draw stands for 1 / (N · P) of the entries, N on average."""
    probability, counts = np.array([[0.5, 0.25]], np.float32), np.array([[2, 6]], np.int32)
    weights = on_devices(
        lambda probability, count: priorities.importance_weights(probability[0], count[0, 0], 1.0),
        2,
        probability,
        counts,
    )
    np.testing.assert_allclose(weights, [[1 / (4 * 0.5)], [1 / (4 * 0.25)]], rtol=1e-6)


def test_draw_returns_the_probability_of_each_index():
    mass = np.array([1.0, 0.0, 3.0, 4.0, 2.0], np.float32)
    index, probability = draw(jax.random.key(0), mass, num_draws=64)
    np.testing.assert_allclose(probability, np.array([0.1, 0, 0.3, 0.4, 0.2])[index], rtol=1e-6)


def test_draw_follows_priority_to_the_alpha():
    mass = priority_mass(np.array([1.0, 2.0, 4.0, 0.5], np.float32), 0.9)
    index, _ = draw(jax.random.key(1), mass, num_draws=100_000)
    expected = 1e5 * np.array([0.145261, 0.271067, 0.505829, 0.077844])
    assert _chi_square(index, expected) < CHI_SQUARE_BOUND[3]


def test_draw_follows_mass_over_all_levels_of_the_tree():
    mass = np.random.default_rng(0).gamma(1.0, size=300).astype(np.float32) + 0.05
    index, _ = draw(jax.random.key(2), mass, num_draws=100_000)
    assert _chi_square(index, 1e5 * mass / mass.sum()) < CHI_SQUARE_BOUND[299]


def test_draw_is_uniform_for_alpha_zero():
    mass = priority_mass(np.array([9.0, 0.1, 0.0, 3.0, 1.0], np.float32), 0.0)
    np.testing.assert_array_equal(mass, [1.0, 1.0, 0.0, 1.0, 1.0])
    index, _ = draw(jax.random.key(3), mass, num_draws=100_000)
    assert _chi_square(np.asarray(index)[np.asarray(index) != 2], [25e3, 25e3, 1, 25e3, 25e3]) < 22
    assert 2 not in np.asarray(index)


@pytest.mark.parametrize("size", [1, 2, 16, 17, 1000, 4097])
def test_draw_never_gives_an_entry_without_mass(size):
    mass = np.zeros(size, np.float32)
    mass[-1] = 1e-12
    index, probability = draw(jax.random.key(4), mass, num_draws=500)
    assert set(np.asarray(index)) == {size - 1}
    np.testing.assert_allclose(probability, 1.0)


def test_draw_of_nothing_has_probability_and_weight_zero():
    _, probability = draw(jax.random.key(6), np.zeros(10, np.float32), num_draws=4)
    np.testing.assert_array_equal(probability, np.zeros(4))
    none = np.zeros(4)
    weights = importance_weights(probability, np.int32(0), 0.6)
    np.testing.assert_array_equal(weights, none)
    np.testing.assert_array_equal(over_maximum(weights), none)
    np.testing.assert_array_equal(uniform_weights(probability, np.int32(0)), none)
