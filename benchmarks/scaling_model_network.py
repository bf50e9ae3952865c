"""Measure an all-reduce between two processes of this machine, over the loopback.

`benchmarks.scaling_model` starts it twice, as `python -m benchmarks.scaling_model_network
COORDINATOR PROCESS_ID BYTES`. Process 0 prints the seconds of an all-reduce of 4 bytes, and of
one of BYTES, as JSON.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.scaling_model_prediction import Network

_NUM_PROCESSES = 2
_REPEATS = 200
_DEADLINE_S = 120.0


def measure_loopback(num_bytes: int) -> Network:
    """Measure the network between two local processes by all-reduces of 4 and `num_bytes` bytes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.scaling_model_network", coordinator]
    variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(number), str(num_bytes)],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for number in range(_NUM_PROCESSES)
    ]
    try:
        first, *_ = [process.communicate(timeout=_DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    # Gloo prints to the same stream first.
    seconds = json.loads(first.splitlines()[-1])
    return network_of(seconds["small_s"], seconds["large_s"], num_bytes)


def network_of(small_s: float, large_s: float, num_bytes: int) -> Network:
    """Infer the network from the times of a small and a large all-reduce of two processes.

    Each process sends half of the bytes there and back, in two messages. If the large all-reduce
    takes no longer than the small one, the bandwidth counts as infinite.
    """
    transfer_s = large_s - small_s
    return Network(
        latency_s=small_s / 2, bytes_per_s=num_bytes / transfer_s if transfer_s > 0 else np.inf
    )


def _seconds(num_bytes: int) -> float:
    """Measure the median seconds of an all-reduce of `num_bytes` bytes per process."""
    mesh = Mesh(np.array(jax.devices()), ("process",))
    split, whole = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("process", None))
    own = jax.device_put(jnp.ones((1, num_bytes // 4)), jax.local_devices()[0])
    rows = jax.make_array_from_single_device_arrays((_NUM_PROCESSES, num_bytes // 4), split, [own])
    total = jax.jit(lambda rows: rows.sum(axis=0), out_shardings=whole)
    durations = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        total(rows).block_until_ready()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def main() -> None:
    """Run one of the two processes."""
    coordinator, process_id, num_bytes = sys.argv[1:]
    jax.distributed.initialize(coordinator, _NUM_PROCESSES, int(process_id))
    seconds = {"small_s": _seconds(4), "large_s": _seconds(int(num_bytes))}
    if jax.process_index() == 0:
        print(json.dumps(seconds), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
