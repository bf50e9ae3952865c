"""Connects the hosts of a run, compares them, and ends them when one is lost.

`jax.distributed` connects them. During a run only gradients and the few numbers of
`sebulba.hosts.agreement` cross between hosts.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from sebulba.config.schema import DistributedConfig
from sebulba.errors import ConfigError

_LOCAL_DEVICES_VARIABLE = "JAX_LOCAL_DEVICE_IDS"
# C holds a pointer to the handler, so Python must never free it.
_abort_handlers: list[Callable[[int], None]] = []


def connect(config: DistributedConfig) -> None:
    """Connect this process with the others; call before any device is used.

    Install signal handlers afterwards, since `jax.distributed` may replace that of SIGTERM.

    Raises:
        ConfigError: no cluster was detected, or the processes did not find each other.
    """
    if config.effective_mode == "off":
        return
    # With its preemption service JAX swallows SIGTERM. `Agreement` stops the hosts together.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=config.coordinator,
            num_processes=config.num_processes,
            process_id=config.process_id,
            local_device_ids=_local_device_ids(config),
            cluster_detection_method="deactivate" if config.effective_mode == "manual" else None,
            heartbeat_timeout_seconds=config.heartbeat_timeout_s,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"distributed.mode: {config.effective_mode}: {str(error).splitlines()[0]}. auto expects"
            " Slurm, Open MPI, Kubernetes or a TPU pod; manual expects distributed.coordinator,"
            " distributed.num_processes and distributed.process_id"
        ) from error


def _local_device_ids(config: DistributedConfig) -> list[int] | None:
    if config.local_devices is not None:
        return list(config.local_devices)
    # Under Slurm and Open MPI, JAX takes only the GPU with the process's local rank unless it gets
    # a list; an empty list means every visible device.
    return None if _LOCAL_DEVICES_VARIABLE in os.environ else []


def is_first() -> bool:
    """Return whether this host writes the files of the whole run: metrics, config, summary."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Return whether the run has more than one host."""
    return jax.process_count() > 1


def gather_texts(text: str) -> list[str]:
    """Return the texts of all hosts, in their order; a collective that every host must call."""
    if not are_several():
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    # Lengths first: an all-gather needs the same shape on every host.
    lengths = np.reshape(multihost_utils.process_allgather(np.int32(data.size)), -1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: data.size] = data
    rows = multihost_utils.process_allgather(padded)
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def check_equal(what: Mapping[str, str]) -> None:
    """Check that all hosts have the same values, such as configs and versions.

    Raises:
        ConfigError: a host differs from host 0; on every host.
    """
    lines = "\n".join(f"{name}\0{value}" for name, value in what.items())
    first, *others = (
        dict(line.split("\0", 1) for line in text.splitlines()) for text in gather_texts(lines)
    )
    for number, other in enumerate(others, start=1):
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise ConfigError(
                    f"hosts: expected {name} to be equal on all, got {first.get(name)} on host 0"
                    f" and {other.get(name)} on host {number}"
                )


def exit_when_lost(code: int, describe: Callable[[], str]) -> None:
    """Make the process print `describe()` and exit with `code` when it loses the other hosts."""
    if not are_several():
        return

    # When a host misses its heartbeats or the coordinator is gone, a C++ thread of XLA's client
    # aborts this process. SIGABRT is the only hook. Python's `signal` would merely queue a handler
    # for the main thread, and `abort` does not wait for that.
    def on_abort(number: int) -> None:
        try:
            sys.stderr.write(f"\n{describe()}\n")
            sys.stderr.flush()
        finally:
            os._exit(code)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
    _abort_handlers.append(handler)
    ctypes.CDLL(None).signal(int(signal.SIGABRT), handler)


def disconnect() -> None:
    """Wait for all hosts, so that none takes the exit of another for a failure; then disconnect."""
    jax.distributed.shutdown()
