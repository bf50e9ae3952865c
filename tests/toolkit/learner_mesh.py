"""Calls functions on several learner devices, without a learner."""

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from sebulba.toolkit.reductions import LEARNER_AXIS


def on_devices(function, num_devices, *args):
    """Return each device's result, stacked; every argument is split on its axis 1."""
    mesh = Mesh(np.array(jax.devices()[:num_devices]), (LEARNER_AXIS,))
    mapped = jax.shard_map(
        lambda *args: jax.tree.map(lambda x: x[None], function(*args)),
        mesh=mesh,
        in_specs=tuple(PartitionSpec(None, LEARNER_AXIS) for _ in args),
        out_specs=PartitionSpec(LEARNER_AXIS),
        check_vma=False,
    )
    return jax.jit(mapped)(*args)
