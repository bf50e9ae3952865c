"""Linear functions whose transpose is stated, for derivatives that are fast on a CPU.

The reverse-mode derivative of a function is the transpose of its forward-mode one. JAX derives it,
in operations that can be slow. `jax.custom_vjp` replaces it, but then forward mode is gone, and
with it Hessian-vector products. So a layer states both: its `jax.custom_jvp` rule calls
`linear_call`, and all modes and orders of differentiation work.

`jax.custom_derivatives.linear_call` has the same meaning, but can neither be mapped by `jax.vmap`
nor be differentiated by what is not its linear argument, as a second derivative does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from sebulba.types import PyTree

Arrays = Sequence[jax.Array]
_Flat = Callable[[Arrays, Arrays], list[jax.Array]]


def linear_call(
    function: Callable[[PyTree, PyTree], PyTree],
    transpose: Callable[[PyTree, PyTree], PyTree],
    residuals: PyTree,
    operands: PyTree,
) -> PyTree:
    """Return `function(residuals, operands)`, which is linear in the operands.

    Args:
        function: differentiable in the residuals by JAX.
        transpose: `transpose(residuals, cotangents)` returns the cotangents of the operands for
            those of the result; likewise differentiable.
        residuals: arrays of floats.
        operands: arrays of floats.
    """
    leaves, of_residuals = jax.tree.flatten(residuals)
    operand_leaves, of_operands = jax.tree.flatten(operands)
    of_result = jax.tree.structure(jax.eval_shape(function, residuals, operands))
    unflatten = jax.tree.unflatten

    def flat(residuals: Arrays, operands: Arrays) -> list[jax.Array]:
        result = function(unflatten(of_residuals, residuals), unflatten(of_operands, operands))
        return jax.tree.leaves(result)

    def flat_transpose(residuals: Arrays, cotangents: Arrays) -> list[jax.Array]:
        returned = transpose(unflatten(of_residuals, residuals), unflatten(of_result, cotangents))
        return jax.tree.leaves(returned)

    return unflatten(of_result, _bind(flat, flat_transpose, leaves, operand_leaves))


_linear_call = Primitive("linear_call_with_residuals")
_linear_call.multiple_results = True


def _bind(function: _Flat, transpose: _Flat, residuals: Arrays, operands: Arrays) -> list[Any]:
    jaxpr = jax.make_jaxpr(function)(list(residuals), list(operands))
    return _linear_call.bind(
        *residuals, *operands, jaxpr=jaxpr, transpose=transpose, num_residuals=len(residuals)
    )


def _as_function(jaxpr: ClosedJaxpr) -> _Flat:
    return lambda residuals, operands: jaxpr_as_fun(jaxpr)(*residuals, *operands)


@_linear_call.def_impl
def _compute(*arguments: jax.Array, jaxpr: ClosedJaxpr, **_: Any) -> list[jax.Array]:
    return jaxpr_as_fun(jaxpr)(*arguments)


@_linear_call.def_abstract_eval
def _results(*_: Any, jaxpr: ClosedJaxpr, **__: Any) -> list[Any]:
    return jaxpr.out_avals


def _jvp(primals, tangents, *, jaxpr, transpose, num_residuals):
    function = _as_function(jaxpr)
    residuals, operands = primals[:num_residuals], primals[num_residuals:]
    result = _bind(function, transpose, residuals, operands)
    of_residuals, of_operands = (
        None
        if all(type(each) is ad.Zero for each in part)
        else [ad.instantiate_zeros(each) for each in part]
        for part in (tangents[:num_residuals], tangents[num_residuals:])
    )
    parts = []
    if of_operands is not None:
        parts.append(_bind(function, transpose, residuals, of_operands))
    if of_residuals is not None:
        _, part = jax.jvp(lambda *each: function(each, operands), residuals, tuple(of_residuals))
        parts.append(part)
    return result, parts[0] if len(parts) == 1 else [x + y for x, y in zip(*parts, strict=True)]


def _transpose(cotangents, *arguments, jaxpr, transpose, num_residuals):
    residuals, operands = arguments[:num_residuals], arguments[num_residuals:]
    # A known operand is the 0 of a variable that is not differentiated.
    returned = _bind(
        transpose,
        _as_function(jaxpr),
        residuals,
        [ad.instantiate_zeros(each) for each in cotangents],
    )
    of_operands = [
        each if ad.is_undefined_primal(operand) else None
        for each, operand in zip(returned, operands, strict=True)
    ]
    return [None] * num_residuals + of_operands


def _batch(arguments, axes, *, jaxpr, transpose, num_residuals):
    size = next(
        argument.shape[axis]
        for argument, axis in zip(arguments, axes, strict=True)
        if axis is not None
    )
    arguments = [
        argument if axis is None else jnp.moveaxis(argument, axis, 0)
        for argument, axis in zip(arguments, axes, strict=True)
    ]
    # Operands are all mapped, so the transpose has no sum over the mapped axis.
    operands = [
        jnp.broadcast_to(argument[None], (size, *argument.shape)) if axis is None else argument
        for argument, axis in zip(arguments[num_residuals:], axes[num_residuals:], strict=True)
    ]
    of_residuals = [None if axis is None else 0 for axis in axes[:num_residuals]]

    def mapped(function: _Flat) -> _Flat:
        return jax.vmap(function, (of_residuals, 0))

    result = _bind(
        mapped(_as_function(jaxpr)), mapped(transpose), arguments[:num_residuals], operands
    )
    return result, [0] * len(result)


ad.primitive_jvps[_linear_call] = _jvp
ad.primitive_transposes[_linear_call] = _transpose
batching.primitive_batchers[_linear_call] = _batch
mlir.register_lowering(_linear_call, mlir.lower_fun(_compute, multiple_results=True))
