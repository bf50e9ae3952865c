"""Checks that a recurrent core unrolls rows in learning as acting does, one by one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.question import Question
from sebulba.check.result import Answer, first_difference, passed_unless, skipped
from sebulba.check.settings import settings_of
from sebulba.toolkit.cores import core_settings
from sebulba.types import PyTree

_NUM_ENVS = 4
_MIN_ROWS = 32
_RESETS = (0.0, 0.02, 0.2, 0.6)  # share of the rows in each environment that are resets
# A product for several rows sums in another order than one for each row, as in `states`.
_MAX_ERROR = 1e-4  # absolute, and relative to the greatest number


def unrolls(evidence: Evidence) -> Answer:
    """Unroll the core over two trajectories' rows at once, and over one row after the other."""
    subject = evidence.subject
    settings = dict(settings_of(subject.config.agent))
    name, size = settings.get("core"), settings.get("lstm_size")
    if not isinstance(name, str) or size is None:
        return skipped("the agent has no recurrent core of the settings core and lstm_size")
    checked = core_settings(name, size, settings.get("core_options", {}))
    assert checked is not None  # it has a size
    core: Any = checked.make(parent=None)
    num_rows = max(_MIN_ROWS, 2 * subject.run_spec.trajectory_length)
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(num_rows, _NUM_ENVS, size)), jnp.float32)
    is_first = jnp.asarray(rng.random((num_rows, _NUM_ENVS)) < np.array(_RESETS))

    @jax.jit
    def unroll(parameters: PyTree, state: PyTree, is_first: jax.Array) -> PyTree:
        return core.apply(parameters, inputs, is_first, state)

    @jax.jit
    def unroll_rows(parameters: PyTree, state: PyTree) -> PyTree:
        def step(state: PyTree, row: tuple[jax.Array, jax.Array]) -> tuple[PyTree, jax.Array]:
            outputs, state = core.apply(parameters, *(each[None] for each in row), state)
            return state, outputs[0]

        state, outputs = jax.lax.scan(step, state, (inputs, is_first))
        return outputs, state

    new = core.initial_state(_NUM_ENVS)
    parameters = jax.jit(core.init)(jax.random.key(0), inputs, is_first, new)
    # A state of a long episode, in which a memory of rows is full.
    _, before = unroll(parameters, new, jnp.zeros_like(is_first))
    expected, got = unroll_rows(parameters, before), unroll(parameters, before, is_first)
    failure = None
    for what, axes, one, other in zip(
        ("outputs", "state after the last row"),
        (("row", "env"), ("env",)),
        expected,
        got,
        strict=True,
    ):
        greatest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(one))
        failure = failure or first_difference(
            one,
            other,
            what=f"agent.core: {name}: {what}",
            axes=axes,
            tolerance=_MAX_ERROR * max(1.0, greatest),
        )
    return passed_unless(failure, f"equal outputs and states of {num_rows} rows, with resets")


UNROLLS = Question(
    name="unrolls",
    ask=unrolls,
    property="a core unrolls many rows as it does one by one",
    perturbs="unrolls the core of `agent.core` over all rows at once, and over one after the other",
    proof="random rows, resets, and the state of a long episode",
    expects="equal outputs of every row, and an equal state after the last one",
    bound=f"{_MAX_ERROR:g}, absolute and of the greatest number: sums in another order",
    likely_cause=(
        "a row sees later ones, or rows that the state has lost, or the state is not that after"
        " the last row"
    ),
)
