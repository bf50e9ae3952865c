"""How the processes of a run find, compare and outlive each other.

`jax.distributed` connects them. Nothing but gradients, and the few numbers of
`sebulba.hosts.agreement`, crosses between hosts while a run goes.
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
# Kept for as long as the process lives: C calls it.
_abort_handlers: list[Callable[[int], None]] = []


def connect(config: DistributedConfig) -> None:
    """Connects this process with the others; called before any device is used.

    Handlers of signals are installed after it.

    Raises:
        ConfigError: no cluster was recognised, or the processes did not find each other.
    """
    if config.effective_mode == "off":
        return
    # JAX's own handling of SIGTERM swallows the signal; hosts agree on stopping by themselves.
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
            f"distributed.mode: {config.effective_mode}: {str(error).splitlines()[0]}; auto expects"
            " Slurm, Open MPI, Kubernetes or a TPU pod, and manual expects distributed.coordinator,"
            " distributed.num_processes and distributed.process_id"
        ) from error


def _local_device_ids(config: DistributedConfig) -> list[int] | None:
    if config.local_devices is not None:
        return list(config.local_devices)
    # Without a list, JAX takes the one GPU of the process's number under Slurm and Open MPI; an
    # empty one stands for all that the process sees.
    return None if _LOCAL_DEVICES_VARIABLE in os.environ else []


def is_first() -> bool:
    """Whether this host writes what is the whole run's: metrics, the summary, the config."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Whether the run is on more hosts than this one."""
    return jax.process_count() > 1


def gather_texts(text: str) -> list[str]:
    """Returns every host's text, in their order; each of them calls it, in the same order."""
    if not are_several():
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    lengths = np.reshape(multihost_utils.process_allgather(np.int32(data.size)), -1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: data.size] = data
    rows = multihost_utils.process_allgather(padded)
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def check_equal(what: Mapping[str, str]) -> None:
    """Checks that all hosts have the same configs and versions.

    Raises:
        ConfigError: on every host, naming the first host that differs from host 0 and in what.
    """
    lines = "\n".join(f"{name}\0{value}" for name, value in what.items())
    first, *others = (
        dict(line.split("\0", 1) for line in text.splitlines()) for text in gather_texts(lines)
    )
    for number, other in enumerate(others, start=1):
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise ConfigError(
                    f"hosts: expected {name} to be the same on all, got {first.get(name)} on host 0"
                    f" and {other.get(name)} on host {number}"
                )


def exit_when_lost(code: int, describe: Callable[[], str]) -> None:
    """Makes the process exit with `code`, and a last line of its own, when the others are lost.

    When a host is dead or silent for the heartbeat's time, or the coordinator is gone, XLA's client
    aborts the process in a thread of its own. There is no other hook than the signal, and Python's
    own handlers of it never get to run.

    Args:
        code: of the exit.
        describe: gives the last line.
    """
    if not are_several():
        return

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
    """Waits until all hosts have come here, so that none takes the end of another for a failure."""
    jax.distributed.shutdown()
