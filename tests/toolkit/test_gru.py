"""The GRU core equals flax's cell; `test_core_conformance` has what every core does."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sebulba.toolkit.gru import GRUCore

T, B, F, SIZE = 6, 3, 5, 7


def of_flax(parameters):
    """Returns the parameters of `nn.GRUCell`, which has a kernel for each gate."""
    kernels = jnp.split(parameters["Dense_0"]["kernel"], 3, axis=1)
    biases = jnp.split(parameters["Dense_0"]["bias"], 3)
    recurrent = jnp.split(parameters["recurrent_kernel"], 3, axis=1)
    cell = {
        f"i{gate}": {"kernel": kernel, "bias": bias}
        for gate, kernel, bias in zip("rzn", kernels, biases, strict=True)
    }
    cell |= {f"h{gate}": {"kernel": kernel} for gate, kernel in zip("rzn", recurrent, strict=True)}
    cell["hn"]["bias"] = parameters["candidate_bias"]
    return {"params": cell}


def test_the_gru_equals_flaxs_cell_with_resets(lenient_jax):
    core, rng = GRUCore(SIZE), np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(T, B, F)), jnp.float32)
    is_first = jnp.asarray(rng.random((T, B)) < 0.3)
    before = state = jnp.asarray(rng.normal(size=(B, SIZE)), jnp.float32)
    parameters = jax.jit(core.init)(jax.random.key(0), inputs, is_first, state)
    parameters = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), parameters
    )
    outputs, after = jax.jit(core.apply)(parameters, inputs, is_first, state)
    cell, expected = jax.jit(nn.GRUCell(SIZE).apply), []
    for t in range(T):
        state = jnp.where(is_first[t][:, None], 0.0, state)
        state, row = cell(of_flax(parameters["params"]), state, inputs[t])
        expected.append(row)
    np.testing.assert_allclose(outputs, jnp.stack(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after, state, rtol=1e-4, atol=1e-5)
    assert not np.allclose(after, before)


def test_the_grus_recurrent_kernel_is_orthogonal_for_each_gate():
    core = GRUCore(8)
    rows, is_first = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2), bool)
    parameters = jax.jit(core.init)(jax.random.key(0), rows, is_first, core.initial_state(2))
    for gate in np.split(np.asarray(parameters["params"]["recurrent_kernel"]), 3, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(8), atol=1e-5)
