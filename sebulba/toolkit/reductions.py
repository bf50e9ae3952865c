"""Reductions over the batch of *all* learner devices of all hosts, for agents' losses.

The learner averages gradients over the learner devices. With local means, a device with few valid
entries would weigh as much as one with many, and local sums would shrink with the number of
devices. These functions reduce over all devices, so the number of learner devices never changes the
result. Outside the learner's mapped update (in a test or a notebook) they reduce over their
argument alone.

`masked_sum`, `masked_mean`, `masked_moments` and `masked_max` return the same value on every
learner device, for which each sends a message between the devices. The gradient of `psum` under
pmap semantics is `psum`, so each device's gradient is the number of devices times its share, and
the learner's average over devices is the gradient of the global value.

`sum_share` and `mean_share` return another value on each device. The learner averages losses,
metrics and gradients over the devices in one message, and the average of the shares is the sum or
the mean over all devices. So shares may only be added, or multiplied by constants. They save a
message each, which counts between hosts; only the number of valid entries needs one.
"""

import chex
import jax
import jax.numpy as jnp

from sebulba.types import PyTree

LEARNER_AXIS = "learner"
"""The named axis of the learner's mapped update. Only the framework names it."""


def sum_share(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return a device's `[]`, whose average over all learner devices is `masked_sum(x, mask)`.

    Args:
        x: `[...]`, float.
        mask: `[...]`, bool, of the same shape as `x`.
    """
    return _num_devices() * jnp.sum(_select(x, mask, 0.0))


def mean_share(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return a device's `[]`, whose average over all learner devices is `masked_mean(x, mask)`.

    Args:
        x: `[...]`, float.
        mask: `[...]`, bool, of the same shape as `x`.
    """
    return sum_share(x, mask) / _count(mask)


def masked_sum(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the sum `[]` of `x` where `mask`, over all learner devices.

    Args:
        x: `[...]`, float.
        mask: `[...]`, bool, of the same shape as `x`.
    """
    return _psum(jnp.sum(_select(x, mask, 0.0)))


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean `[]` of `x` where `mask`, over all learner devices; 0 if nowhere.

    Args:
        x: `[...]`, float.
        mask: `[...]`, bool, of the same shape as `x`.
    """
    return masked_sum(x, mask) / _count(mask)


def masked_moments(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean `[]` and standard deviation `[]` of `x` where `mask`, with gradients stopped.

    Args:
        x: `[...]`, float.
        mask: `[...]`, bool, of the same shape as `x`.
    """
    x = jax.lax.stop_gradient(x)
    mean = masked_mean(x, mask)
    return mean, jnp.sqrt(masked_mean(jnp.square(x - mean), mask))


def masked_feature_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean `[...]` of each feature where `mask`; 0 if nowhere.

    Args:
        x: `[*rows, ...]`, float.
        mask: `[*rows]`, bool, of the leading axes of `x`.
    """
    features = range(mask.ndim, x.ndim)
    every = jnp.broadcast_to(jnp.expand_dims(mask, tuple(features)), x.shape)
    return _psum(jnp.sum(_select(x, every, 0.0), axis=tuple(range(mask.ndim)))) / _count(mask)


def masked_max(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the maximum `[]` of `x` where `mask`, with gradients stopped; `-inf` if nowhere.

    Args:
        x: `[...]`, float.
        mask: `[...]`, bool, of the same shape as `x`.
    """
    x = jax.lax.stop_gradient(x)
    local = jnp.max(_select(x, mask, -jnp.inf))
    return jax.lax.pmax(local, LEARNER_AXIS) if _is_mapped() else local


def mean_over_learner_devices(tree: PyTree) -> PyTree:
    """Return the mean of every leaf over all learner devices; for the framework's update."""
    if not _is_mapped():
        return tree
    if _num_devices() == 1:
        return jax.lax.pmean(tree, LEARNER_AXIS)
    # One buffer for each type: on a CPU, each array would be an all-reduce of its own, and the
    # latency of the hosts' connection counts for each.
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    means: dict[int, jax.Array] = {}
    for dtype in {leaf.dtype for leaf in leaves}:
        these = [number for number, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = jax.lax.pmean(
            jnp.concatenate([leaves[number].ravel() for number in these]), LEARNER_AXIS
        )
        offset = 0
        for number in these:
            leaf = leaves[number]
            means[number] = flat[offset : offset + leaf.size].reshape(leaf.shape)
            offset += leaf.size
    return jax.tree.unflatten(treedef, [means[number] for number in range(len(leaves))])


def sum_over_learner_devices(x: jax.Array) -> jax.Array:
    """Return the sum `[...]` of each device's numbers; it is the same on every device."""
    return _psum(x)


def learner_device_index() -> jax.Array:
    """Return int32 `[]`, the number of this learner device; for the framework's update."""
    return jax.lax.axis_index(LEARNER_AXIS) if _is_mapped() else jnp.int32(0)


def _select(x: jax.Array, mask: jax.Array, otherwise: float) -> jax.Array:
    # `where` instead of a product: a NaN at an invalid entry must not reach the sum.
    chex.assert_equal_shape([x, mask])
    return jnp.where(mask, x, jnp.asarray(otherwise, x.dtype))


def _count(mask: jax.Array) -> jax.Array:
    count = jnp.sum(mask, dtype=jnp.float32)
    return jnp.maximum(jax.lax.stop_gradient(_psum(count)), 1.0)


def _psum(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, LEARNER_AXIS) if _is_mapped() else x


def _num_devices() -> int:
    return int(jax.lax.axis_size(LEARNER_AXIS)) if _is_mapped() else 1


def _is_mapped() -> bool:
    try:
        jax.lax.axis_size(LEARNER_AXIS)
    except NameError:
        return False
    return True
