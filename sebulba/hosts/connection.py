"""Connects the hosts of a run, compares them, and ends them when one is lost.

`jax.distributed` connects them. During a run only gradients and the few numbers of
`sebulba.hosts.agreement` cross between hosts.
"""

import ctypes
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax._src.clusters import ClusterEnv
from jax.experimental import multihost_utils

from sebulba.config.schema import DistributedConfig
from sebulba.errors import ConfigError
from sebulba.hosts.rendezvous import wait_for_processes
from sebulba.process import EXIT_NOT_JOINED

_LOCAL_DEVICES_VARIABLE = "JAX_LOCAL_DEVICE_IDS"
# C holds a pointer to the handler, so Python must never free it.
_abort_handlers: list[Callable[[int], None]] = []


def connect(config: DistributedConfig) -> None:
    """Connect this process with the others; call before any device is used.

    Install signal handlers afterwards, since `jax.distributed` may replace that of SIGTERM.

    Raises:
        ConfigError: no cluster was detected, or the coordinator's port is in use.
        JoinError: the processes did not find each other in time.
    """
    if config.effective_mode == "off":
        return
    place = _place(config)
    address, num_processes, process_id = place
    if address is not None and num_processes is not None and process_id is not None:
        wait_for_processes(
            address,
            num_processes=num_processes,
            process_id=process_id,
            timeout_s=config.join_timeout_s,
            port=_port_to_bind(),
        )
    # A process may still end between this and the end of `initialize`.
    _exit_on_abort(EXIT_NOT_JOINED, lambda: "sebulba: lost contact with a process that had joined")
    # With its preemption service JAX swallows SIGTERM. `Agreement` stops the hosts together.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=num_processes,
            process_id=process_id,
            local_device_ids=_local_device_ids(config),
            cluster_detection_method=None if None in place else "deactivate",
            initialization_timeout=math.ceil(config.join_timeout_s),
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


def _place(config: DistributedConfig) -> tuple[str | None, int | None, int | None]:
    """Return coordinator, number of processes and this one's number; None: unknown."""
    if config.effective_mode == "manual":
        return config.coordinator, config.num_processes, config.process_id
    # `initialize` would detect them itself, too late to check them.
    address, num_processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
        os.environ.get("JAX_COORDINATOR_ADDRESS"),
        None,
        None,
        local_device_ids=[],
        cluster_detection_method=None,
        initialization_timeout=math.ceil(config.join_timeout_s),
    )
    return address, num_processes, process_id


def _port_to_bind() -> int | None:
    """Return the port of process 0 if it is not that of the coordinator's address."""
    port = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "").rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def is_first() -> bool:
    """Return whether this host writes the files of the whole run: metrics, config, summary."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Return whether the run has more than one host."""
    # Without a connection, the question would make JAX look for devices.
    return jax.distributed.is_initialized() and jax.process_count() > 1


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
    if are_several():
        _exit_on_abort(code, describe)


def _exit_on_abort(code: int, describe: Callable[[], str]) -> None:
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
