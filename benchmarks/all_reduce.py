"""Measure the all-reduce of a config's gradients between local processes, in several forms.

    python -m benchmarks.all_reduce CONFIG [--hosts 2] [--repeats 20] [--json FILE]

Gradients are averaged as the update does it, as one flat buffer, or all leaves in one call, or leaf
by leaf, in float32 or, converted before and after, in bfloat16. All forms take turns in the same
processes, which are connected over the loopback. A process of this benchmark reads the shapes of
the gradients from its standard input.
"""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import harness
from benchmarks.harness import Result, Series
from sebulba.config.loading import load_config
from sebulba.ring.make import made_ring
from sebulba.types import PyTree

AXIS = "host"
CALLS = 5  # of a form in each repeat
DEADLINE_S = 540.0
FORMS = ("flat", "in one call", "leaf by leaf")
DTYPES = ("float32", "bfloat16")


def mean_of(form: str, dtype: str, gradients: PyTree) -> PyTree:
    """Return the mean of gradients over all hosts, in this form."""
    low = jax.tree.map(lambda leaf: leaf.astype(dtype), gradients)
    if form == "flat":
        flat, unravel = ravel_pytree(low)
        mean = unravel(jax.lax.pmean(flat, AXIS))
    elif form == "leaf by leaf":
        mean = jax.tree.map(lambda leaf: jax.lax.pmean(leaf, AXIS), low)
    else:
        mean = jax.lax.pmean(low, AXIS)
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), mean, gradients)


def run_host(coordinator: str, num_hosts: int, number: int, repeats: int) -> dict[str, list[float]]:
    """Run one process; return the milliseconds of each form in each repeat."""
    shapes = json.load(sys.stdin)
    jax.distributed.initialize(coordinator, num_hosts, number)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), (AXIS,)), PartitionSpec())
    rng = np.random.default_rng(number)
    gradients = [
        # Each host has its own, as in an update.
        jax.make_array_from_single_device_arrays(
            tuple(shape),
            sharding,
            [jax.device_put(rng.normal(size=shape).astype(np.float32), jax.local_devices()[0])],
        )
        for shape in shapes
    ]
    forms = {
        f"{form}, {dtype}": _jitted(functools.partial(mean_of, form, dtype), sharding)
        for form in FORMS
        for dtype in DTYPES
    }
    expected = jax.device_get(forms[f"{FORMS[0]}, {DTYPES[0]}"](gradients))
    for name, form in forms.items():
        tolerance = 1e-6 if "float32" in name else 2e-2
        for leaf, wanted in zip(jax.device_get(form(gradients)), expected, strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=tolerance, atol=tolerance)
    milliseconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeats):
        for name, form in forms.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                jax.block_until_ready(form(gradients))
            milliseconds[name].append(1e3 * (time.perf_counter() - begin) / CALLS)
    return milliseconds


def _jitted(function: Callable[[PyTree], PyTree], sharding: NamedSharding) -> Callable:
    spec = sharding.spec
    mapped = jax.shard_map(
        function, mesh=sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.jit(mapped)


def measure(shapes: list[tuple[int, ...]], *, num_hosts: int, repeats: int) -> dict[str, Series]:
    """Run the processes; return the milliseconds of each form."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.all_reduce", "--host", coordinator]
    processes = [
        subprocess.Popen(
            [*command, *map(str, (num_hosts, number, repeats))],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(num_hosts)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(shapes))
            process.stdin.close()
            process.stdin = None
        first, *_ = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    rows = json.loads(first.splitlines()[-1])
    return {name: Series(values=tuple(values)) for name, values in rows.items()}


def main() -> None:
    """Run the benchmark."""
    if sys.argv[1:2] == ["--host"]:
        coordinator, *numbers = sys.argv[2:]
        rows = run_host(coordinator, *map(int, numbers))
        if jax.process_index() == 0:
            print(json.dumps(rows), flush=True)
        jax.distributed.shutdown()
        return
    parser = harness.parser(__doc__)
    parser.add_argument("config", type=pathlib.Path, help="YAML file")
    parser.add_argument("--hosts", type=int, default=2, help="number of processes; default 2")
    arguments, flags = parser.parse_known_args()
    with made_ring(load_config(str(arguments.config), flags)) as ring:
        leaves = jax.tree.leaves(ring.learner.state.networks)
    shapes = [leaf.shape for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    milliseconds = measure(shapes, num_hosts=arguments.hosts, repeats=arguments.repeats)
    chosen = milliseconds[f"{FORMS[0]}, {DTYPES[0]}"]
    result = Result(
        name="all-reduce of the gradients",
        unit="ms",
        rates=milliseconds,
        ratios={
            f"{name} / flat, float32": each.over(chosen) for name, each in milliseconds.items()
        },
        settings={
            "hosts": arguments.hosts,
            "leaves": len(shapes),
            "bytes, float32": 4 * sum(int(np.prod(shape)) for shape in shapes),
        },
    )
    harness.report([result], arguments.json)


if __name__ == "__main__":
    main()
