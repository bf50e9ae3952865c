"""A hint about networks so small that a CPU acts faster with them than an accelerator."""

from collections.abc import Sequence

import jax

from sebulba.types import PyTree

# On a CPU, 4 MFLOP take about 80 µs on one core. On an accelerator, each env step of environments
# on the host waits for a transfer each way and about 20 launches of 2 to 3 µs.
_MAX_PRODUCTS = 2_000_000
_DENSE_AXES = 2  # Kernels of convolutions have more, and far more products than parameters.


def describe_small_network(
    networks: PyTree, *, actor_devices: Sequence[jax.Device], num_envs: int, is_on_host: bool
) -> str | None:
    """Return a line of text that suggests acting on the CPU; None: there is no reason to.

    Args:
        networks: those that act, or the learner's.
        actor_devices: those that act.
        num_envs: environments of an actor, which the networks compute together.
        is_on_host: whether an env step is a call of its own, outside of JAX.
    """
    kinds = sorted({device.platform for device in actor_devices} - {"cpu"})
    leaves = jax.tree.leaves(networks)
    num_parameters = sum(leaf.size for leaf in leaves)
    has_convolutions = any(leaf.ndim > _DENSE_AXES for leaf in leaves)
    products = num_parameters * num_envs
    if not kinds or not is_on_host or has_convolutions or products > _MAX_PRODUCTS:
        return None
    return (
        f"hint: this network is small ({num_parameters:,} parameters × {num_envs} environments),"
        f" and every env step on the host waits for the {kinds[0]}. Acting is probably faster on"
        " the CPU: --devices.actor cpu"
    )
