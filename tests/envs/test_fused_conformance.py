"""Fused environments: their streams equal those of the stepped ones."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.envs.cases import (
    assert_same,
    fused_cases,
    random_actions,
    random_stream,
)


@fused_cases
def test_fused_stream_equals_the_stepped_one(case):
    stream, _ = random_stream(case)
    assert_same(stream, random_stream(dataclasses.replace(case, fused=False))[0])


@fused_cases
def test_fused_stream_continues_a_stepped_one(case):
    stream, actions = random_stream(case)
    environment = case.make()
    environment.reset()
    # Switch right after an episode's end, so that the traceable step must know that it ended.
    switch = int(np.argmax(stream.done.any(axis=1)))
    for action in actions[:switch]:
        environment.step(action)
    fused = environment.fused()
    step = jax.jit(fused.step)
    state, rows = fused.state, []
    for action in actions[switch : switch + 5]:
        state, row = step(state, action)
        rows.append(row)
    assert_same(
        jax.tree.map(lambda *xs: np.stack(xs), *rows),
        jax.tree.map(lambda x: x[switch + 1 : switch + 6], stream),
    )
    environment.close()


@fused_cases
def test_fused_step_keeps_types_and_its_state_can_be_donated(case):
    environment = case.make()
    row = environment.reset()
    fused = environment.fused()
    action = random_actions(environment.spec.action_space, num_envs=case.num_rows)[0]
    state, next_row = jax.jit(fused.step, donate_argnums=0)(fused.state, action)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(fused.state))

    def check(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not getattr(b, "weak_type", False)

    jax.tree.map(check, (fused.state, row), (state, next_row))
    environment.close()


@fused_cases
def test_fused_before_reset_and_with_wrong_actions_is_refused(case):
    environment = case.make()
    with pytest.raises(RuntimeError, match="reset"):
        environment.fused()
    environment.reset()
    fused = environment.fused()
    good = random_actions(environment.spec.action_space, num_envs=case.num_rows)[0]
    wrong = np.float32 if good.dtype == np.int32 else np.int32
    for bad in (good[:-1], good[:, None], good.astype(wrong)):
        with pytest.raises(ValueError, match="expected an action of"):
            jax.eval_shape(fused.step, fused.state, bad)
    environment.close()
