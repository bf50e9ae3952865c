"""What every core of the table does: resets where an episode begins, and unrolls row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.references import CORES
from sebulba.toolkit.cores import core_settings
from tests.compiled import jitted

T, B, F, SIZE = 8, 3, 5, 8  # Each number of rows is a program to compile.
# Options with which T rows reach every part of a core; each row of the table has its defaults too.
VARIANTS = {
    "lru, associative": ("lru", {"unroll": "associative"}),
    "gtrxl, memory of 3 rows": ("gtrxl", {"memory_length": 3, "heads": 2}),
    "gtrxl, memory of 1 row": ("gtrxl", {"memory_length": 1, "layers": 1}),
    "gtrxl, memory of T - 1 rows": ("gtrxl", {"memory_length": T - 1, "layers": 3}),
}
EVERY = {name: (name, {}) for name in CORES} | VARIANTS
# An unroll may compute several rows in one product, whose sums have another order: relative to the
# greatest number of a leaf, a hundred times the rounding of float32.
TOLERANCE = 1e-5


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in EVERY
    ],
)
def core(request):
    name, options = EVERY[request.param]
    return core_settings(name, SIZE, options).make(parent=None)


def unroll(core, *arguments):
    outputs, state = jitted(core.apply)(*arguments)
    return np.asarray(outputs), state


def inputs_of(core, seed=0):
    """Returns parameters, inputs `[T, B, F]`, resets `[T, B]`, and a state that is not new."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(T, B, F)).astype(np.float32)
    is_first = rng.random((T, B)) < 0.25
    new = core.initial_state(B)
    parameters = jitted(core.init)(jax.random.key(seed), inputs, is_first, new)
    _, state = unroll(core, parameters, np.roll(inputs, 5, axis=0), np.zeros((T, B), bool), new)
    return parameters, inputs, is_first, state


def begins_at(row):
    """Returns resets `[T, B]` of all environments in a row."""
    is_first = np.zeros((T, B), bool)
    is_first[row] = True
    return is_first


def assert_close(got, expected):
    def compare(x, y):
        x, y = np.asarray(x), np.asarray(y)
        np.testing.assert_allclose(x, y, rtol=0.0, atol=TOLERANCE * max(1.0, np.abs(y).max()))

    jax.tree.map(compare, got, expected)


def test_the_state_is_per_environment_and_keeps_its_structure(core):
    parameters, inputs, is_first, state = inputs_of(core)
    assert all(leaf.shape[0] == B for leaf in jax.tree.leaves(state))
    outputs, after = unroll(core, parameters, inputs, is_first, state)
    assert outputs.shape[:2] == (T, B)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for leaf, before in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        assert (leaf.shape, leaf.dtype) == (before.shape, before.dtype)


def test_an_unroll_equals_its_rows_one_by_one_whatever_the_resets_are(core):
    parameters, inputs, _, before = inputs_of(core)
    rng = np.random.default_rng(1)
    patterns = rng.random((100, T, B)) < rng.choice([0.05, 0.2, 0.6], (100, 1, 1))
    for is_first in patterns:
        outputs, after = unroll(core, parameters, inputs, is_first, before)
        rows, state = [], before
        for t in range(T):
            row, state = unroll(core, parameters, inputs[t : t + 1], is_first[t : t + 1], state)
            rows.append(row[0])
        assert_close(np.stack(rows), outputs)
        assert_close(state, after)


def test_an_unroll_equals_two_that_meet_anywhere(core):
    parameters, inputs, is_first, before = inputs_of(core)
    outputs, after = unroll(core, parameters, inputs, is_first, before)
    for at in range(1, T):
        first, state = unroll(core, parameters, inputs[:at], is_first[:at], before)
        second, state = unroll(core, parameters, inputs[at:], is_first[at:], state)
        assert_close(np.concatenate([first, second]), outputs)
        assert_close(state, after)


def test_an_unroll_over_a_reset_equals_one_that_begins_there(core):
    parameters, inputs, _, state = inputs_of(core)
    for at in range(1, T):
        is_first = begins_at(at)
        outputs, after = unroll(core, parameters, inputs, is_first, state)
        new = core.initial_state(B)
        for begins in (True, False):  # A new state is that of a reset.
            later = is_first[at:].copy()
            later[0] = begins
            begun, after_begun = unroll(core, parameters, inputs[at:], later, new)
            assert_close(outputs[at:], begun)
            assert_close(after, after_begun)


def test_what_the_state_was_before_a_reset_does_not_matter_even_if_it_is_not_finite(core):
    parameters, inputs, _, state = inputs_of(core)
    for at in (0, 5):
        is_first = begins_at(at)
        outputs, after = unroll(core, parameters, inputs, is_first, state)
        for bad in (jnp.nan, jnp.inf, 1e30):
            broken = jax.tree.map(
                lambda leaf, value=bad: (
                    jnp.full_like(leaf, value) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
                ),
                state,
            )
            got, got_after = unroll(core, parameters, inputs, is_first, broken)
            # The same computation on the same numbers.
            np.testing.assert_array_equal(got[at:], outputs[at:])
            jax.tree.map(np.testing.assert_array_equal, got_after, after)


def test_without_a_reset_the_state_matters(core):
    parameters, inputs, _, state = inputs_of(core)
    is_first = np.zeros((T, B), bool)
    kept, _ = unroll(core, parameters, inputs, is_first, state)
    new, _ = unroll(core, parameters, inputs, is_first, core.initial_state(B))
    assert np.abs(np.asarray(kept - new)[0]).max() > 1e-3


def test_environments_do_not_see_each_other(core):
    parameters, inputs, is_first, state = inputs_of(core)
    outputs, _ = unroll(core, parameters, inputs, is_first, state)
    others, _ = unroll(
        core, parameters, inputs + np.float32([[[0.0], [1.0], [1.0]]]), is_first, state
    )
    assert_close(others[:, 0], outputs[:, 0])


def test_gradients_are_those_of_the_rows_one_by_one(core):
    parameters, inputs, is_first, before = inputs_of(core)

    def of_unroll(parameters):
        return jnp.sum(jnp.square(core.apply(parameters, inputs, is_first, before)[0]))

    def of_rows(parameters):
        def step(state, row):
            outputs, state = core.apply(parameters, *(each[None] for each in row), state)
            return state, outputs

        return jnp.sum(jnp.square(jax.lax.scan(step, before, (inputs, is_first))[1]))

    assert_close(jax.jit(jax.grad(of_rows))(parameters), jax.jit(jax.grad(of_unroll))(parameters))
