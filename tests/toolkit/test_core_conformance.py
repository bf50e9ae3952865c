"""What every core of the table does: resets where an episode begins, and unrolls row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.references import CORES
from sebulba.toolkit.cores import core_class

T, B, F, SIZE = 12, 3, 5, 8
# Rounding of sums in another order: an unroll may compute several rows at once.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(params=CORES)
def core(request):
    return core_class(request.param)(size=SIZE)


def inputs_of(core, seed=0):
    """Returns parameters, inputs `[T, B, F]`, resets `[T, B]`, and a state that is not new."""
    rng = np.random.default_rng(seed)
    inputs = jnp.asarray(rng.normal(size=(T, B, F)), jnp.float32)
    is_first = jnp.asarray(rng.random((T, B)) < 0.25)
    new = core.initial_state(B)
    parameters = core.init(jax.random.key(seed), inputs, is_first, new)
    _, state = core.apply(parameters, inputs[::-1], jnp.zeros((T, B), bool), new)
    return parameters, inputs, is_first, state


def assert_close(got, expected):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), **TOLERANCE),
        got,
        expected,
    )


def test_the_state_is_per_environment_and_keeps_its_structure(core):
    parameters, inputs, is_first, state = inputs_of(core)
    assert all(leaf.shape[0] == B for leaf in jax.tree.leaves(state))
    outputs, after = core.apply(parameters, inputs, is_first, state)
    assert outputs.shape[:2] == (T, B)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for leaf, before in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        assert (leaf.shape, leaf.dtype) == (before.shape, before.dtype)


@pytest.mark.parametrize("seed", range(5))
def test_an_unroll_equals_its_rows_one_by_one(core, seed):
    parameters, inputs, is_first, state = inputs_of(core, seed)
    step = jax.jit(core.apply)
    outputs, after = step(parameters, inputs, is_first, state)
    rows = []
    for t in range(T):
        row, state = step(parameters, inputs[t : t + 1], is_first[t : t + 1], state)
        rows.append(row[0])
    assert_close(jnp.stack(rows), outputs)
    assert_close(state, after)


@pytest.mark.parametrize("seed", range(5))
def test_an_unroll_over_a_reset_equals_one_that_begins_there(core, seed):
    parameters, inputs, _, state = inputs_of(core, seed)
    at = 1 + seed
    is_first = jnp.zeros((T, B), bool).at[at].set(True)
    outputs, after = core.apply(parameters, inputs, is_first, state)
    begun, after_begun = core.apply(parameters, inputs[at:], is_first[at:], core.initial_state(B))
    assert_close(outputs[at:], begun)
    assert_close(after, after_begun)


def test_what_the_state_was_before_a_reset_does_not_matter_even_if_it_is_not_finite(core):
    parameters, inputs, _, state = inputs_of(core)
    is_first = jnp.zeros((T, B), bool).at[0].set(True)
    for bad in (jnp.nan, jnp.inf, 1e30):
        broken = jax.tree.map(lambda leaf, value=bad: jnp.full_like(leaf, value), state)
        assert_close(
            core.apply(parameters, inputs, is_first, broken),
            core.apply(parameters, inputs, is_first, state),
        )


def test_without_a_reset_the_state_matters(core):
    parameters, inputs, _, state = inputs_of(core)
    is_first = jnp.zeros((T, B), bool)
    kept, _ = core.apply(parameters, inputs, is_first, state)
    new, _ = core.apply(parameters, inputs, is_first, core.initial_state(B))
    assert np.abs(np.asarray(kept - new)[0]).max() > 1e-3


def test_environments_do_not_see_each_other(core):
    parameters, inputs, is_first, state = inputs_of(core)
    outputs, _ = core.apply(parameters, inputs, is_first, state)
    others, _ = core.apply(parameters, inputs.at[:, 1:].add(1.0), is_first, state)
    assert_close(others[:, 0], outputs[:, 0])
