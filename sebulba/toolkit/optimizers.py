"""Optimizers with gradient clipping, and one step of an optimizer."""

import jax
import jax.numpy as jnp
import optax

from sebulba.toolkit.sums import global_norm
from sebulba.types import PyTree


def clipped_adam(*, epsilon: float, max_grad_norm: float | None) -> optax.GradientTransformation:
    """Return Adam with learning rate 1, after clipping gradients to a global norm.

    Args:
        epsilon: ε, outside the square root.
        max_grad_norm: maximum norm of all gradients together; None: no clipping.
    """
    return _clipped(optax.adam(1.0, eps=epsilon), max_grad_norm)


def clipped_radam(*, epsilon: float, max_grad_norm: float | None) -> optax.GradientTransformation:
    """Return RAdam with learning rate 1, after clipping gradients to a global norm.

    Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond" (arXiv 1908.03265).

    Args:
        epsilon: ε, outside the square root.
        max_grad_norm: maximum norm of all gradients together; None: no clipping.
    """
    return _clipped(optax.radam(1.0, eps=epsilon), max_grad_norm)


def clipped_rmsprop(
    *,
    decay: float,
    epsilon: float,
    max_grad_norm: float | None,
) -> optax.GradientTransformation:
    """Return TensorFlow's RMSProp with learning rate 1, after clipping gradients to a global norm.

    ε is inside the square root and the initial second moment is 1, as in IMPALA and other papers
    whose code used TensorFlow 1.

    Args:
        decay: the decay of the second moment.
        epsilon: ε, inside the square root.
        max_grad_norm: maximum norm of all gradients together; None: no clipping.
    """
    rmsprop = optax.rmsprop(1.0, decay=decay, eps=epsilon, eps_in_sqrt=True, initial_scale=1.0)
    return _clipped(rmsprop, max_grad_norm)


def descend(
    optimizer: optax.GradientTransformation,
    params: PyTree,
    opt_state: PyTree,
    grads: PyTree,
    *,
    learning_rate: float | jax.Array = 1.0,
) -> tuple[PyTree, PyTree]:
    """Return the parameters and the optimizer's state after one step.

    Args:
        optimizer: with a constant learning rate.
        params: before the step.
        opt_state: before the step.
        grads: the gradients of the loss.
        learning_rate: factor of the optimizer's own, `[]`.
    """
    # Optax raises a float to an integer count, which strict dtype promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(grads, opt_state, params)
    updates = jax.tree.map(lambda update: learning_rate * update, updates)
    return optax.apply_updates(params, updates), opt_state


def _clipped(
    optimizer: optax.GradientTransformation, max_grad_norm: float | None
) -> optax.GradientTransformation:
    if max_grad_norm is None:
        return optimizer

    def clip(grads: PyTree, params: PyTree) -> PyTree:
        del params
        factor = jnp.minimum(1.0, max_grad_norm / global_norm(grads))
        return jax.tree.map(lambda grad: factor.astype(grad.dtype) * grad, grads)

    return optax.chain(optax.stateless(clip), optimizer)
